"""The whole run for charts, spans looked back at, traces, CSV; and what is left of an old iteration."""

import csv
import io
import json
from datetime import UTC, datetime
from statistics import fmean
from typing import Any

import pytest
from django.utils import timezone

from engine.job.codes import code_of, span_of
from engine.job.events.event import from_dict
from engine.simulate.spans import Span
from tests.site.telemetry import events, placed, spans_event, step_event, take_in
from tests.site.test_recovery import EVENT, WITHOUT_MID
from tests.site.world import World
from webapp.inventory.models import LinkMeasurement
from webapp.jobs.models import Run
from webapp.jobs.services import record_recovery
from webapp.live.history import history
from webapp.live.models import IterationStat, SpanBatch
from webapp.live.selectors import run_usage, snapshot
from webapp.live.services import compact_iterations, forget_old_spans
from webapp.live.shape import shape_of_run


@pytest.fixture
def run(world: World) -> Run:
    return placed(world)


def test_every_iteration_is_a_point_while_they_are_few(world: World, run: Run) -> None:
    take_in(events(run, 5))
    answer = world.client("viewer").get(f"/runs/{run.pk}/history.json").json()
    assert answer["every"] == 1
    assert [point["iteration"] for point in answer["iterations"]] == [0, 1, 2, 3, 4]
    assert [point["loss"] for point in answer["iterations"]] == [5, 4, 3, 2, 1]
    assert [point["bits_per_byte"] for point in answer["iterations"]] == [2.5, 2, 1.5, 1, 0.5]
    assert {point["tokens_per_s"] for point in answer["iterations"]} == {10.0}
    assert {point["utilization"] for point in answer["iterations"]} == {0.5}
    assert answer["iterations"][1]["start"] == 1000.0
    assert [dc["name"] for dc in answer["dcs"]] == ["east", "mid", "west"]
    assert [dc["utilization"] for dc in answer["dcs"]] == [[0.5] * 5] * 3
    east_to_mid = next(link for link in answer["links"] if (link["from"], link["to"]) == (0, 1))
    assert east_to_mid["gbps"] == [1.0] * 5  # 5 MB in 20 ms over both pairs of the cell at once
    back = next(link for link in answer["links"] if (link["from"], link["to"]) == (1, 0))
    assert back["gbps"] == [None] * 5


@pytest.mark.parametrize(("count", "most"), [(7, 7), (8, 7), (20, 7), (21, 7), (50, 3)])
def test_thinned_points_are_means_and_leave_nothing_out(run: Run, count: int, most: int) -> None:
    for iteration in range(count):
        take_in([("east-1", "1-0", step_event(run, iteration, loss=float(iteration**2)))])
    run.refresh_from_db()
    answer = history(run, most)
    every, points = answer["every"], answer["iterations"]
    assert len(points) <= most
    chunks = [range(count)[i : i + every] for i in range(0, count, every)]
    assert [point["iteration"] for point in points] == [chunk[-1] for chunk in chunks]
    assert [point["loss"] for point in points] == pytest.approx([fmean(i**2 for i in c) for c in chunks])


def test_a_run_that_has_not_begun_has_an_empty_history(run: Run) -> None:
    answer = history(run)
    assert answer["iterations"] == []
    assert [dc["utilization"] for dc in answer["dcs"]] == [[], [], []]


def test_an_iteration_that_lacks_ranks_has_no_utilization_yet(run: Run) -> None:
    take_in(events(run, 1)[:7])
    run.refresh_from_db()
    assert history(run)["iterations"][0]["utilization"] is None
    take_in(events(run, 1)[7:])
    assert history(run)["iterations"][0]["utilization"] == 0.5


def test_of_fewer_gpus_an_iteration_is_whole_from_where_they_go_on(run: Run) -> None:
    """Shares are of those that are left alone; what they began before counts with all."""
    all_events = events(run, 5)
    take_in([e for e in all_events if e[2]["iteration"] < 2])
    here = {int(rank) for rank in WITHOUT_MID}
    before = {"pipelines": 2, "stages": 6, "microbatches": 3, "gpus": 12, "iteration_s": 1.5}
    cut = {
        **before,
        "stages": 4,
        "gpus": 8,
        "before": before,
        "why": "mid-1 is silent",
        "dcs_of_rank": WITHOUT_MID,
    }
    assert record_recovery(run, from_dict({**EVENT, "iteration": 3, "layout": cut}))
    run.refresh_from_db()
    take_in([e for e in all_events if e[2]["iteration"] >= 2 and e[2].get("rank", 0) in here])
    answer = history(run)
    assert [point["utilization"] for point in answer["iterations"]] == [0.5, 0.5, None, 0.5, 0.5]
    assert [dc["utilization"][-1] for dc in answer["dcs"]] == [0.5, 0.0, 0.5]
    usage = run_usage(run, shape_of_run(run.pk), run.predicted.get("utilization"))
    assert usage is not None
    assert usage["run"]["utilization"] == pytest.approx(0.5)


def test_old_iterations_keep_their_numbers_and_lose_their_details(run: Run) -> None:
    take_in(events(run, 6))
    run.refresh_from_db()
    before = history(run)
    assert forget_old_spans(2) == 4 * 12
    assert compact_iterations(2) == 4
    assert history(run) == before
    old = IterationStat.objects.filter(run=run, is_compact=True)
    assert [stat.iteration for stat in old] == [0, 1, 2, 3]
    assert all(stat.busy_s == stat.sync_s == stat.traffic == {} for stat in old)
    assert compact_iterations(2) == 0


def test_what_comes_again_after_it_was_compacted_changes_nothing(run: Run) -> None:
    take_in(events(run, 6))
    run.refresh_from_db()
    before = history(run)
    forget_old_spans(2)
    compact_iterations(2)
    take_in(events(run, 6))
    assert history(run) == before
    assert SpanBatch.objects.filter(run=run).count() == 2 * 12


