"""What the long tests of the whole product share: the database as it is, processes by what they do."""

import json
import os
import re
import shutil
import subprocess
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path
from typing import Any

import psutil
import psycopg

from tests.demo.harness import Client, Demo, children, run_ids, wait_for
from tests.waiting import has_ended


@contextmanager
def small_disk(megabytes: int) -> Iterator[Path | None]:
    """A file system of this size, open to the servers' account; None where this account may mount none."""
    folder = Path(tempfile.mkdtemp(prefix="meridian-disk-"))
    mount = ["mount", "-t", "tmpfs", "-o", f"size={megabytes}m", "meridian-test", str(folder)]
    if os.geteuid() != 0 or subprocess.run(mount, capture_output=True, check=False).returncode:
        folder.rmdir()
        yield None
        return
    folder.chmod(0o711)
    try:
        yield folder
    finally:
        for _ in range(50):
            if subprocess.run(["umount", str(folder)], capture_output=True, check=False).returncode == 0:
                folder.rmdir()
                break
            time.sleep(0.2)


def fill(path: Path) -> None:
    """Write until not one more byte is taken."""
    with path.open("wb", buffering=0) as file:
        for size in (65536, 256):
            try:
                while True:
                    file.write(b"\0" * size)
            except OSError:
                continue


@contextmanager
def demo_of_its_own(*, sells: bool = False, folder: Path | None = None) -> Iterator[Demo]:
    """A demo that a test may kill as it likes: folder, port and processes go at the end whatever happened.

    folder : where its own is made; the machine's folder for temporary files if there is none.
    """
    var = Path(tempfile.mkdtemp(prefix="meridian-long-", dir=folder))
    var.chmod(0o711)  # as root the servers run as another account: their data stays in here
    demo = Demo(var, sells=sells)
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


def ready(client: Client) -> bool:
    """Whether the site answers, and says that all it needs is there."""
    try:
        return bool(client.json("/readyz")["ok"])
    except OSError:  # 503, or nobody there
        return False


def query(demo: Demo, sql: str, *values: Any) -> list[tuple[Any, ...]]:
    """Rows of the demo's own database, read beside the product."""
    state = json.loads((demo.var / "servers.json").read_text())
    with psycopg.connect(state["postgres"]["url"], connect_timeout=5) as connection:
        return connection.execute(sql, values).fetchall()


def server_pid(demo: Demo, name: str) -> int:
    return int(json.loads((demo.var / "servers.json").read_text())[name]["pid"])


def family_of(demo: Demo, process: psutil.Process) -> str:
    """web, control, search, beat, ingest, servers, rank or the node's name, from the command line alone."""
    try:
        line = " ".join(process.cmdline())
        for name in ("agent", "shim"):
            if f"workers.{name}" in line:
                return name
        for name in ("uvicorn", "search@", "celery.*worker", "beat", "ingest", "supervisor"):
            if all(part in line for part in name.split(".*")):
                return {"uvicorn": "web", "celery.*worker": "control", "search@": "search"}.get(name, name)
        if "postgres" in line or "valkey" in line:
            return "servers"
        return "ranks"
    except psutil.Error:
        return "gone"


def process_of(demo: Demo, name: str) -> psutil.Process:
    """The process of the site's part `name`: web, control, beat or ingest."""
    for process in demo.tree():
        if family_of(demo, process) == name and not has_ended(process.pid):
            return process
    raise AssertionError(f"no process of {name}")


def killed(demo: Demo, name: str) -> None:
    """Kill -9 the part `name` of the site, and wait until the supervisor has said so and started it again."""
    old = process_of(demo, name)
    line_count = len(demo.lines)
    old.kill()
    wait_for(
        f"the supervisor's line about {name}",
        lambda: any(f"{name} died with signal SIGKILL" in line for line in demo.lines[line_count:]),
        30,
    )
    wait_for(f"{name} again", lambda: _started_again(demo, name, old.pid), 60)


def _started_again(demo: Demo, name: str, old: int) -> bool:
    try:
        return process_of(demo, name).pid != old
    except AssertionError:
        return False


def agent_of(demo: Demo, node: str) -> psutil.Process:
    """The process of the node agent `node`."""
    for process in demo.tree():
        try:
            if "workers.agent" in process.cmdline() and process.environ().get("MERIDIAN_NODE") == node:
                return process
        except psutil.Error:
            continue
    raise AssertionError(f"no agent of {node}")


def shim_of(demo: Demo, node: str) -> psutil.Process:
    """What stands between the agent of `node` and its ranks."""
    for shim in demo.shims():
        if f"/agents/{node}/" in " ".join(shim.cmdline()):
            return shim
    raise AssertionError(f"no shim of {node}")


def left_of(demo: Demo, *, kill: bool = False) -> list[str]:
    """Processes anywhere on the machine that belong to this demo's folder, by environment or command line."""
    lines = []
    for process in psutil.process_iter():
        try:
            line = process.cmdline()
            if process.status() == psutil.STATUS_ZOMBIE:
                continue
            ours = process.environ().get("MERIDIAN_VAR") == str(demo.var) or str(demo.var) in " ".join(line)
            if ours and process.pid != psutil.Process().pid:
                lines.append(f"{process.pid} {' '.join(line)[:120]}")
                if kill:
                    process.kill()
        except psutil.Error:
            continue
    return lines


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


