"""What a node may say: forged events of every kind of the union change nothing that others said.

A kind that is added to the union is tried here by itself: it is refused until it has a rule.
"""

import copy
from collections.abc import Iterator
from typing import Any

import pytest
from django.core import serializers
from django.urls import reverse

from engine.job.events.base import OfRun
from engine.job.events.event import KINDS, from_dict
from tests.events import EXAMPLES, T0
from tests.site.telemetry import NODES, events, log_event, placed, spans_event, step_event
from webapp.jobs.models import RankState, Run, RunCheckpoint, RunEvent
from webapp.live.ingest import take_in_or_refuse
from webapp.live.models import (
    IterationStat,
    LogLine,
    PrefillCoordinator,
    PrefillMinute,
    PrefillSecond,
    RefusedEvents,
    SpanBatch,
)
from webapp.live.services import forget_old_spans
from webapp.live.services.possible import MOST_TEXT

FIRST, OTHER, STRANGER = NODES[0], "mid-1", "north-1"
OF_RUN = sorted(kind for kind, cls in KINDS.items() if issubclass(cls, OfRun))
FAR: tuple[Any, ...] = (
    0,
    1,
    10**6,
    2**31 - 1,
    2**62,
    -1,
    1.0,
    9e10,
    1e-300,
    1e300,
    "",
    "x" * (MOST_TEXT + 1),
    [],
    {},
    True,
    None,
)


@pytest.fixture
def run(world: Any) -> Run:
    """A run of which two iterations are known."""
    from tests.site.world import make_node

    placed_run = placed(world)
    make_node(world.dcs[0], STRANGER, gpus=2)
    take_in_or_refuse(_read(events(placed_run, 2)), set())
    placed_run.refresh_from_db()
    return placed_run


def _read(items: Any) -> list[Any]:
    return [(node, entry, from_dict(document)) for node, entry, document in items]


def _say(node: str, document: dict[str, Any]) -> bool:
    """Whether it is an event at all."""
    try:
        event = from_dict(document)
    except ValueError:
        return False
    take_in_or_refuse([(node, f"{int(T0 * 1e3)}-0", event)], set())
    return True


def _example(run: Run, kind: str, **fields: Any) -> dict[str, Any]:
    origin = {"run": str(run.pk), "generation": run.generation} if kind in OF_RUN else {}
    return {"kind": kind, **copy.deepcopy(EXAMPLES[kind]), **origin, **fields}


def _said_by_others(run: Run, node: str) -> Any:
    """All rows of the run but what `node` may say of its own ranks."""
    own = {rank for rank, name in enumerate(NODES) if name == node}
    runs = Run.objects.values("status", "desired_state", "iteration", "epoch", "cuts", "predicted", "result")
    stats = []
    for stat in IterationStat.objects.filter(run=run, iteration__lt=2).order_by("iteration"):
        others = [
            {k: v for k, v in rows.items() if int(k) not in own} for rows in (stat.busy_s, stat.traffic)
        ]
        stats.append((stat.iteration, stat.start, stat.end, stat.loss, stat.ranks, others))
    rows = [
        RankState.objects.filter(run=run).exclude(rank__in=own),
        SpanBatch.objects.filter(run=run).exclude(rank__in=own),
        LogLine.objects.filter(run=run).exclude(rank__in=own),
        RunCheckpoint.objects.filter(run=run),
        RunEvent.objects.filter(run=run),
    ]
    lists = [serializers.serialize("json", query.order_by("pk")) for query in rows]
    return runs.get(pk=run.pk), stats, lists


