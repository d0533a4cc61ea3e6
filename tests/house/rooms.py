"""The rooms of the engine and the apps of the site in their order, and where each module belongs.

docs/dev/house.md says what each holds. Modules lie in a folder of their room's name; the table below names
the others.
"""

ENGINE = (
    "base",
    "cluster",
    "model",
    "schedule",
    "simulate",
    "analyze",
    "plan",
    "prefill",
    "job",
    "control",
    "transport",
    "dataset",
    "nn",
    "train serve pipelining",
    "run",
    "reproduce",
    "commands",
    "cli",
)
SITE = (
    "common",
    "accounts",
    "inventory",
    "computations",
    "planning",
    "placement schedules design traces",
    "jobs",
    "live",
    "prefill",
    "api",
    "root",
)

# Of webapp, by the part of the name behind it; an app's own files otherwise.
_OF_SITE = {
    "common": "checks servers servers.acl servers.endpoints",
    "root": """
        asgi celery edge health settings staticfiles urls views supervisor servers.__main__ site
        overview attention
    """,
}


def room_of(module: str) -> str:
    """The room of a module of the engine, or the app of one of the site, that it belongs to."""
    package, _, rest = module.partition(".")
    if package == "engine":
        return _engine_room(rest)
    table = {name: room for room, names in _OF_SITE.items() for name in names.split()}
    return _longest(rest, table) or rest.partition(".")[0] or "common"


def _engine_room(rest: str) -> str:
    first = rest.partition(".")[0]
    return first if any(first in rooms.split() for rooms in ENGINE) else "base"


def _longest(name: str, table: dict[str, str]) -> str | None:
    while name:
        if name in table:
            return table[name]
        name = name.rpartition(".")[0]
    return None


def number_of(room: str, order: tuple[str, ...]) -> int:
    """The place of a room in its order; rooms that stand side by side have one number."""
    return next(number for number, rooms in enumerate(order) if room in rooms.split())


def is_back(importer: str, module: str) -> bool:
    """Whether a module knows one of a later room, or of one that stands beside its own."""
    package = importer.partition(".")[0]
    if package != module.partition(".")[0] or package == "workers":
        return False
    order = ENGINE if package == "engine" else SITE
    of, known = room_of(importer), room_of(module)
    a, b = number_of(of, order), number_of(known, order)
    return b > a or (b == a and of != known)
