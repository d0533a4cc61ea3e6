"""The page Prefill live: figures of what coordinators report and tenants meet, for operators of the runs."""

import time
from datetime import timedelta
from typing import Any

import pytest
from django.utils import timezone

from engine.job.codes import code_of
from engine.simulate.spans import Span
from tests.site.coordinators import coordinator_event, prefill_event, say
from tests.site.telemetry import events, take_in
from tests.site.tenancies import grant, use
from tests.site.test_tenancy_pages import text, train
from webapp.jobs.models import Job, Run
from webapp.live.models import PrefillCoordinator, SpanBatch
from webapp.prefill.served import open_places
from webapp.prefill.watching import watched


@pytest.fixture
def run(world: Any) -> Any:
    new = train(world)
    take_in(events(new, 3))
    say(coordinator_event(new), coordinator_event(new, dc="mid", rank=1_000_001))
    return new


def test_without_a_coordinator_it_says_how_to_switch_prefill_on(world: Any) -> None:
    page = text(world.client("operator").get("/prefill/live/"))
    assert "No run serves prompts" in page
    assert "&quot;checkpoint&quot;" in page
    assert "data-timeline" not in page


def test_figures_are_sums_of_what_was_said(world: Any, run: Run) -> None:
    now = time.time()
    say(*[prefill_event(run, t=now - i) for i in range(10)], prefill_event(run, t=now - 300, accepted=99))
    watch = watched(world.users["operator"], None)
    assert [row.coordinator.dc.name for row in watch.rows] == ["east"]  # a node of east says nothing of mid
    row = watch.rows[0]
    assert (row.accepted, row.refused_count, row.delivered, row.missed, row.waiting) == (70, 30, 50, 10, 4)
    assert row.refused[0][:2] == ("queue_full", 20)
    assert row.before == pytest.approx(50.0)  # half a second of each
    assert row.after == pytest.approx(55.0)  # 100 ms of two GPUs a second
    assert row.slowdown == pytest.approx(0.4)
    assert (row.waited_ms, watch.waited_ms, row.guard_ms) == (pytest.approx(15.0), row.waited_ms, 2.0)
    assert watch.accepted_share == pytest.approx(70.0)
    assert watch.rates is not None
    assert sum(high > 0 for _, _, high in watch.rates.accepted) >= 2
    page = text(world.client("operator").get("/prefill/live/"))
    words = ("queue_full", "The queue is full.", "50.0, 55.0", "0.40, 15.0")
    for shown in (*words, "data-timeline-section"):
        assert shown in page
    part = world.client("operator").get("/prefill/live/", headers={"HX-Request": "true"})
    assert "data-timeline-section" not in text(part)


def test_ttft_is_what_tenants_met_in_time_or_late(world: Any, run: Run) -> None:
    tenancy = grant(world, ttft_ms=400)
    for i in range(100):
        use(tenancy, i, ttft_ms=float(10 * (i + 1)))
    use(tenancy, 1_000, ttft_ms=9_999.0, in_batch=True)
    ttft = watched(world.users["admin"], None).ttft
    assert ttft is not None
    assert (ttft.requests, ttft.missed, ttft.objective) == (100, 60, "400")
    assert (ttft.p50, ttft.p99) == (pytest.approx(505.0), pytest.approx(990.1))


def test_a_silent_coordinator_and_a_strangers_are_not_shown(world: Any, run: Run) -> None:
    assert watched(world.users["stranger"], None).rows == []
    assert watched(world.users["viewer"], None).rows == []
    Run.objects.filter(pk=run.pk).update(status="failed", finished_at=run.created_at)
    assert watched(world.users["operator"], None).rows == []


def test_the_state_is_open_only_while_prompts_are_handed_in(world: Any, run: Run) -> None:
    """As the tenant's page has it: one that is silent, or whose run stops, is handed none."""
    tenancy = grant(world)

    def states() -> tuple[list[str], bool]:
        words = [row.word for row in watched(world.users["operator"], None).rows]
        return words, bool(open_places([tenancy])[tenancy.pk])

    assert states() == (["Open"], True)
    say(prefill_event(run, paused=True))
    assert states() == (["Paused"], True)
    PrefillCoordinator.objects.update(heard_at=timezone.now() - timedelta(seconds=30))
    assert states() == (["Silent"], False)
    PrefillCoordinator.objects.update(heard_at=timezone.now())
    Run.objects.filter(pk=run.pk).update(status="stopping")
    assert states() == (["Stopping"], False)


def test_links_lead_to_it_where_they_help(world: Any, run: Run) -> None:
    document = {**run.job.document, "prefill": {"checkpoint": "/m"}}
    assert 'swatch="prefill"' not in text(world.client("operator").get(f"/runs/{run.pk}/"))
    Job.objects.filter(pk=run.job_id).update(document=document)
    page = text(world.client("operator").get(f"/runs/{run.pk}/"))
    assert f"/prefill/live/?run={run.pk}" in page
    assert 'swatch="prefill"' in page
    assert "/prefill/live/" not in text(world.client("viewer").get(f"/runs/{run.pk}/"))
    assert 'href="/prefill/live/"' in text(world.client("operator").get("/runs/"))


def test_its_queries_do_not_grow_with_coordinators(
    world: Any, run: Run, django_assert_max_num_queries: Any
) -> None:
    client = world.client("operator")
    say(coordinator_event(run, dc="mid", rank=1_000_001), prefill_event(run, dc="mid"), node="mid-1")
    say(prefill_event(run))
    client.get("/prefill/live/")
    with django_assert_max_num_queries(30):
        assert client.get("/prefill/live/", headers={"HX-Request": "true"}).status_code == 200


def test_a_prefill_span_is_drawn_and_is_no_training(world: Any, run: Run) -> None:
    span = {"track": "gpu", "pipeline": 0, "stage": 0, "op": "prefill", "start": 10.0, "end": 10.5}
    assert code_of(Span(**span), origin=10.0) == ["P", None, 0.0, 500.0]
    (node, entry, event) = events(run, 1, first=5)[0]
    extra = {**span, "start": event["start"] + 0.6, "end": event["start"] + 0.9}
    take_in([(node, entry, {**event, "spans": [*event["spans"], extra]})])
    batch = SpanBatch.objects.get(run=run, iteration=5, rank=0)
    assert [code[0] for code in batch.spans] == ["F", "P"]
