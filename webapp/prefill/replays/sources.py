"""What a replay may be of: bubbles and traces of requests to choose from, and their documents."""

import uuid
from dataclasses import replace
from typing import Any

from django.core.exceptions import ValidationError

from engine.prefill.bubbles import TrainingPattern, joined, of_timeline
from engine.prefill.request import Bubbles
from engine.prefill.trace import SHIPPED
from engine.simulate import SimulationResult
from webapp.accounts.permissions import visible_or_404
from webapp.computations.models import Computation, ComputationKind, ComputationState
from webapp.jobs.models import Run
from webapp.planning.models import Plan
from webapp.planning.plan_cell import cell_of
from webapp.prefill.cells import pattern_of
from webapp.prefill.replays.pages import pages
from webapp.schedules.selectors import timed

MOST_CHOICES = 50  # of each kind, the newest
# The 12-GPU cell of Atlas §6.2, as in examples/prefill.yaml: three pipelines of four stages in (2, 1, 1) data
# centres; F = 17.9 ms, a transfer three times as long.
CELL = "cell"
CELL_BUBBLES = {
    "slot_ms": 17.9,
    "scenario": {
        "stages": 4,
        "dc_of_stage": [0, 0, 1, 2],
        "pipelines": 3,
        "microbatches": 4,
        "times": {"forward": 1, "recompute": 1, "backward": 2},
        "wan": {"transfer": 3},
        "policy": "atlas",
    },
}
UPLOAD = "upload"
Choices = list[tuple[str, Any]]


def bubble_choices(user: Any) -> Choices:
    """The bubbles that `user` may choose, by kind."""
    runs = Run.objects.visible_to(user).current().filter(predicted__has_key="spans")
    plans = Plan.objects.visible_to(user).current().exclude(result__best=None)
    compared = _comparisons().visible_to(user).current()
    labels = runs.order_by("-created_at", "-pk").values_list("pk", "job__name", "generation")
    groups = [
        ("Shipped", [(CELL, "12 GPUs of the Atlas paper, §6.2")]),
        ("Runs", [(f"run:{pk}", f"{name} #{number}") for pk, name, number in labels[:MOST_CHOICES]]),
        ("Plans, best option", _labelled("plan", plans)),
        ("Comparisons, best policy", _labelled("schedules", compared)),
    ]
    return [(label, rows) for label, rows in groups if rows]


def _comparisons() -> Any:
    return Computation.objects.of(ComputationKind.SCHEDULES).filter(state=ComputationState.DONE)


def _labelled(kind: str, rows: Any) -> list[tuple[str, str]]:
    newest = rows.order_by("-created_at", "-pk").values_list("pk", "name")[:MOST_CHOICES]
    return [(f"{kind}:{pk}", name) for pk, name in newest]


def trace_choices(user: Any) -> Choices:
    """The traces of requests that `user` may choose: shipped, a new upload, uploaded with earlier replays."""
    rows = pages.rows().visible_to(user).filter(trace__isnull=False).order_by("-created_at", "-pk")
    earlier = rows.values_list("pk", "name", "trace__files__name")[:MOST_CHOICES]
    choices: Choices = [*((name, name) for name in SHIPPED), (UPLOAD, "a file to upload")]
    if uploaded := [(f"of:{pk}", f"{file} ({name})") for pk, name, file in earlier]:
        choices.append(("Uploaded before", uploaded))
    return choices


def bubbles_of(user: Any, choice: str, slot_ms: float | None) -> dict[str, Any]:
    """`bubbles` of the document of `meridian prefill replay` for a choice of `bubble_choices`.

    slot_ms : of a compared schedule in slots.

    Raises
    ------
    ValidationError
        It leaves no timeline, or one too large for a page.
    Http404
        `user` may not see it.
    """
    kind, _, key = choice.partition(":")
    if kind == CELL:
        return CELL_BUBBLES
    pattern = {"run": _of_run, "plan": _of_plan}[kind](user, int(key)) if kind != "schedules" else None
    if kind == "schedules":
        pattern = _of_comparison(user, uuid.UUID(key), slot_ms)
    if pattern is None:
        raise ValidationError({"bubbles": "It has no predicted timeline. Choose another one."})
    return Bubbles.of(pattern).model_dump(mode="json", exclude_none=True)


def _of_run(user: Any, pk: int) -> TrainingPattern | None:
    run = visible_or_404(Run.objects.select_related("job"), user, pk=pk)
    if run.job.swaps:  # its GPUs load weights in their idle time
        return None
    stages = int(run.job.document["cell"]["stages"])
    period_ms = float(run.predicted.get("iteration_ms") or 0)
    return pattern_of(run.predicted["spans"], stages, range(stages), period_ms) if period_ms > 0 else None


def _of_plan(user: Any, pk: int) -> TrainingPattern | None:
    """One cell of its best option; training keeps the GPUs in the all-reduce and the optimizer behind it."""
    plan = visible_or_404(Plan.objects.all(), user, pk=pk)
    pattern = _of_result(cell_of(plan.request, plan.best), 1.0)
    if pattern is None or plan.best is None:
        return None
    end_ms = max(pattern.period_ms, plan.best["iteration_ms"])
    tail = (pattern.period_ms, end_ms)
    busy = tuple(tuple(joined((*gpu, tail)) for gpu in pipeline) for pipeline in pattern.busy)
    return replace(pattern, period_ms=end_ms, busy=busy)


def _of_comparison(user: Any, pk: uuid.UUID, slot_ms: float | None) -> TrainingPattern | None:
    computation = visible_or_404(_comparisons(), user, pk=pk)
    in_ms = computation.request.get("unit") == "ms"
    if not in_ms and slot_ms is None:
        raise ValidationError(
            {"slot_ms": "Enter the ms of a slot: the times of this comparison are in slots."}
        )
    rows = [row for row in (computation.answer or {}).get("results", ()) if row.get("schedule")]
    if not rows:
        return None
    best = min(rows, key=lambda row: row["makespan"])
    return _of_result(timed(computation, best), 1.0 if in_ms else slot_ms or 1.0)


def _of_result(result: SimulationResult | None, unit_ms: float) -> TrainingPattern | None:
    if result is None or result.timeline is None:
        return None
    return of_timeline(result.timeline, unit_ms, result.scenario.dcs)


def bubbles_named(choice: str, choices: Choices) -> str:
    """A choice of `bubble_choices` in words."""
    before = {"run": "run ", "plan": "best option of plan ", "schedules": "best policy of comparison "}
    return before.get(choice.partition(":")[0], "") + label_of(choice, choices)


def label_of(choice: str, choices: Choices) -> str:
    """The label of a choice; groups of choices are (name, choices)."""
    for value, label in choices:
        if value == choice:
            return str(label)
        if isinstance(label, list | tuple) and (inner := label_of(choice, list(label))):
            return inner
    return ""
