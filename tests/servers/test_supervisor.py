"""The supervisor over small commands: what dies is named and restarted, a stop leaves nothing."""

import io
import os
import signal
import socket
import subprocess
import sys
import textwrap
from dataclasses import replace
from pathlib import Path

import pytest

from tests.waiting import LIMIT_S, has_ended, until
from webapp.servers.errors import ServersError
from webapp.supervisor.console import Console
from webapp.supervisor.given_files import SECRET
from webapp.supervisor.services import AGENTS, WEB, Service, agent_services, read_env
from webapp.supervisor.supervisor import Failed, Supervisor

ROOT = Path(__file__).resolve().parents[2]


def service(name: str, code: str, stage: int = WEB, patience_s: float = LIMIT_S) -> Service:
    argv = (sys.executable, "-u", "-c", textwrap.dedent(code))
    return Service(name=name, argv=argv, env=dict(os.environ), stage=stage, patience_s=patience_s)


def test_a_child_leads_a_group_in_the_session_of_its_parent() -> None:
    """Ctrl-C passes it by, and what it gives way to may be any other part of the demo (autogroup)."""
    out = io.StringIO()
    supervisor = Supervisor(Console(out))
    print_ids = (
        "import os; print('ids', os.getsid(0), os.getpgrp() == os.getpid(), flush=True); os.read(0, 1)"
    )
    supervisor.start([service("child", print_ids)])
    try:
        supervisor.watch(until=lambda: "ids" in out.getvalue())
    finally:
        supervisor.stop()
    assert f"ids {os.getsid(0)} True" in out.getvalue()


def test_what_dies_is_named_quoted_and_started_again() -> None:
    out = io.StringIO()
    supervisor = Supervisor(Console(out))
    supervisor.start([service("frail", "print('my last words'); raise SystemExit(7)")])
    try:
        supervisor.watch(until=lambda: out.getvalue().count("frail      | my last words") >= 2)
    finally:
        supervisor.stop()
    assert "frail died with status 7; again in 0.5 s" in out.getvalue()
    assert "its last lines: my last words" in out.getvalue()


def test_what_keeps_dying_stops_everything(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("webapp.supervisor.supervisor.MOST_DEATHS", 2)
    out = io.StringIO()
    supervisor = Supervisor(Console(out))
    ranks = """
        import signal, sys, time
        signal.signal(signal.SIGTERM, lambda *_: sys.exit("ranks are left"))
        print("ready", flush=True)
        time.sleep(600)
    """
    agent = replace(service("agent", ranks, AGENTS), stop_signal=signal.SIGINT)
    supervisor.start([agent])
    supervisor.watch(until=lambda: "ready" in out.getvalue())
    supervisor.start([service("frail", "raise SystemExit(7)")])
    with pytest.raises(Failed):
        supervisor.watch()
    supervisor.stop()
    assert "frail died 2 times in a row, last with status 7: stopping everything" in out.getvalue()
    assert "ranks are left" in out.getvalue()


def test_a_part_of_a_site_that_runs_is_never_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("webapp.supervisor.supervisor.MOST_DEATHS", 2)
    monkeypatch.setattr("webapp.supervisor.children.LONGEST_PAUSE_S", 0.02)
    supervisor = Supervisor(Console(out := io.StringIO()))
    supervisor.start([service("frail", "raise SystemExit(7)")])
    try:
        supervisor.watch(until=lambda: out.getvalue().count("frail died") >= 5, gives_up=False)
    finally:
        supervisor.stop()


def test_who_connects_while_it_is_down_is_answered_by_the_next() -> None:
    with socket.socket() as bound:
        bound.bind(("127.0.0.1", 0))
        address = bound.getsockname()
        answers = """
            import os, socket
            accepted, _ = socket.socket(fileno=0).accept()
            accepted.sendall(str(os.getpid()).encode())
            accepted.close()
            os._exit(1)
        """
        frail = replace(service("frail", answers), listening=bound)
        supervisor = Supervisor(Console(out := io.StringIO()))
        supervisor.start([frail])
        try:
            first = socket.create_connection(address)
            supervisor.watch(until=lambda: "frail died" in out.getvalue())
            meanwhile = socket.create_connection(address)
            supervisor.watch(until=lambda: out.getvalue().count("frail died") == 2)
            assert first.recv(99) != meanwhile.recv(99) != b""
        finally:
            supervisor.stop()
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(address)


def test_nothing_but_the_web_servers_own_socket_keeps_the_port() -> None:
    """A web process that is still ending would keep the next supervisor from starting."""
    code = "import os; from webapp.edge.uvicorn_server import _given; "
    code += "given = _given(); print(given.getsockname()[1], os.readlink('/proc/self/fd/0'))"
    if not sys.platform.startswith("linux"):
        pytest.skip("no /proc here")
    with socket.create_server(("127.0.0.1", 0)) as listening:
        done = subprocess.run([sys.executable, "-c", code], stdin=listening, capture_output=True, text=True)  # type: ignore[call-overload]
        assert done.stdout.split() == [str(listening.getsockname()[1]), os.devnull], done.stderr


def test_a_command_runs_beside_others_and_ends_with_the_supervisor() -> None:
    out = io.StringIO()
    supervisor = Supervisor(Console(out))
    beside = supervisor.begin(service("model", "print('made'); raise SystemExit(3)"))
    endless = supervisor.begin(service("endless", "import time; time.sleep(600)"))
    supervisor.run_once(service("first", "print('done')"))
    assert supervisor.finish(beside) == 3
    assert "model      | made" in out.getvalue()
    assert endless.process
    supervisor.stop()
    pid = endless.process.pid
    until(lambda: has_ended(pid))


def test_agents_are_stopped_before_the_site_and_the_stubborn_are_killed() -> None:
    polite = """
        import signal, sys, time
        signal.signal(signal.SIGTERM, lambda *_: (print("bye"), sys.exit(0)))
        print("up")
        time.sleep(600)
    """
    stubborn = (
        'import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); print("up"); time.sleep(600)'
    )
    out = io.StringIO()
    supervisor = Supervisor(Console(out))
    supervisor.start(
        [service("site", polite), service("agent", polite, AGENTS), service("mule", stubborn, AGENTS, 0.5)]
    )
    supervisor.watch(until=lambda: out.getvalue().count("| up") == 3)
    children = [child.process.pid for child in supervisor._children if child.process]
    supervisor.stop()
    text = out.getvalue()
    assert text.index("agent      | bye") < text.index("site       | bye")
    until(lambda: all(map(has_ended, children)))


HOLDER = """
import sys
from webapp.supervisor.console import Console
from webapp.supervisor.services import Service
from webapp.supervisor.supervisor import Interrupted, Supervisor
import os
supervisor = Supervisor(Console())
supervisor.install_signals()
code = "import os, time; print('pid', os.getpid()); time.sleep(600)"
one = Service(name="one", argv=(sys.executable, "-u", "-c", code), env=dict(os.environ), stage=0)
supervisor.start([one])
try:
    supervisor.watch()
except Interrupted:
    supervisor.stop()
    print("stopped")
"""


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGKILL])
def test_nothing_is_left_whatever_ends_the_supervisor(number: signal.Signals) -> None:
    holder = subprocess.Popen(
        [sys.executable, "-u", "-c", HOLDER], cwd=ROOT, stdout=subprocess.PIPE, text=True
    )
    assert holder.stdout is not None
    with holder.stdout:
        pid = int(holder.stdout.readline().split()[-1])
        holder.send_signal(number)
        holder.wait(LIMIT_S)
        until(lambda: has_ended(pid))
        assert ("stopped" in holder.stdout.read()) == (number != signal.SIGKILL)


