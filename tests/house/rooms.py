"""The rooms of the engine and the apps of the site in their order, and where each module belongs today.

docs/dev/house.md says what each holds. Most modules lie in a folder of their room's name. The tables below
name the room of those that have still to move.
"""

ENGINE = (
    "base", "cluster", "model", "schedule", "simulate", "plan", "prefill", "job", "control", "transport",
    "nn", "train serve", "run", "reproduce", "commands", "cli",
)  # fmt: skip
SITE = (
    "common", "accounts", "inventory", "computations", "planning", "placement schedules design", "jobs",
    "live", "prefill", "api", "root",
)  # fmt: skip

# Of engine.train, by the part of the name behind it; the longest that fits counts.
_OF_RUNTIME = {
    "job": """
        job job_checks job_settings devices gpus learning_rate model_document network events planned
        predict result launch adapt.settings adapt.told adapt.judge adapt.measured adapt.replan
        checkpoint.manifest checkpoint.place recovery.layout recovery.life recovery.smaller
        recovery.told recovery.history recovery.plan swap.settings swap.planned prefill.settings
        prefill.config prefill.neighbours losses
    """,
    "control": """
        lines recovery.lines recovery.lead recovery.follow transport.handshake transport.errors
        pulse
    """,
    "transport": "transport",
    "nn": "device layers model one_rank tensor_parallel",
    "train": """
        adapt adapt.follow boundary checkpoint corpus exchange executor export gradients memory mesh
        profiling recorder recovery ring staging swap text tokens totals validation wiring metrics
        tensorboard
    """,
    "serve": "prefill",
    "run": "host host_start local_ranks rank recovery.machine link_rates",
}
# Of webapp, by the part of the name behind it; an app's own files otherwise.
_OF_SITE = {
    "common": "checks servers servers.acl servers.endpoints",
    "computations": """
        planning.computing planning.kinds planning.services.computations planning.tasks planning.wires
    """,
    "root": """
        asgi celery health settings staticfiles urls views supervisor servers.__main__ demo
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