def _serves(process: psutil.Process) -> bool:
    """Whether it is a coordinator or its decoder: they write to a log of their own."""
    try:
        return any(Path(file.path).name.startswith("prefill-coordinator-") for file in process.open_files())
    except psutil.NoSuchProcess:
        return False


RANKS = 12  # of the demo's job


def progress(client: Client, run: str) -> int:
    """Iterations that have ended; -1 while the site does not answer."""
    try:
        return int(state_of(client, run)["iteration"] or 0)
    except OSError:  # 5xx, or nobody there
        return -1


def trains_on(client: Client, run: str, *, iterations: int = 10, seconds: float = 150) -> None:
    """Wait until the run has ended so many more iterations than now."""
    before = int(wait_for("the site", lambda: (now := progress(client, run)) >= 0 and now + 1, 60)) - 1
    wait_for(f"{iterations} more iterations", lambda: progress(client, run) >= before + iterations, seconds)


def incomplete(
    demo: Demo, run: str, *, ranks: int = RANKS, emptied: Sequence[float] = ()
) -> list[tuple[Any, ...]]:
    """Iterations up to the newest whole one that the database has not, not whole, or more than once.

    emptied : when the broker lost its data, in seconds since 1970. What was only there at that time is gone.
    """
    rows = query(
        demo,
        "select iteration, count(*), bool_and(loss is not null), sum(ranks), min(start)"
        " from live_iterationstat where run_id = %s group by iteration order by iteration",
        int(run),
    )
    row_of = {row[0]: row for row in rows}
    newest = max((n for n, row in row_of.items() if row[2] and row[3] == ranks), default=0)
    spans = query(
        demo,
        "select iteration, count(*), count(distinct rank) from live_spanbatch"
        " where run_id = %s group by iteration",
        int(run),
    )
    lost = _lost({n: row[4] for n, row in row_of.items() if row[4] is not None}, emptied)
    wrong: list[tuple[Any, ...]] = []
    for iteration in sorted(set(range(newest)) - lost):
        row = row_of.get(iteration)
        if row is None or row[1] != 1 or not row[2] or row[3] != ranks:
            wrong.append(("iteration", iteration, row))
    oldest = min((n for n, _, _ in spans), default=0)  # older spans are forgotten on purpose
    whole = {n for n, count, distinct in spans if count == distinct == ranks}
    wrong += [("spans", n) for n in range(oldest + 1, newest) if n not in whole | lost]
    return wrong


def _lost(starts: dict[int, float], times: Sequence[float]) -> set[int]:
    """Iterations that may have been on their way at one of `times`, by when those that are known began."""
    known = sorted(starts)
    near = {n for n in known if any(time - 5 <= starts[n] <= time + 1 for time in times)}
    for before, after in pairwise(known):
        if any(starts[before] <= time + 1 and starts[after] >= time - 5 for time in times):
            near |= {*range(before, after + 1)}
    return near


def complete(demo: Demo, run: str, seconds: float = 60) -> None:
    """Wait until nothing is missing of the iterations that ended, and nothing is there twice."""
    wait_for("every iteration once in the database", lambda: not incomplete(demo, run), seconds, every=1)


def relaunched(client: Client) -> str:
    """The id of a run launched from the demo's plan."""
    plan = re.search(r"/plans/(\d+)/", client.get("/plans/"))
    assert plan
    client.post(f"/plans/{plan[1]}/launch/", {"option": "0"})
    launched = re.search(r"/runs/(\d+)/", client.last_url)
    assert launched, client.last_url
    return launched[1]


def recovering(client: Client, run: str, *, attempts: int = 20, wait_s: int = 120) -> str:
    """A clone of `run`, which is stopped, that recovers; the demo's prefill is left out, as it must be."""
    client.post(f"/runs/{run}/cancel/")
    ended(client, run, 60)
    page = client.get(f"/runs/{run}/clone/")
    form = dict(re.findall(r'<input[^>]*name="(\w+)"[^>]*value="([^"]*)"', page))
    chosen = re.findall(r'<select[^>]*name="(\w+)".*?<option value="([^"]*)"[^>]*selected', page, re.S)
    changed = {"prefill_checkpoint": "", "recoveries": str(attempts), "recovery_wait_s": str(wait_s)}
    client.post(f"/runs/{run}/clone/", {**form, **dict(chosen), **changed})
    launched = re.search(r"/runs/(\d+)/$", client.last_url)
    assert launched, client.last_url
    return launched[1]


def gpus_held(demo: Demo) -> int:
    """GPUs that the database holds for ranks."""
    over = ("finished", "failed", "stopped")
    return int(query(demo, "select count(*) from jobs_rankstate where state <> all(%s)", list(over))[0][0])


def rank_processes(demo: Demo) -> list[psutil.Process]:
    """Rank processes of all nodes: what hosts forked, less prefill coordinators and their decoders."""
    hosts = [host for shim in demo.shims() for host in children(shim)]
    forked = [fork for host in hosts for fork in children(host, recursive=True)]
    return [fork for fork in forked if not has_ended(fork.pid) and not _serves(fork)]


def all_free(demo: Demo, seconds: float = 60) -> None:
    """Wait until no GPU is held and no rank process lives."""
    wait_for("all GPUs free", lambda: gpus_held(demo) == 0, seconds)
    wait_for("no rank process", lambda: not rank_processes(demo), seconds)
