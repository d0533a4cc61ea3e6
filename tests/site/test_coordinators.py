"""Prefill coordinators and their seconds: kept once, refused where wrong or another's, added up when old."""

import time
from typing import Any

import pytest
from django.utils import timezone
from hypothesis import HealthCheck, given
from hypothesis import settings as rules
from hypothesis import strategies as st

from tests.events import T0
from tests.site.coordinators import coordinator_event, prefill_event, say
from tests.site.test_tenancy_pages import train
from webapp.jobs.models import Run
from webapp.live.models import PrefillCoordinator, PrefillMinute, PrefillSecond
from webapp.live.services import add_up_prefill


@pytest.fixture
def run(world: Any) -> Any:
    return train(world)


def test_an_open_coordinator_is_used_until_it_closes(run: Any) -> None:
    say(coordinator_event(run))
    coordinator = PrefillCoordinator.objects.usable().get()
    assert (coordinator.dc.name, coordinator.model, coordinator.port) == ("east", "llama-3-8b", 4_000)
    say(coordinator_event(run, state="closed", detail="the run ends"))
    assert not PrefillCoordinator.objects.usable()
    assert PrefillCoordinator.objects.get().detail == "the run ends"


def test_what_was_said_earlier_changes_nothing(run: Any) -> None:
    opened = coordinator_event(run)
    say(coordinator_event(run, state="closed", t=opened["t"] + 1))
    say(opened)
    assert PrefillCoordinator.objects.get().state == "closed"


def test_a_silent_coordinator_and_one_of_a_run_that_ended_are_not_used(run: Any) -> None:
    say(coordinator_event(run), ago_s=60)
    assert not PrefillCoordinator.objects.usable()
    say(prefill_event(run))
    assert PrefillCoordinator.objects.usable()
    Run.objects.filter(pk=run.pk).update(status="failed", finished_at=timezone.now())
    assert not PrefillCoordinator.objects.usable()


@pytest.mark.parametrize(
    "wrong",
    [
        {"generation": 9},
        {"dc": "west"},
        {"dc": 2},
        {"dc": None},
        {"dc": 99},
        {"host": "169.254.169.254"},
        {"port": 0},
        {"port": 70_000},
        {"port": True},
        {"model": ""},
        {"model": 3},
        {"state": "ajar"},
        {"t": "now"},
        {"t": float("nan")},
        {"rank": -1},
    ],
)
def test_a_node_speaks_only_for_itself_and_in_whole_sentences(run: Any, wrong: dict[str, Any]) -> None:
    say(coordinator_event(run, **wrong))
    assert not PrefillCoordinator.objects.exists()


def test_a_run_that_is_not_there_has_no_coordinator(run: Any) -> None:
    say({**coordinator_event(run), "run": "0"}, {**prefill_event(run), "run": str(run.pk + 1)})
    assert not PrefillCoordinator.objects.exists()
    assert not PrefillSecond.objects.exists()


def test_another_node_cannot_close_a_coordinator(run: Any) -> None:
    say(coordinator_event(run))
    say(coordinator_event(run, state="closed"), node="mid-1")
    assert PrefillCoordinator.objects.get().state == "open"


@pytest.mark.parametrize(
    "wrong",
    [
        {"accepted": -1},
        {"accepted": 1.5},
        {"refused": [1]},
        {"refused": {"x" * 41: 1}},
        {"prefill_ms": "1"},
        {"refused": {str(i): 1 for i in range(21)}},
        {"window_s": float("inf")},
        {"slowdown": "much"},
        {"waited_ms": -1.0},
        {"guard_ms": "long"},
    ],
)
def test_a_wrong_second_is_left_out(run: Any, wrong: dict[str, Any]) -> None:
    say(prefill_event(run, **wrong), prefill_event(run, t=T0 + 12.0))
    assert PrefillSecond.objects.get().t == T0 + 12.0


@given(order=st.lists(st.integers(0, 5), min_size=6, max_size=30))
@rules(max_examples=15, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_seconds_are_kept_once_and_add_up_to_the_same_minutes(run: Any, order: list[int]) -> None:
    PrefillSecond.objects.all().delete()
    PrefillMinute.objects.all().delete()
    begin = time.time() // 60 * 60 - 7_200
    reports = [prefill_event(run, t=begin + 25.0 * i, accepted=i, paused=i == 3) for i in range(6)]
    for i in (*order, *range(6)):
        say(reports[i])
    assert PrefillSecond.objects.count() == 6
    assert add_up_prefill(3_600) == 6
    for i in order:  # delivered again after they were added up
        say(reports[i])
    assert not PrefillSecond.objects.exists()
    rows = list(PrefillMinute.objects.order_by("minute"))
    assert [row.accepted for row in rows] == [0 + 1 + 2, 3 + 4, 5]
    assert [row.refused for row in rows] == [{"queue_full": 2 * n, "ttft": n} for n in (3, 2, 1)]
    assert [row.paused_s for row in rows] == [0, 1, 0]
    assert rows[0].prefill_ms == pytest.approx(300)
    assert (rows[0].waited_ms, rows[0].guard_ms) == (pytest.approx(4.5), 2.0)


def test_what_is_new_is_not_added_up(run: Any) -> None:
    say(prefill_event(run))
    assert add_up_prefill(3_600) == 0
    assert PrefillSecond.objects.count() == 1