def test_an_iteration_that_lacks_a_rank_waits_for_it_an_hour(run: Run) -> None:
    missing = ("east-1", "1-0", spans_event(run, 0, 0))
    take_in([item for item in events(run, 6) if item != missing])
    compact_iterations(2)
    assert not IterationStat.objects.get(run=run, iteration=0).is_compact
    take_in([missing])
    assert IterationStat.objects.get(run=run, iteration=0).utilization == 0.5
    take_in([item for item in events(run, 1, first=6) if item[2].get("rank") != 0])
    ended = timezone.now() - timezone.timedelta(hours=2)
    Run.objects.filter(pk=run.pk).update(status="failed", finished_at=ended, iteration=20)
    compact_iterations(2)
    assert not IterationStat.objects.filter(run=run, is_compact=False).exists()


def test_spans_looked_back_at_are_those_of_the_snapshot(world: World, run: Run) -> None:
    take_in(events(run, 4))
    client, whole = world.client("viewer"), snapshot(run.pk)
    spans = client.get(f"/runs/{run.pk}/spans.json", {"from": 1, "to": 2}).json()
    assert spans["iterations"] == [it for it in whole["iterations"] if it["iteration"] in (1, 2)]
    assert spans["spans"] == [entry for entry in whole["spans"] if entry["iteration"] in (1, 2)]
    assert client.get(f"/runs/{run.pk}/spans.json", {"from": "x"}).status_code == 400
    assert client.get(f"/runs/{run.pk}/spans.json", {"from": 90, "to": 99}).json()["spans"] == []


def spans_of(run: Run) -> list[dict[str, Any]]:
    return [span for _, _, event in events(run, 1) if event["kind"] == "spans" for span in event["spans"]]


def test_a_code_is_the_span_that_it_came_from(run: Run) -> None:
    for span in spans_of(run):
        code = code_of(Span(**span), origin=span["start"])
        again = span_of(code, pipeline=span["pipeline"], stage=span.get("stage", 0), wan=True).as_dict()
        assert again["track"] == span["track"]
        same = {"op", "microbatch", "pipeline", "stage", "from_stage", "to_stage", "payload", "bytes"} & set(
            span
        )
        assert {name: again[name] for name in same} == {name: span[name] for name in same}
        assert again["end"] - again["start"] == pytest.approx((span["end"] - span["start"]) * 1e3, abs=2e-3)


def test_the_trace_holds_every_span_of_its_range(world: World, run: Run) -> None:
    client, url = world.client("viewer"), f"/runs/{run.pk}/trace.json"
    assert client.get(url).status_code == 404
    take_in(events(run, 4))
    response = client.get(url, {"from": 1, "to": 2})
    assert f'filename="run-{run.pk}.trace.json"' in response["Content-Disposition"]
    trace = json.loads(response.content)
    work = [event for event in trace["traceEvents"] if event["ph"] == "X"]
    assert len(work) == 2 * len(spans_of(run))
    assert {event["args"]["iteration"] for event in work} == {1, 2}
    ops = [event for event in work if event["cat"] == "gpu"]
    assert {event["dur"] for event in ops} == {500_000.0}
    assert min(event["ts"] for event in work) == 0
    assert {event["cat"] for event in work} == {"gpu", "wan"}
    assert any("east-1" in event["args"]["gpu"] for event in ops)
    assert trace["otherData"]["run"] == run.pk
    assert len([e for e in json.loads(client.get(url).content)["traceEvents"] if e["ph"] == "X"]) == 4 * 14
    for query in ({"from": 3, "to": 1}, {"from": "x"}, {"to": "-1"}):
        assert client.get(url, query).status_code == 400


@pytest.mark.filterwarnings("ignore:StreamingHttpResponse must consume")
def test_metrics_as_a_table_and_as_csv(world: World, run: Run) -> None:
    client = world.client("viewer")
    page = client.get(f"/runs/{run.pk}/metrics/")
    assert "No iteration has ended yet" in page.content.decode()
    take_in(events(run, 3))
    page = client.get(f"/runs/{run.pk}/metrics/")
    first = page.context["table"].rows[0]
    assert (first.get_cell("iteration"), first.get_cell("loss"), first.get_cell("took")) == (
        "3",
        "3.0000",
        "1,000.0",
    )
    text = b"".join(client.get(f"/runs/{run.pk}/metrics.csv")).decode()
    rows = list(csv.DictReader(io.StringIO(text)))
    assert [row["iteration"] for row in rows] == ["1", "2", "3"]
    assert [float(row["loss"]) for row in rows] == [5, 4, 3]


def test_a_links_history_says_when_so_that_the_browser_can_say_it_in_its_zone(world: World) -> None:
    """Inside a drawing no <time> can stand: js/lib/times.js reads data-at there."""
    for day, latency in ((1, 20.0), (2, 22.5)):
        at = datetime(2026, 3, day, 23, 30, tzinfo=UTC)
        LinkMeasurement.objects.create(link=world.link, at=at, source="probe", latency_ms=latency)
    LinkMeasurement.objects.exclude(source="probe").delete()
    page = world.client("viewer").get(f"/links/{world.link.pk}/").content.decode()
    at, label = 'data-at="2026-03-02T23:30:00+00:00" data-when=', ": 22.5 ms, probe"
    assert f'{at}"second" data-rest="{label}">2026-03-02 23:30:00 UTC{label}</title>' in page
    assert f'{at}"minute">2026-03-02 23:30 UTC</text>' in page
    assert 'data-at="2026-03-01T23:30:00+00:00" data-when="minute">2026-03-01 23:30 UTC</text>' in page
