"""Check that each layer of src/ includes only those below it, and that the core never sees Python.

The layers are listed here bottom-up; ARCHITECTURE.md says what each is for. `cudasim`, `runtime` and `standins` are
separate: they are libraries of their own, and share only the declarations of NVIDIA's interfaces with the others. The
core's folders are layers, too.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path

SOURCE = Path(__file__).parent.parent / "src"
MAY_INCLUDE = {
    "abi": {"abi"},
    "base": {"base", "abi"},
    "driver": {"driver", "base", "abi"},
    "core": {"core", "driver", "base", "abi"},
    "trace": {"trace", "core", "driver", "base", "abi"},
    "bindings": {"bindings", "trace", "core", "driver", "base", "abi"},
    "cudasim": {"cudasim", "abi"},
    "runtime": {"runtime", "abi"},
    "standins": {"standins", "abi"},
}
CORE_FOLDERS = ["streams", "space", "backing", "scopes", "blocks", "heap", "arena"]  # bottom-up
PYTHON_HEADERS = ("Python.h", "pybind11")


def core_level(name: str) -> int:
    """How high up a file of the core is, by its path below src/."""
    folder = name.split("/")[1:-1]
    return CORE_FOLDERS.index(folder[0]) + 1 if folder else 0


def problems(path: Path) -> list[str]:
    layer = path.relative_to(SOURCE).parts[0]
    if layer not in MAY_INCLUDE:
        return [f"{path.relative_to(SOURCE)}: tools/check_includes.py does not know the layer '{layer}'"]
    found = []
    for number, line in enumerate(path.read_text().splitlines(), 1):
        included = re.match(r'\s*#include [<"]([^">]+)[">]', line)
        if included is None:
            continue
        name, place = included[1], f"{path.relative_to(SOURCE)}:{number}"
        target = name.split("/")[0]
        if target in MAY_INCLUDE and target not in MAY_INCLUDE[layer]:
            found.append(
                f"{place}: {layer} may not include {name}; it may include {', '.join(sorted(MAY_INCLUDE[layer]))}"
            )
        if layer == target == "core" and core_level(name) > core_level(str(path.relative_to(SOURCE))):
            found.append(f"{place}: {name} is above it; the folders, bottom-up: {', '.join(CORE_FOLDERS)}")
        if layer != "bindings" and name.startswith(PYTHON_HEADERS):
            found.append(f"{place}: only bindings may include {name}")
    return found


def main() -> int:
    files = sorted(p for p in SOURCE.rglob("*") if p.suffix in {".cpp", ".hpp", ".h", ".def"})
    found = [problem for path in files for problem in problems(path)]
    print("\n".join(found) if found else f"{len(files)} files include only what is below them")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