def _forged(document: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """The event with each field in turn far from what it should be, nested ones too."""
    for name, value in document.items():
        if name in ("kind", "run", "generation"):
            continue
        for far in FAR:
            yield {**document, name: far}
        if isinstance(value, dict):
            yield from ({**document, name: inner} for inner in _forged(value))
        if isinstance(value, list | tuple) and value and isinstance(value[0], dict):
            yield from ({**document, name: [inner, *value[1:]]} for inner in _forged(value[0]))


def test_every_kind_of_a_run_has_an_example() -> None:
    assert set(OF_RUN) <= EXAMPLES.keys()


@pytest.mark.parametrize("kind", OF_RUN)
def test_a_node_without_ranks_of_the_run_changes_nothing(run: Run, kind: str) -> None:
    before = _said_by_others(run, "")
    assert _say(STRANGER, _example(run, kind))
    assert _said_by_others(run, "") == before
    refused = RefusedEvents.objects.get(node__name=STRANGER)
    assert refused.count == 1
    assert "no rank of that run" in refused.why


# What is said of a data centre is tried in tests/site/test_coordinators.py.
@pytest.mark.parametrize("kind", [kind for kind in OF_RUN if not kind.startswith("prefill")])
def test_a_node_speaks_for_no_rank_of_another(run: Run, kind: str) -> None:
    """Of what one rank reports for all, only the node of the first rank; the others have no rank 0."""
    before = _said_by_others(run, "")
    assert _say(OTHER, _example(run, kind, **({"rank": 0} if "rank" in EXAMPLES[kind] else {})))
    assert _said_by_others(run, "") == before
    assert RefusedEvents.objects.get(node__name=OTHER).count == 1


@pytest.mark.parametrize("kind", OF_RUN)
def test_whatever_a_node_of_the_run_makes_up_leaves_what_others_said(run: Run, kind: str) -> None:
    own = {"rank": NODES.index(OTHER)} if "rank" in EXAMPLES[kind] and "prefill" not in kind else {}
    before, tried = _said_by_others(run, OTHER), 0
    for document in _forged(_example(run, kind, **own)):
        tried += _say(OTHER, document)
    assert tried > 0
    after = _said_by_others(run, OTHER)
    if kind == "rank":  # a rank that says that it failed ends its run, and the run says so
        assert (after[1], after[2][:-1]) == (before[1], before[2][:-1])
    else:
        assert after == before
    assert PrefillCoordinator.objects.count() == PrefillMinute.objects.count() == 0
    assert PrefillSecond.objects.count() <= len(FAR) * len(EXAMPLES[kind])


@pytest.mark.parametrize("kind", sorted(set(KINDS) - set(OF_RUN)))
def test_whatever_a_node_makes_up_of_itself_is_taken_or_refused(run: Run, kind: str) -> None:
    before = _said_by_others(run, "")
    for document in _forged(_example(run, kind)):
        _say(STRANGER, document)
    assert _said_by_others(run, "") == before


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({"iteration": 10**9}, "iteration 1000000000 of 50"),
        ({"iteration": 50}, "iteration 50 of 50"),
        ({"start": 1.0}, "start is more than a day before"),
        ({"end": 9e10}, "end is more than a day"),
        ({"rank": 0}, "rank 0 is not one of its own"),
    ],
)
def test_spans_are_of_the_job_and_of_now(run: Run, change: dict[str, Any], why: str) -> None:
    rank = NODES.index(OTHER)
    _say(OTHER, {**spans_event(run, rank, 3), **change})
    assert why in RefusedEvents.objects.get(node__name=OTHER).why
    assert not SpanBatch.objects.filter(run=run, iteration__gt=1).exists()


@pytest.mark.parametrize(
    "change",
    [
        {"microbatch": 10**6},
        {"microbatch": -1},
        {"start": T0 + 9, "end": T0 + 8},
        {"start": T0 - 9e5},
        {"bytes": 2**60},
        {"from_stage": -1},
    ],
)
def test_a_span_is_of_the_job_and_of_its_iteration(run: Run, change: dict[str, Any]) -> None:
    rank = NODES.index(OTHER)
    forged = spans_event(run, rank, 3)
    forged["spans"][0] |= change
    _say(OTHER, forged)
    assert RefusedEvents.objects.get(node__name=OTHER).count == 1
    assert not SpanBatch.objects.filter(run=run, iteration=3).exists()


def test_an_iteration_holds_as_many_spans_as_the_job_makes(run: Run) -> None:
    forged = spans_event(run, NODES.index(OTHER), 3)
    forged["spans"] = forged["spans"][:1] * 100_000
    _say(OTHER, forged)
    assert "100,000 spans" in RefusedEvents.objects.get(node__name=OTHER).why


def test_no_claim_of_progress_forgets_what_other_ranks_reported(run: Run) -> None:
    """Spans were forgotten by the last iteration that any node named."""
    last = run.steps - 1
    _say(FIRST, step_event(run, last))
    assert Run.objects.get(pk=run.pk).iteration == last
    for iteration in range(last - 20, last):
        _say(OTHER, spans_event(run, NODES.index(OTHER), iteration))
    forget_old_spans(10)
    others = SpanBatch.objects.filter(run=run).exclude(rank=NODES.index(OTHER))
    assert others.count() == 2 * 11
    assert SpanBatch.objects.filter(run=run, rank=NODES.index(OTHER)).count() == 10


def test_the_page_of_the_node_says_what_was_refused(world: Any, run: Run) -> None:
    _say(STRANGER, log_event(run, 0, 1))
    _say(STRANGER, log_event(run, 0, 2))
    node = RefusedEvents.objects.get(node__name=STRANGER).node
    answer = world.client("operator").get(reverse("inventory:node-detail", args=[node.pk]))
    page = " ".join(answer.content.decode().split())
    assert "2 of its reports were refused, the last" in page
    assert "log: it has no rank of that run" in page


async def test_what_is_no_event_is_counted_too(run: Run) -> None:
    from webapp.live.ingest import Ingest

    ingest = Ingest(client=None)  # type: ignore[arg-type]
    ingest._nodes = {"node:mid-1:events": OTHER}
    entries = {"node:mid-1:events": [("1-0", {"e": "[" * 100_000}), ("2-0", {"e": "{}"}), ("3-0", {})]}
    events_, _, _, refused = ingest._decoded(entries)
    assert events_ == []
    assert refused[OTHER][0] == 3
