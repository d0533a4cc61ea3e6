"""Threads of prefill give way to training's only where that can be taken back."""

import os
import sys
import threading

import pytest

from engine.serve import yielding

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="Linux alone has the means")


def policies(monkeypatch: pytest.MonkeyPatch, *refused: int) -> list[int]:
    """What is asked of the system from now on; policies in `refused` it does not give."""
    os_policies: list[int] = []

    def schedule(_thread: int, policy: int, _param: object) -> None:
        os_policies.append(policy)
        if policy in refused:
            raise PermissionError(1, "not permitted")

    monkeypatch.setattr(os, "sched_setscheduler", schedule)
    yielding._can_take_back.cache_clear()
    return os_policies


@pytest.fixture(autouse=True)
def _forget() -> object:
    yield
    yielding._can_take_back.cache_clear()


def test_where_it_could_not_be_taken_back_no_thread_gives_way(monkeypatch: pytest.MonkeyPatch) -> None:
    os_policies = policies(monkeypatch, os.SCHED_OTHER)
    assert not yielding.give_way(threading.get_native_id())
    assert os_policies == [os.SCHED_IDLE, os.SCHED_OTHER], "of a thread that was made to try"
    assert not yielding.give_way(threading.get_native_id())
    assert len(os_policies) == 2, "tried once"


def test_where_nothing_is_allowed_all_goes_on(monkeypatch: pytest.MonkeyPatch) -> None:
    policies(monkeypatch, os.SCHED_IDLE, os.SCHED_OTHER, os.SCHED_BATCH)
    assert not yielding.give_way(threading.get_native_id())
    yielding.take_part(threading.get_native_id())
    yielding.yield_wakeups()


def test_elsewhere_nothing_is_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    os_policies = policies(monkeypatch)
    monkeypatch.setattr(yielding, "_IS_LINUX", False)
    assert not yielding.give_way(0)
    yielding.take_part(0)
    yielding.yield_wakeups()
    assert os_policies == []
