"""Whatever is killed while the demo trains: people are told in words, nothing acknowledged is lost."""

import signal
import time
from contextlib import suppress

import psutil
import pytest

from tests.demo.harness import Client, Demo, wait_for
from tests.demo.watching import Watcher
from tests.demo_alone.own import (
    RANKS,
    agent_of,
    all_free,
    complete,
    ended,
    gpus_held,
    killed,
    progress,
    query,
    rank_processes,
    ready,
    relaunched,
    server_pid,
    shim_of,
    state_of,
    trains_on,
)
from tests.waiting import LIMIT_S, has_ended

pytestmark = [pytest.mark.long, pytest.mark.timeout(900)]

NODE = "us-central-1"


@pytest.mark.parametrize("server", ["valkey", "postgres"])
def test_a_killed_server_comes_back_and_no_iteration_is_missing(
    shared: Demo, client: Client, run: str, server: str
) -> None:
    old = server_pid(shared, server)
    psutil.Process(old).kill()
    wait_for(
        f"{server} started again",
        lambda: (
            any(f"{server} runs again" in line for line in shared.lines[-400:])
            and server_pid(shared, server) != old
        ),
        60,
    )
    trains_on(client, run)
    complete(shared, run)
    assert state_of(client, run)["status"] == "running"


def _ranks_are_those_of(demo: Demo, run: str) -> None:
    """Each rank of `run` has one process, the one that the database names, and there is no other."""
    rows = query(demo, "select pid from jobs_rankstate where run_id = %s", int(run))
    assert sorted(row[0] for row in rows) == sorted(rank.pid for rank in rank_processes(demo))
    assert gpus_held(demo) == len(rows) == RANKS


@pytest.mark.parametrize("part", ["web", "ingest", "control", "beat"])
def test_a_killed_part_of_the_site_comes_back_and_nothing_is_lost_or_doubled(
    shared: Demo, client: Client, run: str, part: str
) -> None:
    marks = "select text, count(*) from jobs_runevent where run_id = %s group by text"
    with Watcher(client, run) as watcher:
        wait_for("the watcher's first picture", lambda: watcher.newest >= 0, 60)
        marks_before = query(shared, marks, int(run))
        killed(shared, part)
        trains_on(client, run)
        reached = progress(client, run)
        wait_for(f"the watcher at iteration {reached}", lambda: watcher.newest >= reached, 60)
        assert state_of(client, run)["status"] == "running"
        wait_for("the site ready", lambda: ready(client), 60)
        assert watcher.faults == []
        assert watcher.connected >= (2 if part == "web" else 1)
        newest = watcher.newest
        first = min(watcher.iterations)
        gaps = [n for n in range(first, newest) if watcher.iterations.get(n, {}).get("loss") is None]
        assert gaps == []
    complete(shared, run)
    _ranks_are_those_of(shared, run)
    # No state of the run was told twice, and none that it did not have.
    assert sorted(query(shared, marks, int(run))) == sorted(marks_before)


@pytest.mark.parametrize("part", ["web", "ingest", "control", "beat"])
def test_a_part_killed_right_after_a_stop_or_a_launch_does_not_lose_or_double_it(
    shared: Demo, client: Client, run: str, part: str
) -> None:
    client.post(f"/runs/{run}/cancel/")
    killed(shared, part)
    wait_for("the site", lambda: progress(client, run) >= 0, 60)
    state = ended(client, run, 60)
    assert state["status"] == "cancelled", state
    all_free(shared)
    complete(shared, run)
    again = relaunched(client)
    killed(shared, part)
    wait_for("the next run to train", lambda: progress(client, again) >= 3, 200)
    _ranks_are_those_of(shared, again)
    complete(shared, again)


def test_a_killed_search_worker_is_replaced_and_its_comparison_answered(shared: Demo, client: Client) -> None:
    """Ten sweeps of a solver keep the worker busy when it is killed; the next begins anew and ends."""
    form = {
        "name": "killed in between",
        "policies": "optimal",
        "stages_per_dc": "4, 4",
        "pipelines": 1,
        "microbatches": 16,
        "unit": "slot",
        "forward": 1,
        "backward": 1,
        "weight": 1,
        "wan_latency": 2,
        "wan_transfer": 1,
        "time_limit_s": 3,
        "parameter": "wan.latency",
        "values": "0, 1, 2, 3, 4",
    }
    ((team,),) = query(shared, "select id from accounts_team limit 1")
    client.post("/schedules/new/", {**form, "team": team})
    state = "select state from computations_computation where name = 'killed in between'"
    wait_for("the search to run", lambda: query(shared, state) == [("running",)], 30)
    killed(shared, "search")
    wait_for("the answer", lambda: query(shared, state) == [("done",)], 120)
    rows = "select jsonb_array_length(answer->'rows') from computations_computation where name = %s"
    assert query(shared, rows, form["name"]) == [(5,)]


