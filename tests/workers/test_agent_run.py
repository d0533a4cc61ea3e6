"""A node agent from dispatch to events, under its own broker user, with a broker that goes away."""

import hashlib
import json
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
import redis

from engine.inputs import parse
from engine.job.job import TrainJob
from tests.waiting import LIMIT_S, has_ended, until
from tests.workers.launching import JOB, spec
from webapp.inventory.dispatch import BrokerDown, Dispatcher
from webapp.servers import EmbeddedServers
from webapp.servers.acl import drop_node_user, set_node_user

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture
def broker() -> Iterator[EmbeddedServers]:
    with tempfile.TemporaryDirectory(prefix="meridian-test-") as folder:
        Path(folder).chmod(0o755)
        with EmbeddedServers(Path(folder), ("valkey",)) as servers:
            yield servers


@pytest.fixture
def client(broker: EmbeddedServers) -> Iterator[redis.Redis]:
    with redis.Redis.from_url(broker.servers[0].url, decode_responses=True) as client:
        set_node_user(client, "a", hashlib.sha256(b"pw").hexdigest())
        client.execute_command("ACL", "LOG", "RESET")
        yield client


@pytest.fixture
def dispatcher(broker: EmbeddedServers) -> Iterator[Dispatcher]:
    dispatcher = Dispatcher(broker.servers[0].url)
    yield dispatcher
    dispatcher.close()


def environment(broker: EmbeddedServers) -> dict[str, str]:
    return {
        **os.environ,
        "MERIDIAN_NODE": "a",
        "MERIDIAN_BROKER_URL": f"redis://node-a:pw@127.0.0.1:{broker.servers[0].port}/0",
        "MERIDIAN_NODE_GPUS": "2",
        "MERIDIAN_NODE_DEVICE": "cpu",
        "MERIDIAN_NODE_HOST": "127.0.0.1",
        "MERIDIAN_VAR": str(broker.var),
    }


@pytest.fixture
def agent(broker: EmbeddedServers, client: redis.Redis) -> Iterator[subprocess.Popen[bytes]]:
    module = "tests.workers.agent_with_fake_ranks"
    child = subprocess.Popen([sys.executable, "-m", module], cwd=ROOT, env=environment(broker))
    yield child
    child.kill()
    child.wait()


def events(client: redis.Redis, kind: str) -> list[dict]:
    rows = [json.loads(fields["e"]) for _, fields in client.xrange("node:a:events")]
    return [event for event in rows if event["kind"] == kind]


def keeps_on_disk(broker: EmbeddedServers) -> bool:
    """Whether the agent has found out that the broker is away, or refuses it."""
    return any(file.stat().st_size for file in broker.var.glob("**/spool/*"))


def states(client: redis.Redis) -> list[str]:
    return [event["state"] for event in events(client, "rank") if event["rank"] == 0]


def test_from_dispatch_to_the_last_event(
    agent: subprocess.Popen[bytes], client: redis.Redis, dispatcher: Dispatcher
) -> None:
    dispatcher.send("a", "workers.start_ranks", {"spec": spec().to_json()})
    until(lambda: len(events(client, "spans")) > 20)
    ranks = [{"run": "r1", "generation": 1, "rank": n, "pid": None, "state": "running"} for n in (0, 1)]
    beat = until(lambda: next((b for b in events(client, "heartbeat") if b["ranks"] == ranks), None))
    assert (beat["node"], beat["gpus"], beat["device"], beat["lost"]) == ("a", 2, "cpu", 0)
    dispatcher.send("a", "workers.stop_ranks", {"run": "r1", "generation": 1, "grace_s": 1})
    until(lambda: "stopped" in states(client))
    assert states(client) == ["starting", "ready", "running", "stopped"]
    until(lambda: client.llen("node:a:node.a") == 0)
    assert client.execute_command("ACL", "LOG") == []  # nothing that the agent needs is refused
    assert all(key.startswith("node:a:") for key in client.scan_iter())


def test_no_event_is_lost_and_tasks_go_on_when_the_broker_is_killed(
    agent: subprocess.Popen[bytes], client: redis.Redis, dispatcher: Dispatcher, broker: EmbeddedServers
) -> None:
    dispatcher.send("a", "workers.start_ranks", {"spec": spec().to_json()})
    until(lambda: len(events(client, "spans")) > 20)
    child = broker.servers[0].child
    assert child is not None
    child.kill()
    child.wait()
    with pytest.raises(BrokerDown, match="node a"):
        dispatcher.send("a", "workers.stop_ranks", {"run": "r1", "generation": 1, "grace_s": 1})
    until(lambda: keeps_on_disk(broker))
    broker.restart("valkey")
    until(lambda: any(e["iteration"] > 600 for e in events(client, "spans")))
    dispatcher.send("a", "workers.stop_ranks", {"run": "r1", "generation": 1, "grace_s": 1})
    until(lambda: "stopped" in states(client))
    last = next(event for event in events(client, "rank") if event["state"] == "stopped")
    seen = {event["iteration"] for event in events(client, "spans")}
    assert seen == set(range(int(last["detail"])))
    assert client.execute_command("ACL", "LOG") == []


