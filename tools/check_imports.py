"""Check that each part of python/arena imports only those below it, and leaves the globals of the others alone.

The parts are listed here bottom-up; ARCHITECTURE.md says what each is for. Rules:

- An import at the top of a module goes downwards, or to a module of the same part without a cycle.
- An import inside a function may go anywhere, and has its reason beside it: `late_import("what cannot be done")` around
  it, where the interpreter may be shutting down, or a comment `# late: why`.
- No module assigns a global of another one: it calls a function of it.
- Packages are private, so their modules need no second underscore; each says in a docstring what it is for.

Code under `if TYPE_CHECKING:` never runs, and may name any class.
"""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

SOURCE = Path(__file__).parent.parent / "python"
LAYERS = (
    "_core",
    "_words",
    "errors",
    "_util",
    "_cards",
    "_sim",
    "sim",
    "_inspect",
    "_report",
    "_export",
    "_trace",
    "_pool",
    "_cupy",
    "_torch",
    "torch",
    "numba",
    "cuda_core",
    "rmm",
    "_frameworks",
    "_dask",
    "dask",
    "_analysis",
    "_show",
    "_demo",
    "_run",
    "_dryrun",
    "_cli",
    "__main__",
)
# `import arena` imports these and no more: all other names are imported on demand.
ROOT_IMPORTS = {"_core", "_util", "errors"}


class Import(NamedTuple):
    target: str  # without `arena.`
    line: int
    is_late: bool
    has_reason: bool


class Module(NamedTuple):
    name: str  # without `arena.`; empty for arena itself
    path: Path
    tree: ast.Module
    is_package: bool

    @property
    def place(self) -> str:
        """Its file, relative to ``arena/``."""
        return f"arena/{'/'.join(self.path.parts[-len(self.package) - 1 :])}"

    @property
    def package(self) -> list[str]:
        parts = self.name.split(".") if self.name else []
        return parts if self.is_package else parts[:-1]


def read_modules(source: Path) -> dict[str, Module]:
    found = {}
    for path in sorted((source / "arena").rglob("*.py")):
        parts = path.relative_to(source / "arena").with_suffix("").parts
        is_package = parts[-1] == "__init__"
        name = ".".join(parts[:-1] if is_package else parts)
        found[name] = Module(name, path, ast.parse(path.read_text(), str(path)), is_package)
    return found


def layer_of(name: str) -> str:
    return name.partition(".")[0]


def targets_of(node: ast.Import | ast.ImportFrom, module: Module, known: set[str]) -> dict[str, str]:
    """The modules of arena that a statement imports, by the names that it binds."""
    if isinstance(node, ast.Import):
        names = [alias for alias in node.names if alias.name.partition(".")[0] == "arena"]
        return {alias.asname or alias.name: alias.name.partition(".")[2] for alias in names}
    if node.level:
        package = module.package[: len(module.package) - node.level + 1]
        base = ".".join([*package, *((node.module or "").split(".") if node.module else [])])
    elif (node.module or "").partition(".")[0] == "arena":
        base = (node.module or "").partition(".")[2]
    else:
        return {}
    found = {}
    for alias in node.names:
        full = f"{base}.{alias.name}" if base else alias.name
        found[alias.asname or alias.name] = full if full in known else base
    return found


def imports_of(module: Module, known: set[str]) -> Iterator[Import]:
    rows = module.path.read_text().splitlines()

    def visit(node: ast.AST, is_late: bool, has_reason: bool) -> Iterator[Import]:
        if isinstance(node, (ast.Import, ast.ImportFrom)):
            beside = [rows[node.lineno - 1], rows[(node.end_lineno or node.lineno) - 1]]
            said = has_reason or any("# late: " in row for row in beside)
            for target in sorted(set(targets_of(node, module, known).values())):
                yield Import(target, node.lineno, is_late, said)
        elif isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test):
            for other in node.orelse:
                yield from visit(other, is_late, has_reason)
        else:
            inside = is_late or isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda))
            said = has_reason or (
                isinstance(node, ast.With) and any("late_import(" in ast.unparse(item) for item in node.items)
            )
            for child in ast.iter_child_nodes(node):
                yield from visit(child, inside, said)

    yield from visit(module.tree, False, False)


def problems_of_imports(module: Module, known: set[str]) -> list[str]:
    found = []
    for one in imports_of(module, known):
        place, target = f"{module.place}:{one.line}", layer_of(one.target)
        if one.is_late:
            if not one.has_reason:
                found.append(f"{place}: {one.target} is imported in a function without a reason: `# late: why`")
        elif not module.name:
            if target not in ROOT_IMPORTS:
                found.append(f"{place}: `import arena` may not bring {one.target}")
        elif not target:
            found.append(f"{place}: import the module that has it, not arena itself")
        elif LAYERS.index(target) > LAYERS.index(layer_of(module.name)):
            found.append(f"{place}: {layer_of(module.name)} may not import {one.target}, which is above it")
    return found


def problems_of_assignments(module: Module, known: set[str]) -> list[str]:
    statements = [node for node in ast.walk(module.tree) if isinstance(node, (ast.Import, ast.ImportFrom))]
    modules = {
        name: target
        for node in statements
        for name, target in targets_of(node, module, known).items()
        if isinstance(node, ast.Import) or target.rpartition(".")[2] in {alias.name for alias in node.names}
    }
    found = []
    for node in ast.walk(module.tree):
        if not isinstance(node, ast.Attribute) or isinstance(node.ctx, ast.Load):
            continue
        target = modules.get(ast.unparse(node.value))
        if target is not None:
            place = f"{module.place}:{node.lineno}"
            found.append(f"{place}: {ast.unparse(node)} is a global of {target}: call a function of it")
    return found


def problems_of_name(module: Module) -> list[str]:
    place = module.place
    leaf = module.name.rpartition(".")[2]
    found = []
    if module.name and layer_of(module.name) not in LAYERS:
        found.append(f"{place}: tools/check_imports.py does not know the part '{layer_of(module.name)}'")
    if "." in module.name and leaf.startswith("_"):
        found.append(f"{place}: its package is private: {leaf.lstrip('_')} will do")
    if ast.get_docstring(module.tree) is None:
        found.append(f"{place}: it does not say what it is for")
    return found


def find_cycles(modules: dict[str, Module]) -> list[str]:
    """Import cycles at the top of modules, each with its modules in order."""
    known = {*modules, "_core"}
    below: dict[str, list[str]] = {}
    for name, module in modules.items():
        below[name] = sorted({one.target for one in imports_of(module, known) if not one.is_late} & {*modules} - {""})
    found: list[str] = []
    done: set[str] = set()
    path: list[str] = []

    def visit(name: str) -> None:
        if name in path:
            found.append(f"a cycle of imports: {' -> '.join([*path[path.index(name) :], name])}")
        elif name not in done:
            path.append(name)
            for target in below[name]:
                visit(target)
            path.pop()
            done.add(name)

    for name in below:
        visit(name)
    return found


def find_problems(source: Path) -> list[str]:
    modules = read_modules(source)
    known = {*modules, "_core"}
    found = [problem for module in modules.values() for problem in problems_of_name(module)]
    if not found:
        for module in modules.values():
            found += problems_of_imports(module, known) + problems_of_assignments(module, known)
        found += find_cycles(modules)
    return found


def main() -> int:
    found = find_problems(SOURCE)
    many = len(list((SOURCE / "arena").rglob("*.py")))
    print("\n".join(found) if found else f"{many} modules import only what is below them")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
