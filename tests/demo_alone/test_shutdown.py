"""Ctrl-C of the whole product: what its run says afterwards, and that the next start goes on."""

import threading

import pytest

from tests.demo_alone.own import (
    agent_of,
    all_free,
    demo_of_its_own,
    first_run,
    left_of,
    operator_of,
    query,
    state_of,
)

pytestmark = [pytest.mark.long, pytest.mark.timeout(600)]


def test_ctrl_c_stops_the_run_and_the_next_start_says_so() -> None:
    with demo_of_its_own() as demo:
        demo.start()
        run = first_run(demo, operator_of(demo), iteration=2, seconds=180)
        slow = agent_of(demo, "us-west-1")  # the others' ranks end before it hears of the stop
        slow.suspend()
        threading.Timer(1.0, slow.resume).start()
        status, alive = demo.interrupt(60)
        assert status in (0, 130)
        assert not alive
        assert not left_of(demo)
        demo.lines.clear()
        demo.start()
        client = operator_of(demo)
        ended = state_of(client, run)
        assert (ended["status"], ended["status_label"]) == ("cancelled", "Stopped"), ended
        assert "the agents of its 3 nodes were shut down" in ended["reason"]
        again = first_run(demo, client, iteration=2, seconds=180)
        assert int(again) > int(run)
        (failed,) = query(demo, "select count(*) from jobs_run where status = 'failed'")[0]
        assert failed == 0
        client.post(f"/runs/{again}/cancel/")
        all_free(demo)
