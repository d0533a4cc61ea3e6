"""Three hundred browsers open one run at once: none is refused, dropped, or left without events."""

import pytest

from tests.demo.crowd import watch
from tests.demo.harness import Client, Demo
from tests.demo_alone.own import process_of, state_of, trains_on

pytestmark = [pytest.mark.long, pytest.mark.timeout(1200)]

SOCKETS = 300


def test_three_hundred_sockets_at_once(shared: Demo, client: Client, run: str) -> None:
    web, line_count = process_of(shared, "web").pid, len(shared.lines)
    for _ in range(2):  # the second time with what the first one left behind
        crowd = watch(client, f"/ws/runs/{run}/", SOCKETS, listen_s=5)
        assert [seen.fault for seen in crowd if seen.fault] == []
        assert all(seen.connect_s is not None for seen in crowd)
        assert all(seen.snapshot_s is not None for seen in crowd)
        assert all(seen.event_s is not None for seen in crowd)
        # Nothing was lost on the way to any of them, in the first burst either.
        assert sum(seen.gaps for seen in crowd) == 0
    assert process_of(shared, "web").pid == web
    trains_on(client, run)
    assert state_of(client, run)["status"] == "running"
    lines = shared.lines[line_count:]
    wrong = [i for i, line in enumerate(lines) if "Traceback" in line or "PoolTimeout" in line]
    assert not wrong, "\n".join(lines[wrong[0] : wrong[0] + 60])


def test_a_stranger_in_the_crowd_is_turned_away_and_the_others_are_not(
    shared: Demo, client: Client, run: str
) -> None:
    crowd = watch(client, f"/ws/runs/{int(run) + 1000}/", 20, listen_s=0)
    assert all("4404" in seen.fault and seen.snapshot_s is None for seen in crowd)
    assert all(not seen.fault for seen in watch(client, f"/ws/runs/{run}/", 20, listen_s=0))
