"""What nodes report of a run, for tests: events as agents send them, and runs that have been measured."""

import contextlib
from collections.abc import Iterable
from typing import Any

from engine.inputs import parse
from engine.job.adapt.layouts import Conditions, better_layout
from engine.job.adapt.measured import as_rows, planned
from engine.job.events.event import Event, from_dict
from engine.job.events.incidents import Deviation, LayoutChanged, TimedWork
from engine.job.job import TrainJob
from engine.job.launch import single_machine
from engine.job.planned import schedule_of
from engine.job.recovery.layout import change
from tests.events import T0
from tests.site.world import World
from webapp.jobs.allocate import allocate
from webapp.jobs.models import Run
from webapp.live import services

# A run that re-planned: its link and one of its GPUs are slower than was thought.
ADAPTED: dict[str, Any] = {
    "kind": "adapted",
    "rank": 0,
    "iteration": 41,
    "replanned": True,
    "policy": "varuna",
    "deviations": [
        {"what": "link", "at": [1, 2], "planned_ms": 40.0, "measured_ms": 80.04},
        {"what": "F", "at": [5], "planned_ms": 20.0, "measured_ms": 26.1},
    ],
    "planned_s": 1.1026,
    "before_s": 1.4837,
    "after_s": 1.286,
    "t": T0 + 3,
}


def adapted(run: Run, *, slower: float = 1.3, **fields: Any) -> dict[str, Any]:
    """The event with the schedule of the run's job, where its first stage takes `slower` times as long."""
    job = parse(TrainJob, run.job.document)
    schedule = schedule_of(job)
    times = {q: ms * (slower if q[1:] == (0,) else 1) for q, ms in planned(job.scenario, schedule).items()}
    return {**ADAPTED, "schedule": str(schedule), "times": as_rows(times), **fields}


def layout_changed(run: Run, **fields: Any) -> dict[str, Any]:
    """The event of a run that leaves out west, because the link to it is five times as slow as planned."""
    job = parse(TrainJob, run.job.document)
    spec = single_machine(job, run=str(run.pk), log_dir="")
    slow = Conditions(of_gpu={}, transfer={frozenset((1, 2)): 5.0}, latency_ms={})
    layout = better_layout(spec, slow, than_s=60.0)
    assert layout is not None
    of_layout = change(
        spec, layout.layout.applied(spec), "another layout is faster", (1.9, layout.iteration_s)
    )
    event = LayoutChanged(
        rank=0,
        iteration=41,
        deviations=(Deviation(what=TimedWork.LINK, at=(3, 4), planned_ms=40.0, measured_ms=200.0),),
        before_s=1.9,
        after_s=layout.iteration_s,
        gain_s=30.0,
        cost_s=4.0,
        lost_s=3.5,
        attempt=2,
        times=layout.layout.times,
        t=T0 + 6,
        **of_layout,
    )
    return {**event.to_dict(), **fields}


Item = tuple[str, str, dict[str, Any]]  # node, stream entry, event
NODES = ["east-1", "east-1", "mid-1", "mid-1", "west-1", "west-1"] * 2  # of the world's plan, by rank


def take_in(items: Iterable[Item], changed: Iterable[int] = ()) -> list[tuple[int, dict[str, Any]]]:
    """Take in what nodes sent, as ingest does."""
    return services.take_in(read(items), set(changed))


def read(items: Iterable[Item]) -> list[tuple[str, str, Event]]:
    """What ingest reads of it: what is no event is left out."""
    known = []
    for node, entry, document in items:
        with contextlib.suppress(ValueError):
            known.append((node, entry, from_dict(document)))
    return known


def placed(world: World) -> Run:
    """A run whose ranks have got their GPUs."""
    world.hear()
    run = world.launch()
    assert allocate(run)
    run.refresh_from_db()
    return run


def measure(world: World, run: Run, *, iterations: int) -> None:
    """Let `run` get its GPUs and report `iterations`."""
    world.hear()
    assert allocate(run)
    take_in(events(run, iterations))


def spans_event(run: Run, rank: int, iteration: int) -> dict[str, Any]:
    """One forward op of half a second; stage 2 sends 5 MB over the WAN in 20 ms."""
    start = T0 + iteration
    pipeline, stage = divmod(rank, 6)
    op = {"track": "gpu", "pipeline": pipeline, "stage": stage, "op": "F", "microbatch": 0}
    spans: list[dict[str, Any]] = [{**op, "start": start, "end": start + 0.5}]
    if stage == 1:
        sent = {"track": "wan", "pipeline": pipeline, "from_stage": 1, "to_stage": 2, "payload": "activation"}
        times = {"start": start + 0.5, "end": start + 0.52, "arrives": start + 0.53}
        spans.append({**sent, **times, "microbatch": 0, "bytes": 5_000_000})
    key = {"kind": "spans", "run": str(run.pk), "generation": run.generation, "rank": rank}
    return {**key, "iteration": iteration, "start": start, "end": start + 1.0, "spans": spans}


def step_event(run: Run, iteration: int, **fields: Any) -> dict[str, Any]:
    """Loss and the like of one iteration."""
    key = {"kind": "step", "run": str(run.pk), "generation": run.generation, "iteration": iteration}
    return {
        **key,
        "loss": 5.0 - iteration,
        "bits_per_byte": 2.5 - iteration / 2,
        "grad_norm": 1.0,
        "learning_rate": 1e-3,
        "tokens": 10,
        "t": T0,
        **fields,
    }


def log_event(run: Run, rank: int, number: int, line: str | None = None) -> dict[str, Any]:
    """Line `number` of a rank."""
    key = {"kind": "log", "run": str(run.pk), "generation": run.generation, "rank": rank}
    text = f"line {number} of rank {rank}" if line is None else line
    return {**key, "line": text, "t": T0 + number / 1e3, "id": 1_790_000_000_000_000 + number}


def rank_event(run: Run, rank: int, state: str, **fields: Any) -> dict[str, Any]:
    """A rank's state."""
    key = {"kind": "rank", "run": str(run.pk), "generation": run.generation, "rank": rank}
    return {**key, "state": state, "t": T0, **fields}


def events(run: Run, iterations: int, first: int = 0) -> list[Item]:
    """Spans of all twelve ranks and the step, of `iterations` from `first`."""
    items: list[Item] = []
    for iteration in range(first, first + iterations):
        items += [(NODES[rank], "1-0", spans_event(run, rank, iteration)) for rank in range(12)]
        items.append((NODES[0], "1-0", step_event(run, iteration)))
    return items
