"""Apps of the site that a file knows by name alone: addresses, templates and tasks."""

import ast
import re
from collections.abc import Iterator

from tests.house.imports import ROOT, sources
from tests.house.rooms import SITE, number_of, room_of

# Apps by the namespace of their addresses.
SAME = (
    "accounts",
    "inventory",
    "computations",
    "planning",
    "placement",
    "schedules",
    "design",
    "traces",
    "jobs",
    "live",
    "prefill",
)
APP_OF_NAMESPACE = {**{name: name for name in SAME}, "v1": "prefill"}
ADDRESS = re.compile(r"^([a-z0-9]+):[a-z0-9-]+$")
TAG = re.compile(r"""\{%\s*(?:url|include|extends)\s+["']([^"']+)["']""")


def later_names() -> list[str]:
    """`file → app`, for every app later than the file's own that the file names."""
    pairs = {f"{name} → {app}" for name, room, app in _all() if number_of(app, SITE) > number_of(room, SITE)}
    return sorted(pairs)


def _all() -> Iterator[tuple[str, str, str]]:
    """(file, its app, an app that it names)."""
    for module, path in sources().items():
        if module.startswith("webapp"):
            room = room_of(module)
            yield from ((module, room, app) for app in _in_source(path.read_text(encoding="utf-8")))
    folder = ROOT / "templates"
    for path in sorted(folder.rglob("*.html")):
        name = path.relative_to(folder).as_posix()
        yield from ((f"templates/{name}", _app_of(name), app) for app in _in_template(path.read_text()))


def _in_source(text: str) -> Iterator[str]:
    """Apps whose addresses, or whose tasks, a source names in a string of its own."""
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            named = ADDRESS.match(node.value)
            if named and named[1] in APP_OF_NAMESPACE:
                yield APP_OF_NAMESPACE[named[1]]
        elif isinstance(node, ast.Call) and _called(node) == "send_task" and node.args:
            first = node.args[0]
            if isinstance(first, ast.Constant) and str(first.value).partition(".")[0] in APP_OF_NAMESPACE:
                yield str(first.value).partition(".")[0]


def _called(node: ast.Call) -> str:
    return node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")


def _in_template(text: str) -> Iterator[str]:
    for name in TAG.findall(text):
        if ":" in name:
            yield APP_OF_NAMESPACE[name.partition(":")[0]]
        elif "/" in name:
            yield _app_of(name)


def _app_of(template: str) -> str:
    """The app of a template by its path in templates/."""
    folder, _, file = template.rpartition("/")
    if folder in ("components", "partials"):
        return "common"
    if folder in ("", "registration"):
        return "root" if file not in ("base.html", "document.html", "error.html") else "common"
    return folder