def test_sigint_stops_the_ranks_and_sends_the_rest(
    agent: subprocess.Popen[bytes], client: redis.Redis, dispatcher: Dispatcher
) -> None:
    dispatcher.send("a", "workers.start_ranks", {"spec": spec().to_json()})
    until(lambda: "running" in states(client))
    agent.send_signal(signal.SIGINT)
    assert agent.wait(LIMIT_S) == 0
    assert states(client)[-1] == "stopped"
    last = next(event for event in events(client, "rank") if event["state"] == "stopped")
    assert len(events(client, "spans")) == int(last["detail"])


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_ends_an_agent_whose_broker_is_away(
    agent: subprocess.Popen[bytes],
    client: redis.Redis,
    dispatcher: Dispatcher,
    broker: EmbeddedServers,
    number: signal.Signals,
) -> None:
    dispatcher.send("a", "workers.start_ranks", {"spec": spec().to_json()})
    until(lambda: len(events(client, "spans")) > 20)
    child = broker.servers[0].child
    assert child is not None
    child.kill()
    child.wait()
    until(lambda: keeps_on_disk(broker))
    agent.send_signal(number)
    assert agent.wait(LIMIT_S) == 0


def test_a_second_agent_of_the_node_is_refused(
    agent: subprocess.Popen[bytes], client: redis.Redis, broker: EmbeddedServers
) -> None:
    until(lambda: bool(events(client, "heartbeat")))
    second = subprocess.run(
        [sys.executable, "-m", "workers.agent"],
        cwd=ROOT,
        env=environment(broker),
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
        check=False,
    )
    assert second.returncode == 2
    assert f"process {agent.pid}" in second.stderr.strip().splitlines()[-1]


def test_an_agent_whose_user_was_forgotten_comes_back_when_it_is_known_again(
    agent: subprocess.Popen[bytes], client: redis.Redis, dispatcher: Dispatcher, broker: EmbeddedServers
) -> None:
    dispatcher.send("a", "workers.start_ranks", {"spec": spec().to_json()})
    until(lambda: len(events(client, "spans")) > 20)
    drop_node_user(client, "a")
    until(lambda: keeps_on_disk(broker))
    assert agent.poll() is None  # and its ranks run on
    set_node_user(client, "a", hashlib.sha256(b"pw").hexdigest())
    dispatcher.send("a", "workers.stop_ranks", {"run": "r1", "generation": 1, "grace_s": 1})
    until(lambda: "stopped" in states(client))
    last = next(event for event in events(client, "rank") if event["state"] == "stopped")
    seen = {event["iteration"] for event in events(client, "spans")}
    assert seen == set(range(int(last["detail"])))


def started(broker: EmbeddedServers) -> subprocess.Popen[bytes]:
    return subprocess.Popen([sys.executable, "-m", "workers.agent"], cwd=ROOT, env=environment(broker))


def living(pids: set[int]) -> set[int]:
    return {pid for pid in pids if not has_ended(pid)}


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_ranks_outlive_their_agent_and_the_next_one_takes_them_over(
    client: redis.Redis, dispatcher: Dispatcher, broker: EmbeddedServers, number: signal.Signals
) -> None:
    """Real ranks: no iteration is missing, none is told as failed, and a stop still ends them."""
    agent = started(broker)
    try:
        job = parse(TrainJob, {**JOB, "steps": 1_000_000})
        dispatcher.send("a", "workers.start_ranks", {"spec": spec(job=job).to_json()})
        until(lambda: len(events(client, "step")) > 5)
        pids = {event["pid"] for event in events(client, "rank")}
        assert len(pids) == 2
        agent.send_signal(number)
        agent.wait(LIMIT_S)
        before_steps = len(events(client, "step"))
        assert living(pids) == pids
        ledger = json.loads((broker.var / "agents" / "a" / "runs.json").read_text())
        assert {state for state, *_ in ledger["r1"]["ranks"].values()} == {"running"}
        agent = started(broker)
        until(lambda: len(events(client, "step")) > before_steps + 5)
        assert living(pids) == pids
        dispatcher.send("a", "workers.stop_ranks", {"run": "r1", "generation": 1, "grace_s": 5})
        until(lambda: "stopped" in states(client))
        until(lambda: not living(pids))
    finally:
        agent.send_signal(signal.SIGINT)
        agent.wait(LIMIT_S)
    assert "failed" not in states(client)
    steps = {event["iteration"] for event in events(client, "step")}
    assert steps == set(range(max(steps) + 1))
    until(lambda: not [*broker.var.glob("agents/a/ranks/*/shim*")])


def test_others_read_nothing_of_an_agent(
    client: redis.Redis, dispatcher: Dispatcher, broker: EmbeddedServers
) -> None:
    """Whatever the umask: logs of ranks may quote data, and a ledger says what runs."""
    before = os.umask(0)
    try:
        agent = started(broker)
    finally:
        os.umask(before)
    try:
        dispatcher.send("a", "workers.start_ranks", {"spec": spec().to_json()})
        until(lambda: "finished" in states(client))
    finally:
        agent.send_signal(signal.SIGINT)
        agent.wait(LIMIT_S)
    folder = broker.var / "agents" / "a"
    assert folder.stat().st_mode & 0o077 == 0
    files = {path.name: path.stat().st_mode & 0o077 for path in folder.rglob("*") if path.is_file()}
    files.pop("shim", None)  # an address, gone with its shim
    assert {"runs.json", "lock", "host.log", "rank-0.log"} <= files.keys()
    assert {name for name, mode in files.items() if mode} == set()
