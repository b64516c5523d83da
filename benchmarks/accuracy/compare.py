"""Other tools on the same programs, beside dry runs, into docs/accuracy.md: `make accuracy-others`.

    python benchmarks/accuracy/compare.py [--only TOOL] [--environments FOLDER]

Each tool of others/tools.py runs on the programs of others/programs.py, in the environment torch-2.8.0, which
run.py creates. What was found is kept in others.json.
"""

from __future__ import annotations

import argparse
import json
import re
import subprocess
from pathlib import Path

from data import HERE, Measurement, read_measured, read_published
from page import PAGE, replace_between

FOUND = HERE / "others.json"
BEGIN, END = "<!-- others: begin -->\n", "<!-- others: end -->\n"
ENVIRONMENT, LIMIT = "torch-2.8.0", 1800  # seconds
TOOLS = ["MemTracker", "estimate-memory", "torchinfo"]
PROGRAMS = ["qwen-0.8b-full-128", "qwen-0.8b-lora-128", "vit-huge-adam"]
Found = dict[str, dict[str, str]]


def run(python: Path, tool: str, program: str) -> dict[str, str]:
    """What the tool printed: names and values."""
    command = [str(python), str(HERE / "others" / "tools.py"), tool, program]
    try:
        done = subprocess.run(command, text=True, capture_output=True, timeout=LIMIT)
    except subprocess.TimeoutExpired:
        return {"error": f"no answer in {LIMIT // 60} minutes", "seconds": str(LIMIT)}
    return dict(re.findall(r"^(peak|error|seconds|lines) (.*)$", done.stdout, re.MULTILINE))


def cell(measurement: Measurement, found: dict[str, str]) -> str:
    if "peak" not in found:
        return "fails" if found else "not run"
    size = int(found["peak"])
    return f"{measurement.shown(size)}, {100 * measurement.difference(size):+.1f}%"


def text_of(found: dict[str, Found]) -> str:
    published = {measurement.name: measurement for measurement in read_published()}
    measured = read_measured()
    lines = [f"| program | published | arena dryrun | {' | '.join(TOOLS)} |", "|---|--:|--:|" + "--:|" * len(TOOLS)]
    for name in PROGRAMS:
        if name not in measured:
            continue
        of = published[name]
        size = measured[name].size
        cells = [of.what, of.published, f"{of.shown(size)}, {100 * of.difference(size):+.1f}%"]
        lines.append(f"| {' | '.join(cells + [cell(of, found[tool].get(name, {})) for tool in TOOLS])} |")
    seconds = [f"{sum(measured[name].seconds for name in PROGRAMS if name in measured):.0f}"]
    seconds += [f"{sum(float(each.get('seconds', 0)) for each in found[tool].values()):.0f}" for tool in TOOLS]
    lines.append(f"| seconds, together | | {' | '.join(seconds)} |")
    effort = ["0", *(max((each.get("lines", "") for each in found[tool].values()), default="") for tool in TOOLS)]
    lines.append(f"| lines to write | | {' | '.join(effort)} |")
    errors = {tool: {each["error"] for each in found[tool].values() if "error" in each} for tool in TOOLS}
    said = [f"- {tool} fails with `{error}`." for tool in TOOLS for error in sorted(errors[tool])]
    return "\n".join([*lines, "", *said, ""]) + "\n" * bool(said)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default="", help="part of a tool's name")
    parser.add_argument("--environments", type=Path, default=HERE.parent.parent / "build" / "accuracy")
    options = parser.parse_args()
    found: dict[str, Found] = {tool: {} for tool in TOOLS} | json.loads(FOUND.read_text())
    for tool in TOOLS:
        for program in PROGRAMS:
            if options.only in tool:
                python = options.environments.absolute() / ENVIRONMENT / "bin" / "python"
                found[tool][program] = run(python, tool, program)
                print(tool, program, found[tool][program], flush=True)
                FOUND.write_text(json.dumps(found, indent=1) + "\n")
    replace_between(PAGE, BEGIN, END, text_of(found))


if __name__ == "__main__":
    main()
