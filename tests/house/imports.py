"""Every way in which one module of ours knows another: found in the source, nothing is imported.

An import counts wherever it stands: at the top, in a function, under TYPE_CHECKING. So does a module's name
in `import_module`, `import_string` and `get_model`.
"""

import ast
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import networkx as nx

ROOT = Path(__file__).resolve().parent.parent.parent
PACKAGES = ("engine", "workers", "webapp")
BY_NAME = ("import_module", "import_string", "get_model", "get_app_config")


@dataclass(frozen=True, slots=True, order=True)
class Known:
    """`importer` knows `module`, which stands at `line` of the importer."""

    importer: str
    module: str
    line: int


@cache
def sources() -> dict[str, Path]:
    """Every module of ours by its dotted name, migrations left out."""
    path_of = {}
    for package in PACKAGES:
        for path in sorted((ROOT / package).rglob("*.py")):
            parts = path.relative_to(ROOT).with_suffix("").parts
            if "migrations" not in parts:
                path_of[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    return path_of


@cache
def all_known() -> tuple[Known, ...]:
    """What every module knows of others of ours."""
    return tuple(sorted(known for name, path in sources().items() for known in _of(name, path)))


def _of(name: str, path: Path) -> Iterator[Known]:
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        for target in _targets(node):
            module = _module(target)
            if module is not None and module != name:
                yield Known(name, module, node.lineno)  # type: ignore[attr-defined]


def _targets(node: ast.AST) -> Iterator[str]:
    """Dotted names that a node of the source refers to."""
    if isinstance(node, ast.Import):
        yield from (alias.name for alias in node.names)
    elif isinstance(node, ast.ImportFrom):
        assert node.level == 0, "imports are absolute"
        yield from (f"{node.module}.{alias.name}" for alias in node.names)
    elif isinstance(node, ast.Call) and node.args and isinstance(node.args[0], ast.Constant):
        called = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
        if called in BY_NAME and isinstance(node.args[0].value, str):
            yield node.args[0].value if "." in node.args[0].value else f"webapp.{node.args[0].value}"


def _module(target: str) -> str | None:
    """The module that a dotted name is, or lies in; None where it is none of ours."""
    while target:
        if target in sources():
            return target
        target = target.rpartition(".")[0]
    return None


@cache
def circles() -> tuple[tuple[str, ...], ...]:
    """The modules of every circle: each of them reaches all the others by what it knows."""
    graph: nx.DiGraph = nx.DiGraph((known.importer, known.module) for known in all_known())
    components = (tuple(sorted(part)) for part in nx.strongly_connected_components(graph) if len(part) > 1)
    return tuple(sorted(components))
