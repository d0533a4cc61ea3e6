"""The doctor and a starting agent against a real broker: rights, versions, clock."""

import hashlib
import json
import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import pytest
import redis

from engine import __version__
from engine.errors import InputError
from webapp.servers import EmbeddedServers
from webapp.servers.acl import set_node_user
from workers.agent import connect
from workers.config import from_environment
from workers.doctor import examine
from workers.join import write_environment
from workers.version import refuse_skew


@pytest.fixture(scope="module")
def broker() -> Iterator[EmbeddedServers]:
    with tempfile.TemporaryDirectory(prefix="meridian-test-") as folder:
        Path(folder).chmod(0o755)
        with EmbeddedServers(Path(folder), ("valkey",)) as servers:
            yield servers


@pytest.fixture
def environment(broker: EmbeddedServers, tmp_path: Path) -> dict[str, str]:
    with redis.Redis.from_url(broker.servers[0].url) as admin:
        set_node_user(admin, "a", hashlib.sha256(b"pw").hexdigest())
        admin.set("node:a:site", json.dumps({"version": __version__}))
    variables = {
        "MERIDIAN_NODE": "a",
        "MERIDIAN_BROKER_URL": f"redis://node-a:pw@127.0.0.1:{broker.servers[0].port}/0",
        "MERIDIAN_NODE_GPUS": "2",
        "MERIDIAN_NODE_DEVICE": "cpu",
        "MERIDIAN_NODE_HOST": "127.0.0.1",
        "MERIDIAN_NODE_PORTS": "23100-23109",
    }
    write_environment(tmp_path, variables)
    return variables


def level(folder: Path, check: str) -> Any:
    return next(line for line in examine(folder, "a", None) if line.check == check)


def test_a_sound_node_is_told_so(environment: dict[str, str], tmp_path: Path) -> None:
    lines = {line.check: line for line in examine(tmp_path, "a", None)}
    for check in ("broker", "broker rights", "version", "clock", "ports", "devices"):
        assert lines[check].level == "ok", lines[check]


def test_rights_that_are_too_wide_or_too_narrow_fail(
    environment: dict[str, str], broker: EmbeddedServers, tmp_path: Path
) -> None:
    with redis.Redis.from_url(broker.servers[0].url) as admin:
        for too_much in (("+llen", "~*"), ("+eval",)):
            admin.execute_command("ACL", "SETUSER", "node-a", *too_much)
            assert "beyond its own keys" in level(tmp_path, "broker rights").found
            set_node_user(admin, "a", hashlib.sha256(b"pw").hexdigest())
        set_node_user(admin, "a", hashlib.sha256(b"pw").hexdigest())
        admin.execute_command("ACL", "SETUSER", "node-a", "clearselectors")
        assert "lacks rights" in level(tmp_path, "broker rights").found
        set_node_user(admin, "a", hashlib.sha256(b"other").hexdigest())
        assert "join again" in level(tmp_path, "broker").todo


def test_an_agent_does_not_start_beside_another_version(
    environment: dict[str, str], broker: EmbeddedServers, tmp_path: Path
) -> None:
    config = from_environment(environment)
    refuse_skew(config, connect)
    with redis.Redis.from_url(broker.servers[0].url) as admin:
        admin.set(config.site_key, json.dumps({"version": "9.9.0"}))
        with pytest.raises(InputError, match=r"meridian\[node\]==9\.9"):
            refuse_skew(config, connect)
        assert level(tmp_path, "version").level == "fail"
        for unreadable in ("", "x", "[]", "{}"):
            admin.set(config.site_key, unreadable)
            refuse_skew(config, connect)


def test_a_broker_that_is_away_keeps_no_agent_from_starting(environment: dict[str, str]) -> None:
    refuse_skew(
        from_environment({**environment, "MERIDIAN_BROKER_URL": "redis://node-a:pw@127.0.0.1:1/0"}), connect
    )


@contextmanager
def site(answer: bytes) -> Iterator[str]:
    """The address of a site that answers every request with `answer`, status line and all."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            assert self.path == "/readyz"
            self.wfile.write(answer)

        def log_message(self, *_: object) -> None:
            """Nothing: the test's own output is enough."""

    with HTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}"
        finally:
            server.shutdown()
            thread.join()


def told_of(folder: Path, answer: bytes) -> Any:
    with site(answer) as url:
        return next(line for line in examine(folder, None, url) if line.check == "site")


UNREADY = b"HTTP/1.0 503 Service Unavailable\r\n\r\n"


def test_the_parts_of_a_site_that_are_not_well_are_named(tmp_path: Path) -> None:
    checks = {
        "broker": {"ok": False, "detail": "does not answer", "since": None},
        "database": {"ok": True, "detail": "answers", "since": "2026-01-01T00:00:00Z"},
        "reconciler": {"ok": False, "detail": "silent for 40 s", "since": "2026-01-01T00:00:00Z"},
    }
    line = told_of(tmp_path, UNREADY + json.dumps({"ok": False, "checks": checks}).encode())
    assert (line.level, line.todo) == ("fail", "broker: does not answer; reconciler: silent for 40 s")
    assert line.found.endswith("/readyz: status 503")
    well = b"HTTP/1.0 200 OK\r\n\r\n" + json.dumps({"ok": True, "checks": {}}).encode()
    assert told_of(tmp_path, well).level == "ok"


@pytest.mark.parametrize(
    "body", [b"", b"<html>", b"\xff", b"[]", b"{}", b'{"checks": [1]}', b'{"checks": {"broker": "x"}}']
)
def test_what_answers_in_the_place_of_a_site_may_say_anything(tmp_path: Path, body: bytes) -> None:
    line = told_of(tmp_path, UNREADY + body)
    assert (line.level, line.todo) == ("fail", "see the site's log")


def test_what_speaks_no_http_is_no_site(tmp_path: Path) -> None:
    line = told_of(tmp_path, b"SSH-2.0-OpenSSH\r\n")
    assert line.level == "fail"
    assert "does not answer" in line.found
