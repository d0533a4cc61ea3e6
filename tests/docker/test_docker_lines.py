"""The scripts of docker/: Valkey keeps the nodes' users over a restart, a node's probe sees its agent."""

import fcntl
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest
import redis

from scripts.dockerfile import parse, substitute
from tests.ports import free_port
from tests.waiting import LIMIT_S
from webapp.servers.acl import set_node_user
from webapp.servers.places import packaged_binaries

ROOT = Path(__file__).resolve().parents[2]


def test_the_parser_reads_what_docker_reads(tmp_path: Path) -> None:
    path = tmp_path / "Dockerfile"
    path.write_text(
        "# comment\nARG V=3\nFROM base:${V} AS one\nRUN a \\\n    # inside\n    && b\n"
        'HEALTHCHECK --interval=5s \\\n  CMD ["x", "y"]\nFROM one\nCOPY --from=one --chown=u:g a b c/\n'
    )
    arguments, (first, second) = parse(path)
    assert arguments == {"V": "3"}
    assert (first.name, first.base, second.name, second.base) == ("one", "base:3", "1", "one")
    run, health = first.instructions
    assert (run.text, run.line, run.argv) == ("a && b", 4, None)
    assert health.flags == {"interval": "5s"}
    copy = second.instructions[0]
    assert (copy.flags, copy.text) == ({"from": "one", "chown": "u:g"}, "a b c/")
    assert substitute("${A}-$B-$C", {"A": "1", "B": "2"}) == "1-2-"
    for wrong in ("FROM a\nONBUILD RUN x", "FROM a\nRUN x \\"):
        path.write_text(wrong)
        with pytest.raises(ValueError, match="line 2"):
            parse(path)


@pytest.fixture
def valkey(tmp_path: Path) -> Callable[[], "tuple[subprocess.Popen[bytes], redis.Redis]"]:
    """Starts docker/valkey.sh on one folder; the image's entry and server are stand-ins of this machine."""
    (tmp_path / "bin").mkdir()
    (tmp_path / "data").mkdir()
    for name, line in (
        ("docker-entrypoint.sh", '"$@"'),
        ("valkey-server", f'{packaged_binaries().valkey_server} "$@"'),
    ):
        (tmp_path / "bin" / name).write_text(f"#!/bin/sh\nexec {line}\n")
        (tmp_path / "bin" / name).chmod(0o755)
    (tmp_path / "password").write_text("a-password")
    port = free_port()

    def start() -> "tuple[subprocess.Popen[bytes], redis.Redis]":
        server = subprocess.Popen(
            ["sh", ROOT / "docker/valkey.sh"],
            stdout=subprocess.DEVNULL,
            env={
                "PATH": f"{tmp_path}/bin:{os.defpath}",
                "VALKEY_DATA": str(tmp_path / "data"),
                "VALKEY_PORT": str(port),
                "VALKEY_PASSWORD_FILE": str(tmp_path / "password"),
            },
        )
        client = redis.Redis(port=port, password="a-password", decode_responses=True)
        deadline = time.monotonic() + LIMIT_S
        while True:
            try:
                client.ping()
                return server, client
            except redis.ConnectionError:
                assert server.poll() is None
                assert time.monotonic() < deadline
                time.sleep(0.05)

    return start


def test_valkey_is_durable_and_keeps_the_users_of_nodes(
    valkey: Callable[[], "tuple[subprocess.Popen[bytes], redis.Redis]"],
) -> None:
    server, client = valkey()
    try:
        wanted = {"appendonly": "yes", "appendfsync": "always", "maxmemory-policy": "noeviction"}
        assert {name: client.config_get(name)[name] for name in wanted} == wanted
        set_node_user(client, "n1", "a" * 64)
        client.set("answered", "kept")
        server.send_signal(signal.SIGKILL)
        server.wait(LIMIT_S)
        server, client = valkey()
        assert "node-n1" in client.acl_users()
        assert client.get("answered") == "kept"
        with pytest.raises(redis.AuthenticationError):
            redis.Redis(port=client.connection_pool.connection_kwargs["port"], password="wrong").ping()
    finally:
        server.terminate()
        server.wait(LIMIT_S)


def test_the_probe_of_a_node_sees_whether_an_agent_holds_its_lock(tmp_path: Path) -> None:
    def status() -> int:
        return subprocess.run(
            [sys.executable, ROOT / "docker/node/probe.py"],
            env={"MERIDIAN_VAR": str(tmp_path)},
            stdout=subprocess.DEVNULL,
            timeout=20,
            check=False,
        ).returncode

    assert status() == 1
    lock = tmp_path / "agents/n1/lock"
    lock.parent.mkdir(parents=True)
    lock.touch()
    assert status() == 1
    with lock.open("a+") as held:
        fcntl.flock(held, fcntl.LOCK_EX | fcntl.LOCK_NB)
        assert status() == 0
    assert status() == 1
