"""The whole product ends, by Ctrl-C or killed, and starts again: what its run says and does by then."""

import signal
import threading
from collections.abc import Iterator

import pytest

from tests.demo.harness import Client, Demo, children, wait_for
from tests.demo_alone.own import (
    RANKS,
    agent_of,
    all_free,
    complete,
    demo_of_its_own,
    first_run,
    left_of,
    operator_of,
    query,
    rank_processes,
    state_of,
    trains_on,
)

pytestmark = [pytest.mark.long, pytest.mark.timeout(600)]

# Ranks that were launched so need not be waited for as long as a supervisor on a user's machine gives them.
SHORT = {"MERIDIAN_KEEP_RANKS_S": "3"}
LONG = {"MERIDIAN_KEEP_RANKS_S": "300"}  # a busy machine starts a site again in more than a demo's minute


@pytest.fixture(scope="module")
def demo() -> Iterator[Demo]:
    """One that each test starts, if it does not run, and ends."""
    with demo_of_its_own() as demo:
        yield demo


def training(demo: Demo) -> tuple[Client, str]:
    """Somebody who is logged in, and the run that trains."""
    if demo.process is None or demo.process.poll() is not None:
        demo.start(settings=SHORT)
    client = operator_of(demo)
    return client, first_run(demo, client, seconds=240)


def _kept(demo: Demo) -> dict[str, list[tuple[object, ...]]]:
    return {
        "plans": query(demo, "select id, name from planning_plan order by id"),
        "users": query(demo, "select id, username, password from accounts_user order by id"),
        "runs": query(demo, "select id from jobs_run order by id"),
        "iterations": query(
            demo,
            "select run_id, iteration, loss from live_iterationstat where loss is not null order by 1, 2",
        ),
    }


def _kill(demo: Demo) -> None:
    assert demo.process
    demo.process.send_signal(signal.SIGKILL)
    demo.process.wait(5)


def _without_ranks(demo: Demo) -> list[str]:
    """What is left of the demo besides its ranks, their hosts and shims."""
    ranks = {process.pid for shim in demo.shims() for process in (shim, *children(shim, recursive=True))}
    return [line for line in left_of(demo) if int(line.split()[0]) not in ranks]


def test_a_run_goes_on_when_its_killed_supervisor_starts_again(demo: Demo) -> None:
    demo.start(settings=LONG)
    client = operator_of(demo)
    run = first_run(demo, client)
    before, ranks = _kept(demo), {rank.pid for rank in rank_processes(demo)}
    assert len(ranks) == RANKS
    _kill(demo)
    wait_for("its own processes to end", lambda: not _without_ranks(demo), 60)
    demo.start(settings=SHORT)
    after = _kept(demo)
    for kind, rows in before.items():
        assert set(rows) <= set(after[kind]), kind
    client = operator_of(demo)
    trains_on(client, run, seconds=240)
    assert state_of(client, run)["status"] == "running"
    assert {rank.pid for rank in rank_processes(demo)} == ranks
    complete(demo, run)


def test_ctrl_c_stops_the_run_and_the_next_start_says_so(demo: Demo) -> None:
    _, run = training(demo)
    slow = agent_of(demo, "us-west-1")  # the others' ranks end before it hears of the stop
    slow.suspend()
    threading.Timer(1.0, slow.resume).start()
    status, alive = demo.interrupt(60)
    assert status in (0, 130)
    assert not alive
    assert not left_of(demo)
    client, again = training(demo)
    ended = state_of(client, run)
    assert (ended["status"], ended["status_label"]) == ("cancelled", "Stopped"), ended
    assert "the agents of its 3 nodes were shut down" in ended["reason"]
    assert int(again) > int(run)
    (failed,) = query(demo, "select count(*) from jobs_run where status = 'failed'")[0]
    assert failed == 0


def test_ranks_end_when_their_killed_supervisor_does_not_start_again(demo: Demo) -> None:
    training(demo)
    _kill(demo)
    wait_for("nothing left", lambda: not left_of(demo), 180)
    client, again = training(demo)
    client.post(f"/runs/{again}/cancel/")
    all_free(demo)
