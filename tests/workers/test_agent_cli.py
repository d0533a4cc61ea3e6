"""`meridian agent` and `meridian doctor` as a shell runs them."""

import json
import os
import stat
import subprocess
import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import pytest

from engine import __version__
from engine.errors import InputError
from workers.doctor import examine, text_of
from workers.join import read_environment, write_environment

ENVIRONMENT = {
    "MERIDIAN_NODE": "fresh",
    "MERIDIAN_BROKER_URL": "redis://node-fresh:pw@127.0.0.1:1/0",
    "MERIDIAN_NODE_GPUS": "2",
    "MERIDIAN_NODE_DEVICE": "cpu",
    "MERIDIAN_NODE_HOST": "127.0.0.1",
    "MERIDIAN_NODE_PORTS": "23000-23009",
}


class Site(HTTPServer):
    """A site that answers what a test says, and keeps what it was asked."""

    status = 200
    answer: Any = {"node": "fresh", "version": __version__, "environment": ENVIRONMENT}
    asked: dict[str, Any] = {}

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}"


class Handler(BaseHTTPRequestHandler):
    server: Site

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        self.server.asked = {"path": self.path, **json.loads(body)}
        self._say(self.server.status, self.server.answer)

    def do_GET(self) -> None:
        checks = {"database": {"ok": False, "detail": "The database is away."}}
        self._say(503, {"ok": False, "checks": checks})

    def _say(self, status: int, body: Any) -> None:
        self.send_response(status)
        self.end_headers()
        self.wfile.write(json.dumps(body).encode())

    def log_message(self, *_: Any) -> None:
        pass


@pytest.fixture
def site() -> Iterator[Site]:
    with Site(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True)
        thread.start()
        yield server
        server.shutdown()
        thread.join()


def meridian(var: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    environment = {name: value for name, value in os.environ.items() if not name.startswith("MERIDIAN_")}
    command = [sys.executable, "-m", "engine.cli", *arguments]
    return subprocess.run(
        command, env={**environment, "MERIDIAN_VAR": str(var)}, capture_output=True, text=True, timeout=120
    )


def test_joining_keeps_the_credentials_for_their_owner_alone(site: Site, tmp_path: Path) -> None:
    arguments = ("--token", "mj-x", "--device", "cpu", "--gpus", "2", "--ports", "23000-23009")
    done = meridian(tmp_path, "agent", "join", site.url, *arguments)
    assert done.returncode == 0, done.stderr
    assert site.asked["path"] == "/api/v1/nodes/join/"
    assert site.asked["version"] == __version__
    assert (site.asked["token"], site.asked["gpus"], site.asked["ports"]) == ("mj-x", 2, "23000-23009")
    assert site.asked["host"] == "127.0.0.1", "the address used to reach the site"
    path = tmp_path / "nodes" / "fresh.env"
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert read_environment(path) == ENVIRONMENT
    assert "meridian agent run fresh" in done.stdout
    assert "pw" not in done.stdout


def test_a_refusal_is_one_line_with_the_remedy(site: Site, tmp_path: Path) -> None:
    site.status = 409
    site.answer = {
        "field": "version",
        "value": "0.1",
        "reason": "the site is 0.3",
        "remedy": "run: pip install …",
    }
    done = meridian(tmp_path, "agent", "join", site.url, "--token", "mj-x", "--device", "cpu")
    assert done.returncode == 2
    assert done.stderr == "meridian: version: '0.1': the site is 0.3: run: pip install …\n"
    assert not (tmp_path / "nodes").exists()


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (("agent", "join"), "Missing argument 'URL'"),
        (("agent", "join", "ftp://x", "--token", "t"), "URL: 'ftp://x'"),
        (("agent", "join", "http://127.0.0.1:1", "--token", "t", "--ports", "9"), "--ports: '9'"),
        (("agent", "join", "http://127.0.0.1:1", "--token", "t", "--gpus", "0"), "--gpus"),
        (("agent", "join", "http://127.0.0.1:1", "--token", "t", "--host", "192.0.2.1"), "--host"),
        (("agent", "run", "nobody"), "NAME: 'nobody'"),
        (("agent", "run", "../x"), "NAME: '../x'"),
        (("doctor", "nobody"), "NAME: 'nobody'"),
    ],
)
def test_bad_input_is_one_line_and_status_2(tmp_path: Path, arguments: tuple[str, ...], says: str) -> None:
    done = meridian(tmp_path, *arguments)
    assert done.returncode == 2, done.stderr
    assert says in done.stderr
    assert done.stderr.count("\n") == 1


NONSENSE: tuple[dict[str, Any], ...] = (
    {},
    {"PATH": "/x", "MERIDIAN_NODE": "a"},
    {"MERIDIAN_NODE": "a", "MERIDIAN_X": "1\nPATH=/x"},
    {"MERIDIAN_NODE": "../../etc/x"},
    {"MERIDIAN_NODE": 3},
)


@pytest.mark.parametrize("environment", NONSENSE)
def test_a_site_that_answers_nonsense_writes_nothing(tmp_path: Path, environment: dict[str, Any]) -> None:
    with pytest.raises(InputError):
        write_environment(tmp_path, environment)
    assert list(tmp_path.rglob("*.env")) == []


def test_help_names_every_command(tmp_path: Path) -> None:
    assert {"agent", "doctor", "simulate"} <= set(meridian(tmp_path, "--help").stdout.split())
    assert {"join", "run"} <= set(meridian(tmp_path, "agent", "--help").stdout.split())


def levels(lines: Any) -> dict[str, str]:
    return {line.check: line.level for line in lines}


def test_the_doctor_finds_what_is_wrong_with_a_node(site: Site, tmp_path: Path) -> None:
    write_environment(tmp_path, ENVIRONMENT)
    checks = examine(tmp_path, None, site.url)
    assert levels(checks)["broker"] == "fail"
    assert levels(checks)["python"] == levels(checks)["address"] == levels(checks)["ports"] == "ok"
    assert levels(checks)["site"] == "fail"
    assert all(line.todo for line in checks if line.level != "ok"), "it says what to do"
    assert "The database is away" in text_of(checks)
    write_environment(tmp_path, ENVIRONMENT | {"MERIDIAN_NODE_HOST": "192.0.2.1"})
    assert levels(examine(tmp_path, "fresh", None))["address"] == "fail"


def test_the_doctor_tells_a_script(tmp_path: Path) -> None:
    done = meridian(tmp_path, "doctor", "--json")
    report = json.loads(done.stdout)
    assert report["ok"] is (done.returncode == 0)
    assert {"check", "level", "found", "todo"} == set(report["checks"][0])
