"""Runs the whole product as `make demo` does, and speaks to it as a browser and a script would."""

import http.cookiejar
import json
import os
import re
import signal
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import psutil
from websockets.sync.client import ClientConnection, connect

from tests.ports import free_port
from tests.waiting import LIMIT_S
from webapp.servers.process import spawn

ROOT = Path(__file__).parents[2]
START_S = 240.0  # for the ranks of a run; pytest ends a test after 300


def environment(var: Path) -> dict[str, str]:
    """The environment of a user's shell: nothing of the test process's own servers.

    One person at one address plays hundreds. Ranks may take as long to start as a test may wait: twelve of
    them import torch where other work goes on.
    """
    ours = ("MERIDIAN_", "DATABASE_URL", "VALKEY_URL", "DJANGO_SETTINGS_MODULE")
    inherited = {key: value for key, value in os.environ.items() if not key.startswith(ours)}
    started_s = f"{START_S:.0f}"
    crowds = {"MERIDIAN_SOCKETS_PER_PERSON": "600", "MERIDIAN_CONNECTIONS_PER_ADDRESS": "800"}
    changed = {"MERIDIAN_VAR": str(var), "MERIDIAN_START_TIMEOUT_S": started_s, **crowds}
    return {**inherited, **changed, "PYTHONUNBUFFERED": "1"}


def wait_for(what: str, probe: Callable[[], Any], seconds: float = LIMIT_S, every: float = 0.2) -> Any:
    """The first true value of `probe`, or an AssertionError that says what did not come.

    seconds : after which it is given up, but never before LIMIT_S: how fast this machine is says nothing.
    """
    seconds = max(seconds, LIMIT_S)
    deadline = time.monotonic() + seconds
    while True:
        value = probe()
        if value:
            return value
        if time.monotonic() > deadline:
            raise AssertionError(f"not within {seconds:.0f} s: {what}")
        time.sleep(every)


class Demo:
    """One `python -m webapp.supervisor --demo` with a folder and a port of its own."""

    def __init__(self, var: Path, port: int | None = None, *, sells: bool = False) -> None:
        self.var = var
        self.sells = sells
        self.port = port or free_port()
        self.lines: list[str] = []  # of the present start
        self.history: list[str] = []  # of all starts
        self.process: subprocess.Popen[bytes] | None = None

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def start(self, *, ready_within_s: float = 240, settings: Mapping[str, str] | None = None) -> "Demo":
        """Start it; returns once it says who may log in. `settings` are more of its environment."""
        self.lines.clear()  # those of an earlier start say nothing of this one
        self.process = spawn(
            [
                *(sys.executable, "-m", "webapp.supervisor", "--demo", "--port", str(self.port)),
                *([] if self.sells else ["--no-sell"]),
            ],
            death_signal=signal.SIGINT,  # a test process that is killed takes the product with it
            output=subprocess.PIPE,
            env={**environment(self.var), **(settings or {})},
            cwd=ROOT,
        )
        threading.Thread(target=self._read, args=(self.process,), daemon=True).start()
        try:
            wait_for("the line with the logins", self._is_ready, ready_within_s)
        except AssertionError as error:
            self.stop()
            raise AssertionError(f"{error}\n" + "\n".join(self.lines[-60:])) from None
        except BaseException:  # Ctrl-C while it starts
            self.stop()
            raise
        return self

    def _read(self, process: subprocess.Popen[bytes]) -> None:
        assert process.stdout
        for line in process.stdout:
            text = line.decode(errors="replace").rstrip("\n")
            self.lines.append(text)
            self.history.append(text)

    def _is_ready(self) -> bool:
        assert self.process
        if self.process.poll() is not None:
            raise AssertionError(f"the supervisor ended with {self.process.returncode}")
        return any("log in as admin" in line for line in self.lines)

    def tree(self) -> list[psutil.Process]:
        """The supervisor and every process below it, and the ranks that outlived their agent."""
        assert self.process
        try:
            top = psutil.Process(self.process.pid)
            below = top.children(recursive=True)
        except psutil.NoSuchProcess:
            return []
        shims = [shim for shim in self.shims() if shim not in below]
        return [top, *below, *shims, *(rank for shim in shims for rank in children(shim, recursive=True))]

    def shims(self) -> list[psutil.Process]:
        """What stands between the agents and the hosts of ranks; a child of its agent, if that lives."""
        processes = []
        for process in psutil.process_iter():
            try:
                line = process.cmdline()
            except psutil.Error:
                continue
            if "workers.shim" in line and any(part.startswith(str(self.var)) for part in line):
                processes.append(process)
        return processes

    def pss_mb(self) -> float:
        """Proportional memory of all processes of the product."""
        total = 0
        for process in self.tree():
            try:
                total += process.memory_full_info().pss
            except (psutil.NoSuchProcess, psutil.ZombieProcess):
                continue
        return total / 1e6

    def interrupt(self, seconds: float = 30) -> tuple[int, list[psutil.Process]]:
        """Ctrl-C; returns the exit status and what of the product is still alive."""
        assert self.process
        before = self.tree()
        self.process.send_signal(signal.SIGINT)
        status = self.process.wait(seconds)
        _, alive = psutil.wait_procs(before, timeout=3)
        return status, alive

    def stop(self) -> None:
        """Ends everything on every path, also where Ctrl-C does not work."""
        if self.process is None:
            return
        family = self.tree()
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGINT)
            try:
                self.process.wait(LIMIT_S)
            except subprocess.TimeoutExpired:
                self.process.kill()
        _, alive = psutil.wait_procs(family, timeout=5)
        for process in alive:
            process.kill()


