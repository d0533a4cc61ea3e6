"""Incidents of a run, and what they cost: the table of its page."""

from datetime import timedelta
from typing import Any

import pytest
from django.test import Client
from django.utils import timezone

from engine.job.events.event import from_dict
from tests.events import T0
from tests.site.telemetry import adapted
from tests.site.test_checkpoints import SAVED
from tests.site.test_reconcile import Nodes, nodes, running  # noqa: F401  (a fixture)
from webapp.jobs import services
from webapp.jobs.models import Run
from webapp.live.incidents import incidents_of
from webapp.live.selectors import snapshot

RECOVERED: dict[str, Any] = {
    "kind": "recovery",
    "rank": 0,
    "failed": "rank",
    "detail": "rank 4 (east p0s4): killed by SIGKILL",
    "noticed": T0,
    "detected_s": 0.0,
    "from": "memory",
    "iteration": 40,
    "lost_s": 3.25,
    "attempt": 2,
    "t": T0 + 30,
}


@pytest.fixture
def run(world: Any, nodes: Nodes) -> Run:  # noqa: F811
    run = running(world, nodes)
    services.record_progress(run, iteration=41)
    Run.objects.filter(pk=run.pk).update(started_at=timezone.now() - timedelta(seconds=100))
    return Run.objects.get(pk=run.pk)


def test_a_run_without_incidents_has_no_table(run: Run, client: Client, world: Any) -> None:
    incidents = incidents_of(run)
    assert (incidents.count, incidents.lost_s, incidents.again, list(incidents.rows)) == (0, 0, 0, [])
    client.force_login(world.users["viewer"])
    page = client.get(f"/runs/{run.pk}/").content.decode()
    assert 'hx-sync="this:drop" hidden' in page[page.index('id="incidents"') :]


def test_every_failure_says_what_it_cost_and_from_where_the_run_went_on(
    run: Run, client: Client, world: Any
) -> None:
    assert services.record_recovery(run, from_dict(RECOVERED))
    silent = {"detected_s": 4.5, "from": "checkpoint", "iteration": 30, "lost_s": 16.75, "t": T0 + 60}
    assert services.record_recovery(
        run, from_dict({**RECOVERED, **silent, "failed": "link", "detail": "silent for 4.5 s"})
    )
    services.record_adapted(run, from_dict(adapted(run, t=T0 + 90)))
    incidents = incidents_of(run)
    assert [(row.what, row.noticed, row.lost_s, row.again) for row in incidents.rows[1:]] == [
        ("silent for 4.5 s", "after 4.5 s of silence", 16.75, 12),
        ("rank 4 (east p0s4): killed by SIGKILL", "at once", 3.25, 2),
    ]
    assert [row.went_on for row in incidents.rows] == [
        "with another schedule from iteration 42: an iteration should now take 1,286 ms instead of 1,484 ms",
        "with iteration 31, from its last checkpoint",
        "with iteration 41, from the memory of its machines",
    ]
    assert (incidents.count, incidents.lost_s, incidents.again) == (3, 20.0, 14)
    assert incidents.share == pytest.approx(0.2, rel=0.2)
    client.force_login(world.users["viewer"])
    page = client.get(f"/runs/{run.pk}/").content.decode()
    table = page[page.index('id="incidents"') : page.index('id="panel-events"')]
    assert "hidden" not in table.partition(">")[0]
    for text in ("killed by SIGKILL", "16.8", "3 incidents", "20.0", "of the run’s time was lost"):
        assert text in table


def test_a_failure_says_what_would_be_done_again(run: Run) -> None:
    services.record_checkpoint(run, from_dict({**SAVED, "step": 40, "where": "/srv/c/step-40"}))
    run.refresh_from_db()
    services.fail_run(run, "rank 0 said nothing")
    (row,) = incidents_of(Run.objects.get(pk=run.pk)).rows
    assert (row.what, row.again) == ("rank 0 said nothing", 2)
    assert row.went_on == "it failed; Resume continues after iteration 40"


def test_a_browser_is_told_which_marks_have_a_cost(run: Run) -> None:
    services.record_recovery(run, from_dict(RECOVERED))
    assert {mark["costs"] for mark in snapshot(run.pk)["marks"]} == {False, True}


def test_the_total_of_what_has_no_time_is_no_time(run: Run, client: Client, world: Any) -> None:
    """It said 0.0 s under a row that says it is not known."""
    services.fail_run(run, "Broken.")
    incidents = incidents_of(Run.objects.get(pk=run.pk))
    assert (incidents.count, [row.lost_s for row in incidents.rows]) == (1, [None])
    assert (incidents.lost_s, incidents.share) == (None, None)
    client.force_login(world.users["viewer"])
    page = client.get(f"/runs/{run.pk}/").content.decode()
    total = page[page.index('id="incidents"') :].partition("<tfoot>")[2].partition("</tfoot>")[0]
    assert '<td class="num">–</td>' in total
