"""The sites that are looked at: empty, the demo, one full of rows, and one with every situation in it."""

import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tests.demo.harness import Demo, environment, wait_for
from webapp.servers import running

ROOT = Path(__file__).resolve().parents[2]
STATES = ("empty", "demo", "full", "cases")
TRAINS_S = 20  # how long the demo has trained before it is looked at


def rows(command: str, *, env: dict[str, str] | None = None) -> Any:
    """What `python -m scripts.screens.rows COMMAND` answers; this process starts no Django."""
    answer = subprocess.run(
        [sys.executable, "-m", "scripts.screens.rows", command],
        cwd=ROOT,
        env=env,
        check=True,
        stdout=subprocess.PIPE,
        text=True,
    )
    return json.loads(answer.stdout.splitlines()[-1])


@contextmanager
def site(state: str, port: int) -> Iterator[str]:
    """The address of a site in `state`, for as long as the block runs; os.environ points at its servers."""
    var = Path(tempfile.mkdtemp(prefix="meridian-screens-"))
    var.chmod(0o711)  # as root the servers run as another account: their data stays in here
    before = dict(os.environ)
    try:
        with demo_site(var, port) if state == "demo" else quiet_site(var, port, state) as url:
            wait_for("the site", lambda: answers(url), 60)
            yield url
    finally:
        os.environ.clear()
        os.environ.update(before)
        shutil.rmtree(var, ignore_errors=True)


@contextmanager
def quiet_site(var: Path, port: int, state: str) -> Iterator[str]:
    """Servers and web process alone: nothing moves but what is done through the pages."""
    with running(var) as urls:
        env = environment(var) | {
            "DATABASE_URL": urls.database_url,
            "VALKEY_URL": urls.valkey_url,
            "DJANGO_SETTINGS_MODULE": "webapp.settings",
            "MERIDIAN_NODE_SILENT_S": "86400",  # nodes are online for as long as anybody looks
            "MERIDIAN_LOG": "ERROR",
            "MERIDIAN_EMAIL_HOST": "127.0.0.1",  # so that forgotten passwords have a form; nothing is sent
        }
        os.environ.update(env)
        subprocess.run([sys.executable, "manage.py", "migrate", "-v0"], cwd=ROOT, env=env, check=True)
        rows(state, env=env)
        uvicorn = ["-m", "uvicorn", "webapp.asgi:application", "--port", str(port), "--log-level", "error"]
        web = subprocess.Popen(
            [sys.executable, *uvicorn, "--timeout-graceful-shutdown", "1"], cwd=ROOT, env=env
        )
        try:
            yield f"http://127.0.0.1:{port}"
        finally:
            web.terminate()
            web.wait(10)


@contextmanager
def demo_site(var: Path, port: int) -> Iterator[str]:
    """The whole product with its demo, training."""
    demo = Demo(var, port)
    try:
        demo.start()
        for given in ("DATABASE_URL", "VALKEY_URL"):
            os.environ.pop(given, None)
        os.environ.update(environment(var), DJANGO_SETTINGS_MODULE="webapp.settings")
        time.sleep(TRAINS_S)
        yield demo.url
    finally:
        demo.stop()


def answers(url: str) -> bool:
    try:
        with urllib.request.urlopen(f"{url}/login/", timeout=5) as answer:
            return bool(answer.status == 200)
    except (urllib.error.URLError, OSError):
        return False
