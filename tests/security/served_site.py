"""The web process as the supervisor starts it, and raw sockets into it."""

import os
import socket
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from http.client import HTTPResponse
from pathlib import Path

import httpx2 as httpx

from tests.ports import free_port
from tests.waiting import LIMIT_S, until
from webapp.supervisor.children import ROOT
from webapp.supervisor.services import site_services

NO_DATABASE = "postgresql://nobody@127.0.0.1:1/none"  # no server listens there
LEAVES_OUT = ("MERIDIAN_", "FORWARDED_ALLOW_IPS", "DJANGO_")


@dataclass(frozen=True, slots=True, kw_only=True)
class ServedSite:
    """A web process of its own."""

    port: int
    var: Path

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    @property
    def log(self) -> str:
        return (self.var / "web.log").read_text()

    def connect(self, sent: bytes = b"") -> socket.socket:
        """A connection over which `sent` was sent."""
        line = socket.create_connection(("127.0.0.1", self.port), timeout=LIMIT_S)
        line.sendall(sent)
        return line


@contextmanager
def served_site(var: Path, **environment: str) -> Iterator[ServedSite]:
    """Start the web process with nothing but `environment` set; ends it after the block.

    Without a DATABASE_URL the database is away; the broker is that of the tests.
    """
    site = ServedSite(port=free_port(), var=var)
    inherited = {name: value for name, value in os.environ.items() if not name.startswith(LEAVES_OUT)}
    with _environment({**inherited, "DATABASE_URL": NO_DATABASE, **environment}):
        (web,) = [one for one in site_services(site.port, var) if one.name == "web"]
    with (var / "web.log").open("ab") as log:
        process = subprocess.Popen(web.argv, cwd=ROOT, env=web.env, stdout=log, stderr=log)
    try:
        until(lambda: answers(site) or process.poll() is not None, lambda: site.log, every_s=0.1)
        assert process.poll() is None, site.log
        yield site
    finally:
        process.terminate()
        process.wait(LIMIT_S)


def answer_of(line: socket.socket) -> HTTPResponse:
    """The answer that comes over a connection, read whole."""
    answer = HTTPResponse(line)
    answer.begin()
    answer.body = answer.read()  # type: ignore[attr-defined]
    return answer


def is_closed(line: socket.socket) -> bool:
    """Wait until the other side hangs up, whatever it still says."""
    try:
        while line.recv(65_536):
            pass
    except ConnectionError:
        pass
    return True


def answers(site: ServedSite) -> bool:
    """Whether a page of the site is answered."""
    try:  # without TLS: reading certificates takes longer than the answer
        return httpx.get(f"{site.url}/healthz", timeout=LIMIT_S, verify=False).status_code == 200
    except httpx.TransportError:
        return False


@contextmanager
def _environment(values: dict[str, str]) -> Iterator[None]:
    before = dict(os.environ)
    os.environ.clear()
    os.environ.update(values)
    try:
        yield
    finally:
        os.environ.clear()
        os.environ.update(before)
