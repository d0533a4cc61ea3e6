"""What the long tests of the whole product share: the database as it is, processes by what they do."""

import json
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psutil
import psycopg

from tests.demo.harness import Client, Demo, run_ids, wait_for


@contextmanager
def demo_of_its_own() -> Iterator[Demo]:
    """A demo that a test may kill as it likes: folder, port and processes go at the end whatever happened."""
    var = Path(tempfile.mkdtemp(prefix="meridian-long-"))
    var.chmod(0o711)  # as root the servers run as another account: their data stays in here
    demo = Demo(var)
    try:
        yield demo
    finally:
        demo.stop()
        shutil.rmtree(var, ignore_errors=True)
        left_of(demo, kill=True)


def operator_of(demo: Demo) -> Client:
    client = Client(demo.url)
    client.login("operator", "meridian-demo")
    return client


def query(demo: Demo, sql: str, *values: Any) -> list[tuple[Any, ...]]:
    """Rows of the demo's own database, read beside the product."""
    state = json.loads((demo.var / "servers.json").read_text())
    with psycopg.connect(state["postgres"]["url"], connect_timeout=5) as connection:
        return connection.execute(sql, values).fetchall()


def server_pid(demo: Demo, name: str) -> int:
    return int(json.loads((demo.var / "servers.json").read_text())[name]["pid"])


def family_of(demo: Demo, process: psutil.Process) -> str:
    """web, control, beat, ingest, servers, rank or the node's name, from the command line alone."""
    try:
        line = " ".join(process.cmdline())
        if "workers.agent" in line:
            return "agent"
        for name in ("uvicorn", "celery.*worker", "beat", "ingest", "supervisor"):
            if all(part in line for part in name.split(".*")):
                return {"uvicorn": "web", "celery.*worker": "control"}.get(name, name)
        if "postgres" in line or "valkey" in line:
            return "servers"
        return "ranks"
    except psutil.Error:
        return "gone"


def agent_of(demo: Demo, node: str) -> psutil.Process:
    """The process of the node agent `node`."""
    for process in demo.tree():
        try:
            if "workers.agent" in process.cmdline() and process.environ().get("MERIDIAN_NODE") == node:
                return process
        except psutil.Error:
            continue
    raise AssertionError(f"no agent of {node}")


def lives(process: psutil.Process) -> bool:
    """Whether it still runs; a zombie has ended and waits for its parent's, or init's, notice."""
    try:
        return bool(process.status() != psutil.STATUS_ZOMBIE)
    except psutil.Error:
        return False


def left_of(demo: Demo, *, kill: bool = False) -> list[str]:
    """Processes anywhere on the machine that belong to this demo's folder, by environment or command line."""
    found = []
    for process in psutil.process_iter():
        try:
            line = process.cmdline()
            if process.status() == psutil.STATUS_ZOMBIE:
                continue
            ours = process.environ().get("MERIDIAN_VAR") == str(demo.var) or str(demo.var) in " ".join(line)
            if ours and process.pid != psutil.Process().pid:
                found.append(f"{process.pid} {' '.join(line)[:120]}")
                if kill:
                    process.kill()
        except psutil.Error:
            continue
    return found


def state_of(client: Client, run: str) -> dict[str, Any]:
    state: dict[str, Any] = client.json(f"/runs/{run}/live.json")["run"]
    return state


def first_run(demo: Demo, client: Client, *, iteration: int = 3, seconds: float = 240) -> str:
    """The newest run's id, once it has ended `iteration` iterations."""
    run = run_ids(client.get("/runs/"))[0]
    wait_for(
        f"iteration {iteration} of run {run}",
        lambda: (state_of(client, run)["iteration"] or 0) >= iteration,
        seconds,
    )
    return run


def ended(client: Client, run: str, seconds: float) -> dict[str, Any]:
    """The state of a run once it is over."""
    state: dict[str, Any] = wait_for(
        f"the end of run {run}",
        lambda: (now := state_of(client, run))["finished_at"] and now,
        seconds,
    )
    return state


def ranks_of(agent: psutil.Process) -> list[psutil.Process]:
    """Rank processes below an agent (the fork server and its trackers are not ranks)."""
    return [
        child
        for child in agent.children(recursive=True)
        if any("rank" in part for part in [child.name(), *child.cmdline()])
    ]
