"""Works at computations: one function per kind, with wires to the page that waits.

A kind is a generator: it yields its answer as it grows, with how much of it is done. A new kind is a
function and a line in `KINDS`.
"""

import threading
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from typing import Any

import structlog
from django.db import connection

from engine.errors import InputError
from engine.inputs import parse
from engine.schedule import Progress, Search
from engine.schedule.scenario import Scenario
from engine.simulate import Compared, SweepDocument, compare, sweep
from webapp.jobs.schedule_work import find_schedule
from webapp.planning import services
from webapp.planning.models import Computation, ComputationKind
from webapp.planning.placement_work import place_devices
from webapp.planning.plan_work import compute_plan
from webapp.planning.refinement import refine_plan

log = structlog.get_logger(__name__)
# How often a search that finds nothing new says that it lives and asks whether it should stop.
BEAT_S = 0.5
HEARTBEAT_S = 3.0


@dataclass(slots=True, kw_only=True)
class Wires:
    """Between a computation's row and the engine's search."""

    computation: Computation
    ending: Callable[[], bool]  # true when it is to go back into the queue
    done: int = 0
    of: int = 0
    answer: Any = None
    found: dict[str, Any] = field(default_factory=dict)
    stopped: bool = False
    asked_at: float = 0.0
    kept: int = 0

    def search(self, scenario: Scenario) -> Search:
        """Limits and wires of the search for one policy."""
        self.found = {}
        return Search(
            seconds=scenario.time_limit_s, seed=scenario.seed, cancelled=self.cancelled, report=self._report
        )

    def cancelled(self) -> bool:
        """Whether to stop: asked for by people, or the worker ends."""
        if time.monotonic() - self.asked_at >= BEAT_S:
            self.beat()
        return self.stopped or self.ending()

    def beat(self) -> None:
        """Write how far we are and learn whether anybody still waits; the answer only where it has grown."""
        self.asked_at = time.monotonic()
        progress = {"done": self.done, "of": self.of, **self.found}
        answer = self.answer if self.done > self.kept else None
        self.kept = self.done
        if not services.note_progress(self.computation, progress, answer):
            self.stopped = True

    def say(self, found: dict[str, Any]) -> None:
        """What the page may show of the step that goes on; written with the next beat."""
        self.found = found

    def _report(self, progress: Progress) -> None:
        self.say(asdict(progress))


def compare_schedules(request: dict[str, Any], wires: Wires) -> Iterator[dict[str, Any]]:
    """{"results": […]}: one entry a policy, without spans, with the schedule as text."""
    policies = request["policies"]
    wires.of = len(policies)
    results: list[dict[str, Any]] = []
    for compared in compare(request["scenario"], policies, wires.search):
        results.append(_kept(compared))
        yield {"results": results}


def _kept(compared: Compared) -> dict[str, Any]:
    """What of a result is kept: figures and the schedule's text; spans are made again when they are drawn."""
    answer = {name: value for name, value in compared.as_dict().items() if name not in ("spans", "bubbles")}
    answer["policy"] = compared.policy
    timeline = compared.result.timeline if compared.result else None
    if timeline is not None:
        count, mean = timeline.bubbles()
        answer["bubble_count"] = int(count.sum())
        answer["bubble_mean"] = float((count * mean).sum() / max(1, count.sum()))
        answer["schedule"] = str(timeline.schedule)
    return answer


def sweep_parameter(request: dict[str, Any], wires: Wires) -> Iterator[dict[str, Any]]:
    """{"rows": […]}: the rows of `meridian sweep`, as they come."""
    document = parse(SweepDocument, request)
    wires.of = len(document.values) * len(document.policies)
    rows: list[dict[str, Any]] = []
    for row in sweep(document, wires.search):
        rows.append(row.as_dict())
        yield {"rows": rows}


KINDS: dict[str, Callable[[dict[str, Any], Wires], Iterator[dict[str, Any]]]] = {
    ComputationKind.SCHEDULES: compare_schedules,
    ComputationKind.SWEEP: sweep_parameter,
    ComputationKind.PLACEMENT: place_devices,
    ComputationKind.REFINE: refine_plan,
    ComputationKind.PLAN: compute_plan,
    ComputationKind.RUN: find_schedule,
}


def work_at(pk: uuid.UUID, *, ending: Callable[[], bool] = lambda: False) -> None:
    """Claim a computation, answer it and keep the answer; nothing happens where it is not queued.

    ending : true when the worker shuts down; the computation then goes back into the queue.
    """
    computation = services.claim(pk)
    if computation is None:
        return
    if computation.kind == ComputationKind.REFINE:
        ending = _or_somebody_waits(ending)
    wires = Wires(computation=computation, ending=ending)
    try:
        with _heart(computation):
            _answer(wires)
    except InputError as error:
        services.give_up(computation, str(error))
    except Exception as error:
        log.exception("computation failed", computation=str(pk))
        services.give_up(computation, f"the engine failed: {type(error).__name__}")
    else:
        if ending() and wires.done < wires.of:
            services.put_back(computation)
        else:
            services.finish(computation, wires.answer or {})


def _answer(wires: Wires) -> None:
    for answer in KINDS[wires.computation.kind](wires.computation.request, wires):
        wires.answer, wires.done, wires.found = answer, wires.done + 1, {}
        wires.beat()
        if wires.stopped or wires.ending():
            return


def _or_somebody_waits(ending: Callable[[], bool]) -> Callable[[], bool]:
    """`ending`, or what somebody waits for is queued: asked every `BEAT_S`. Once true it stays so."""
    asked_at, told = time.monotonic(), False

    def gives_way() -> bool:
        nonlocal asked_at, told
        if not told and time.monotonic() - asked_at >= BEAT_S:
            asked_at, told = time.monotonic(), services.somebody_waits()
        return told or ending()

    return gives_way


@contextmanager
def _heart(computation: Computation) -> Iterator[None]:
    """Says every few seconds that the worker lives, also while a long policy asks for nothing."""
    over = threading.Event()

    def beat() -> None:
        try:
            while not over.wait(HEARTBEAT_S):
                services.say_alive(computation)
        finally:
            connection.close()

    thread = threading.Thread(target=beat, name="heart", daemon=True)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()