def children(process: psutil.Process, *, recursive: bool = False) -> list[psutil.Process]:
    """The processes below one; none where it is gone."""
    try:
        return list(process.children(recursive=recursive))
    except psutil.NoSuchProcess:
        return []


class Client:
    """A logged-in user: pages, forms and sockets over one session."""

    def __init__(self, url: str) -> None:
        self.url = url
        self.jar = http.cookiejar.CookieJar()
        self.opener = urllib.request.build_opener(urllib.request.HTTPCookieProcessor(self.jar))

    def get(self, path: str) -> str:
        with self.opener.open(self.url + path, timeout=LIMIT_S) as answer:
            self.last_url = answer.url
            return str(answer.read().decode())

    def json(self, path: str) -> Any:
        return json.loads(self.get(path))

    def post(self, path: str, form: dict[str, Any] | None = None) -> str:
        """Post a form with the page's CSRF token; follows the redirect and returns the page."""
        data = {**(form or {}), "csrfmiddlewaretoken": self._token()}
        body = urllib.parse.urlencode(data, doseq=True).encode()
        request = urllib.request.Request(self.url + path, body, {"Referer": self.url + path})
        try:
            answer = self.opener.open(request, timeout=LIMIT_S)
        except urllib.error.HTTPError as refusal:
            if refusal.code != 422:  # a form that came back with its errors
                raise
            answer = refusal
        with answer:
            self.last_url = answer.url
            return str(answer.read().decode())

    def login(self, username: str, password: str) -> str:
        self.get("/login/")
        return self.post("/login/", {"username": username, "password": password})

    def socket(self, path: str) -> ClientConnection:
        cookies = "; ".join(f"{cookie.name}={cookie.value}" for cookie in self.jar)
        return connect(
            self.url.replace("http", "ws", 1) + path,
            additional_headers={"Cookie": cookies},
            origin=self.url,  # type: ignore[arg-type]
            max_size=2**25,
            open_timeout=LIMIT_S,
        )

    def _token(self) -> str:
        return next((str(cookie.value) for cookie in self.jar if cookie.name == "meridian_csrf"), "")


def run_ids(page: str) -> list[str]:
    """Ids of the runs that a page links to, in order."""
    ids = re.findall(r'href="/runs/(\d+)/"', page)
    return list(dict.fromkeys(ids))