def test_a_killed_rank_fails_its_run_in_its_own_words_and_frees_the_gpus(
    shared: Demo, client: Client, run: str
) -> None:
    (victim,) = query(
        shared,
        "select pid from jobs_rankstate where run_id = %s and rank = 5",
        int(run),
    )
    psutil.Process(victim[0]).kill()
    state = ended(client, run, 60)
    assert state["status"] == "failed", state
    assert "signal" in state["reason"].lower() or "SIGKILL" in state["reason"], state
    assert "P1 S6" in state["reason"], state  # pages count stages from one
    all_free(shared)
    complete(shared, run)
    again = relaunched(client)
    wait_for("the next run to train on the same GPUs", lambda: progress(client, again) >= 2, 150)


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_ranks_train_on_without_their_agent_and_the_next_one_takes_them_over(
    shared: Demo, client: Client, run: str, number: signal.Signals
) -> None:
    agent = agent_of(shared, NODE)
    before = {rank.pid for rank in rank_processes(shared)}
    agent.send_signal(number)
    wait_for("the agent again", lambda: _agent_again(shared, agent.pid), 60)
    trains_on(client, run)
    assert state_of(client, run)["status"] == "running"
    assert {rank.pid for rank in rank_processes(shared)} == before
    complete(shared, run)
    _ranks_are_those_of(shared, run)
    client.post(f"/runs/{run}/cancel/")
    assert ended(client, run, 60)["status"] == "cancelled"
    all_free(shared)


def test_a_killed_shim_fails_its_run_by_name_without_orphans(shared: Demo, client: Client, run: str) -> None:
    shim = shim_of(shared, NODE)
    below = shim.children(recursive=True)
    assert below
    shim.kill()
    wait_for("no orphan", lambda: all(has_ended(process.pid) for process in below), 30)
    state = ended(client, run, 60)
    assert state["status"] == "failed", state
    assert NODE in state["reason"], state
    all_free(shared)
    complete(shared, run)


def _agent_again(demo: Demo, old: int) -> bool:
    try:
        return agent_of(demo, NODE).pid != old
    except AssertionError:
        return False


def test_a_stopped_agent_is_silent_while_its_ranks_train_on(shared: Demo, client: Client, run: str) -> None:
    agent = agent_of(shared, NODE)
    agent.suspend()
    try:
        wait_for("the node silent", lambda: 'data-state="silent"' in client.get("/nodes/"), 60)
        away = time.time() + 20  # twice as long as a node may be silent
        while time.time() < away:
            assert state_of(client, run)["status"] == "running"
            time.sleep(1)
    finally:
        agent.resume()
    wait_for("the node online", lambda: 'data-state="silent"' not in client.get("/nodes/"), 30)
    trains_on(client, run)
    complete(shared, run)
    assert state_of(client, run)["status"] == "running"


def test_a_broker_that_stays_away_until_the_supervisor_replaces_it(
    shared: Demo, client: Client, run: str
) -> None:
    broker = psutil.Process(server_pid(shared, "valkey"))
    with Watcher(client, run) as watcher:
        wait_for("the watcher's first picture", lambda: watcher.newest >= 0, 60)
        broker.suspend()  # it takes connections and never answers: worse than one that is gone
        away_from = time.time()
        try:
            wait_for("the line on every page", lambda: "broker does not answer" in client.get("/runs/"), 30)
            wait_for("/readyz to say so", lambda: not ready(client), 30)
            while server_pid(shared, "valkey") == broker.pid:  # after 30 s another takes its place
                assert state_of(client, run)["status"] == "running"
                assert time.time() < away_from + LIMIT_S, "nobody replaced the broker"
                time.sleep(1)
        finally:
            away_to = time.time()
            with suppress(psutil.NoSuchProcess):
                broker.resume()
        wait_for("no such line any more", lambda: "broker does not answer" not in client.get("/runs/"), 60)
        trains_on(client, run)
        reached = progress(client, run)
        wait_for(f"the watcher at iteration {reached}", lambda: watcher.newest >= reached, 60)
        assert watcher.faults == []
    complete(shared, run, seconds=120)
    trained = query(
        shared,
        "select count(*) from live_iterationstat where run_id = %s and start between %s and %s",
        int(run),
        away_from,
        away_to,
    )
    assert trained[0][0] >= 10, "training went on meanwhile"
    wait_for("the site ready", lambda: ready(client), 60)
    client.post(f"/runs/{run}/cancel/")
    assert ended(client, run, 60)["status"] == "cancelled"
    all_free(shared)
