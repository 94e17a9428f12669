"""The source files of a checkout as rules about its structure see them: by name, with what each of them imports."""

import ast
from collections import deque
from collections.abc import Iterator, Mapping
from functools import cached_property
from pathlib import Path
from typing import NamedTuple

# Where packages lie, and what their names begin with.
SOURCES = {"usersctl": "usersctl", "daemon/usersd": "usersd", "tests": "tests"}
Function = ast.FunctionDef | ast.AsyncFunctionDef
STATEMENTS = (ast.stmt, ast.ExceptHandler, ast.match_case)  # an import is in no expression


class Import(NamedTuple):
    name: str
    at_the_top: bool  # outside of functions, so every start pays for it


class Module:
    def __init__(self, path: str, name: str, source: str) -> None:
        self.path = path
        self.name = name
        self.tree = ast.parse(source)

    @cached_property
    def nodes(self) -> list[ast.AST]:
        return list(ast.walk(self.tree))

    @cached_property
    def functions(self) -> list[Function]:
        return [node for node in self.nodes if isinstance(node, Function)]

    @cached_property
    def classes(self) -> list[ast.ClassDef]:
        return [node for node in self.nodes if isinstance(node, ast.ClassDef)]

    @cached_property
    def imports(self) -> list[Import]:
        """Every name that is imported, also inside functions and for types only."""
        imports: list[Import] = []
        waiting: deque[tuple[ast.AST, bool]] = deque([(self.tree, True)])
        while waiting:
            node, at_the_top = waiting.popleft()
            imports += [Import(name, at_the_top) for name in self._names(node)]
            is_outside = at_the_top and not isinstance(node, Function)
            waiting += [
                (child, is_outside) for child in ast.iter_child_nodes(node) if isinstance(child, STATEMENTS)
            ]
        return imports

    def _names(self, node: ast.AST) -> list[str]:
        if isinstance(node, ast.Import):
            return [alias.name for alias in node.names]
        if isinstance(node, ast.ImportFrom):
            assert node.module is not None, f"{self.path}: relative imports hide where a name comes from"
            return [f"{node.module}.{alias.name}" for alias in node.names]
        return []


Modules = Mapping[str, Module]


def read_modules(root: Path) -> dict[str, Module]:
    """By dotted name, all modules of the checkout at `root`."""
    modules = {}
    for folder, package in SOURCES.items():
        for file in sorted((root / folder).rglob("*.py")):
            parts = (package, *file.relative_to(root / folder).with_suffix("").parts)
            name = ".".join(parts).removesuffix(".__init__")
            modules[name] = Module(str(file.relative_to(root)), name, file.read_text("utf-8"))
    return modules


def imported_modules(module: Module, modules: Modules) -> set[str]:
    """The modules of ours that it imports: of `from a.b import c` either a.b.c or a.b."""
    names = {nearest(name, modules) for name, _ in module.imports}
    return {name for name in names if name} - {module.name}


def nearest(name: str, known: Mapping[str, object]) -> str:
    """The longest beginning of a dotted name that is known, or an empty string."""
    while name and name not in known:
        name = name.rpartition(".")[0]
    return name


def circles(modules: Modules) -> Iterator[list[str]]:
    """Groups of modules that import one another, directly or by others."""
    imports = {name: imported_modules(module, modules) for name, module in modules.items()}
    reached = {name: _reachable(name, imports) for name in imports}
    grouped: set[str] = set()
    for name, targets in reached.items():
        if name in targets and name not in grouped:
            circle = sorted(other for other in targets if name in reached[other])
            grouped.update(circle)
            yield circle


def _reachable(start: str, imports: Mapping[str, set[str]]) -> set[str]:
    reached: set[str] = set()
    waiting = [start]
    while waiting:
        for target in imports[waiting.pop()] - reached:
            reached.add(target)
            waiting.append(target)
    return reached