def test_a_port_in_use_is_one_line_before_anything_starts(tmp_path: Path, clean_environment: None) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        done = subprocess.run(
            [sys.executable, "-m", "webapp.supervisor", "--port", str(port)],
            env={**os.environ, "MERIDIAN_VAR": str(tmp_path / "var")},
            cwd=ROOT,
            capture_output=True,
            text=True,
            timeout=LIMIT_S,
            check=False,
        )
    assert done.returncode == 2
    assert done.stderr.startswith(f"meridian: port {port} is in use")
    assert done.stderr.count("\n") == 1
    assert not (tmp_path / "var").exists()


def test_an_agent_gets_its_own_settings_and_none_of_the_sites(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MERIDIAN_EMAIL_PASSWORD", "secret")
    for name in SECRET:
        monkeypatch.setenv(name, "redis://default:secret@10.0.0.5/0")
        monkeypatch.setenv(f"{name}_FILE", "/run/secret")
    (tmp_path / "nodes").mkdir()
    (tmp_path / "nodes" / "a.env").write_text(
        "# of node a\nMERIDIAN_NODE=a\nMERIDIAN_NODE_HOST='127.0.0.1'\n\n"
    )
    (agent,) = agent_services(tmp_path)
    assert (agent.name, agent.stage) == ("a", AGENTS)
    assert agent.env["MERIDIAN_NODE_HOST"] == "127.0.0.1"
    assert not [name for name, value in agent.env.items() if "secret" in value]


def test_a_broken_line_of_an_agents_settings_is_named(tmp_path: Path) -> None:
    (tmp_path / "a.env").write_text("MERIDIAN_NODE=a\nnonsense\n")
    with pytest.raises(ServersError, match=r"a\.env, line 2: must be NAME=value"):
        read_env(tmp_path / "a.env")


class ServersOnAFullDisk:
    """Stands for the embedded servers: no room until `room_mb` says so."""

    var = Path("/var/example")

    def __init__(self) -> None:
        self.room_mb = 5
        self.servers: list[object] = []

    def free_mb(self) -> int:
        return self.room_mb

    def stop(self) -> None: ...


def test_what_dies_on_a_full_disk_waits_for_room_and_is_not_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("webapp.supervisor.supervisor.MOST_DEATHS", 2)
    monkeypatch.setattr("webapp.supervisor.supervisor.LOOK_AT_DISK_S", 0.0)
    out = io.StringIO()
    disk = ServersOnAFullDisk()
    supervisor = Supervisor(Console(out), disk)  # type: ignore[arg-type]
    supervisor.start([service("frail", "raise SystemExit(7)")])
    rounds = iter(range(10_000))

    def room_comes_late() -> bool:
        if "disk full" in out.getvalue() and next(rounds) == 25:
            assert out.getvalue().count("frail") == 1  # named once, and not started again
            disk.room_mb = 150
        return False

    try:
        with pytest.raises(Failed):  # with room it is a death like any other
            supervisor.watch(until=room_comes_late)
    finally:
        supervisor.stop()
    lines = [line.split("| ")[1] for line in out.getvalue().splitlines()]
    assert lines[0].startswith(
        "disk full: 5 MB free under /var/example; frail died and will start again when 100 MB"
    )
    assert lines[1] == "150 MB free again: going on"
    assert any("died 2 times in a row" in line for line in lines[2:])
