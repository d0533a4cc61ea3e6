"""A Valkey that runs and does not answer: it is said, and our own is ended and started again."""

import io
import signal
import socket
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
import redis

from tests.waiting import until
from webapp.servers import EmbeddedServers
from webapp.servers.pulse import Pulse
from webapp.servers.valkey import Valkey
from webapp.supervisor.console import Console
from webapp.supervisor.supervisor import Supervisor


@pytest.fixture
def servers() -> Iterator[EmbeddedServers]:
    with tempfile.TemporaryDirectory(prefix="meridian-test-") as folder:
        Path(folder).chmod(0o755)
        with EmbeddedServers(Path(folder), ("valkey",)) as servers:
            yield servers


def valkey_of(servers: EmbeddedServers) -> Valkey:
    (server,) = servers.servers
    assert isinstance(server, Valkey)
    return server


def test_a_broker_that_hangs_is_named_ended_and_started_again_with_its_data(
    servers: EmbeddedServers, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("webapp.supervisor.supervisor.SAY_HUNG_AFTER_S", 0.5)
    monkeypatch.setattr("webapp.supervisor.supervisor.END_HUNG_AFTER_S", 2.0)
    out = io.StringIO()
    supervisor = Supervisor(Console(out), servers)
    valkey = valkey_of(servers)
    with redis.Redis.from_url(valkey.url) as client:
        client.set("kept", 1)
    assert valkey.child is not None
    first = valkey.child.pid
    valkey.child.send_signal(signal.SIGSTOP)
    supervisor.watch(until=lambda: "valkey runs again" in out.getvalue())
    lines = [line.partition("| ")[2] for line in out.getvalue().splitlines()]
    assert lines[0].startswith("valkey has not answered for")
    assert lines[1].endswith("it is ended and started again")
    assert lines[2].startswith("valkey died with signal SIGKILL")
    assert valkey.child.pid != first
    with redis.Redis.from_url(valkey.url) as client:
        assert client.get("kept") == b"1"


def test_a_broker_that_pauses_is_left_alone(
    servers: EmbeddedServers, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("webapp.supervisor.supervisor.SAY_HUNG_AFTER_S", 0.5)
    monkeypatch.setattr("webapp.supervisor.supervisor.END_HUNG_AFTER_S", 3600.0)
    out = io.StringIO()
    supervisor = Supervisor(Console(out), servers)
    child = valkey_of(servers).child
    assert child is not None
    child.send_signal(signal.SIGSTOP)
    supervisor.watch(until=lambda: "has not answered" in out.getvalue())
    child.send_signal(signal.SIGCONT)
    supervisor.watch(until=lambda: "valkey answers again" in out.getvalue())
    assert child.poll() is None


def test_a_broker_in_a_script_owes_an_answer(servers: EmbeddedServers) -> None:
    """It does answer, -BUSY, to everybody."""
    valkey = valkey_of(servers)
    with redis.Redis.from_url(valkey.url, socket_timeout=1) as client:
        client.config_set("busy-reply-threshold", 100)
        with pytest.raises(redis.TimeoutError):
            client.eval("while true do end", 0)
    pulse = Pulse(valkey.port, valkey.password)
    until(lambda: pulse.silent_s() > 1)
    with redis.Redis.from_url(valkey.url) as client:
        client.script_kill()
    until(lambda: pulse.silent_s() == 0.0)
    pulse.close()


def test_time_in_which_the_supervisor_was_stopped_does_not_count(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [100.0]
    monkeypatch.setattr("webapp.servers.pulse.time.monotonic", lambda: now[0])
    with socket.create_server(("127.0.0.1", 0)) as deaf:
        pulse = Pulse(deaf.getsockname()[1], "x")
        now[0] += 5
        assert pulse.silent_s() == 1.0
        now[0] += 3600
        assert pulse.silent_s() == 2.0
        now[0] += 0.25
        assert pulse.silent_s() == 2.25
        pulse.close()
