"""Ranks outlive their agent: what a host says reaches the next one, in order, and nothing is left behind."""

import contextlib
import dataclasses
import json
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from engine.run import host_process
from engine.run.host_process import LetGo
from tests.waiting import LIMIT_S, has_ended, until
from tests.workers.launching import spec
from workers import shim, shims
from workers.shims import ShimHost, Shims, has_shim


class Outbox:
    """Takes events, of which those up to `safe` are safe."""

    def __init__(self) -> None:
        self.position = self.safe = self.lost = 0

    def note_lost(self, count: int) -> None:
        self.lost += count


class Reader:
    """Reads a host on a thread, as a rank group does."""

    def __init__(self, host: ShimHost, outbox: Outbox, *, saves: bool = True) -> None:
        self.host, self.outbox, self.saves = host, outbox, saves
        self.events: list[dict] = []
        self.thread = threading.Thread(target=self._read, daemon=True)
        self.thread.start()

    def _read(self) -> None:
        with contextlib.suppress(LetGo):
            for line in self.host.lines():
                self.events.append(json.loads(line))
                self.outbox.position += 1
                if self.saves:
                    self.outbox.safe = self.outbox.position

    def counts(self) -> list[int]:
        return [event["count"] for event in self.events if event["kind"] == "spans"]


@pytest.fixture(autouse=True)
def fake_host(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[None]:
    """Shims are processes; this has them start the stand-in for a host."""
    start = tmp_path / "sitecustomize.py"
    start.write_text(
        "import sys\n"
        "if 'workers.shim' in sys.orig_argv:\n"
        "    import subprocess\n"
        "    real = subprocess.Popen\n"
        "    class Popen(real):\n"
        "        def __init__(self, argv, **options):\n"
        "            super().__init__([*argv[:2], '-m', 'tests.workers.fake_host'], **options)\n"
        "    subprocess.Popen = Popen\n"
    )
    paths = os.pathsep.join([str(tmp_path), str(Path(__file__).resolve().parents[2])])
    monkeypatch.setenv("PYTHONPATH", paths)
    yield
    until(lambda: not _left(tmp_path), lambda: f"nothing left behind: {_left(tmp_path)}")


def _left(folder: Path) -> list[psutil.Process]:
    return [process for process in psutil.process_iter() if _is_of(process, folder)]


def _is_of(process: psutil.Process, folder: Path) -> bool:
    try:
        return any(str(folder) in part for part in process.cmdline()) and process.status() != "zombie"
    except psutil.Error:
        return False


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "ranks" / "r1-1"


def launched(folder: Path, outbox: Outbox, keep_s: float = LIMIT_S) -> ShimHost:
    return ShimHost.launch(dataclasses.replace(spec(), log_dir=str(folder)), outbox, keep_s)


def found(folder: Path, outbox: Outbox) -> ShimHost:
    host = ShimHost.found(folder, outbox)
    assert json.loads(host.greeting())["run"] == "r1"
    return host


def ends(reader: Reader) -> None:
    """The host ends well, the shim with it, and its socket goes."""
    reader.host.send(b"stop 1")
    reader.thread.join(LIMIT_S)
    assert reader.host.wait() == 0
    assert reader.events[-1]["kind"] == "rank"
    until(lambda: reader.host.settled)


def test_what_a_host_says_comes_in_order_and_the_shim_ends_with_it(folder: Path) -> None:
    outbox = Outbox()
    reader = Reader(launched(folder, outbox), outbox)
    until(lambda: len(reader.counts()) > 20)
    assert has_shim(folder)
    ends(reader)
    assert reader.counts() == list(range(reader.events[-1]["count"]))
    assert reader.events[-1]["spec"]["run"] == "r1"
    until(lambda: not has_shim(folder))
    assert not (folder / "shim.sock").exists()


def test_the_next_agent_gets_all_that_was_not_safe(folder: Path) -> None:
    outbox = Outbox()
    before = Reader(launched(folder, outbox), outbox, saves=False)
    until(lambda: len(before.counts()) > 20)
    outbox.safe = 10
    until(lambda: not before.host._handled or before.host._handled[0][1] > 10)
    before.host.let_go(LIMIT_S)
    before.thread.join(LIMIT_S)
    assert not before.host.ended, "it is not told as one that has ended"
    outbox = Outbox()
    after = Reader(found(folder, outbox), outbox)
    ends(after)
    assert after.counts() == list(range(10, after.events[-1]["count"]))


def test_a_newer_agent_takes_the_place_of_one_that_hangs(folder: Path) -> None:
    outbox = Outbox()
    hangs = launched(folder, outbox)  # reads nothing
    other = Outbox()
    after = Reader(found(folder, other), other)
    until(lambda: len(after.counts()) > 20)
    ends(after)
    assert after.counts() == list(range(after.events[-1]["count"]))
    assert list(hangs.lines()) == []  # it was hung up
    hangs.let_go(LIMIT_S)
    assert hangs._child
    hangs._child.wait(LIMIT_S)


def test_without_an_agent_the_ranks_end_and_their_last_words_are_kept(folder: Path) -> None:
    outbox = Outbox()
    before = Reader(launched(folder, outbox, keep_s=0.2), outbox)
    until(lambda: len(before.counts()) > 20)
    before.host.let_go(LIMIT_S)
    assert before.host._child
    before.host._child.wait(LIMIT_S)
    assert not (folder / "shim").exists()
    assert (folder / "left").stat().st_mode & 0o077 == 0
    group = Shims(Outbox(), 1.0).found(folder, lambda event: None, lambda of: [])
    assert group is not None
    assert group.spec.run == "r1"
    left = shims._left_behind(folder)
    assert left is not None
    events = [json.loads(line) for line in left[0].lines()]
    assert events[-1]["kind"] == "rank"
    assert left[0].wait() == 0
    assert not has_shim(folder)  # told once


def test_a_killed_shim_takes_its_host_with_it_and_is_told_as_killed(folder: Path) -> None:
    outbox = Outbox()
    reader = Reader(launched(folder, outbox), outbox)
    until(lambda: len(reader.counts()) > 5)
    assert reader.host._child
    (host,) = psutil.Process(reader.host._child.pid).children()
    reader.host._child.kill()
    reader.thread.join(LIMIT_S)
    assert reader.host.wait() == -9
    until(lambda: has_ended(host.pid))
    with pytest.raises(OSError, match=r"refused|No such file"):
        ShimHost.found(folder, outbox)
    assert not has_shim(folder)
    assert not (folder / "shim.sock").exists()


def test_a_kill_ends_host_and_shim(folder: Path) -> None:
    outbox = Outbox()
    reader = Reader(launched(folder, outbox), outbox)
    until(lambda: len(reader.counts()) > 5)
    reader.host.kill()
    reader.thread.join(LIMIT_S)
    assert reader.host.wait() == -9
    until(lambda: reader.host.settled)


def test_a_folder_with_a_long_name_has_its_socket_elsewhere(tmp_path: Path) -> None:
    folder = tmp_path / ("x" * 100)
    outbox = Outbox()
    reader = Reader(launched(folder, outbox), outbox)
    path = Path((folder / "shim").read_text())
    assert path.exists()
    assert path.parent != folder
    assert path.parent.stat().st_mode & 0o077 == 0
    ends(reader)
    until(lambda: not path.parent.exists())


def test_past_the_bound_the_oldest_of_what_may_be_lost_goes_and_is_counted(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The shim runs in this process: its bound is small."""
    folder.mkdir(parents=True)
    listener = shims._listener(folder)

    def spawn(log_dir: Path) -> "subprocess.Popen[bytes]":
        return subprocess.Popen(
            [sys.executable, "-m", "tests.workers.fake_host"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            process_group=0,
        )

    monkeypatch.setattr(shim, "spawn", spawn)
    one = shim.Shim(listener, folder, LIMIT_S, frozenset({"spans"}), most_bytes=100_000)
    thread = threading.Thread(target=one.run, daemon=True)
    thread.start()
    outbox = Outbox()
    hangs = ShimHost(shims._connect(folder), outbox, None)
    hangs._send(b"L " + spec().to_json().encode())
    hangs.send(b"size 1000")
    until(lambda: one._count > 1_000)
    after = Reader(found(folder, outbox), outbox)
    until(lambda: outbox.lost > 500)
    ends(after)
    counts = after.counts()
    assert counts == sorted(counts)
    assert len(counts) + outbox.lost == after.events[-1]["count"]
    thread.join(LIMIT_S)
    hangs.let_go(LIMIT_S)
    listener.close()


def test_the_shim_imports_little() -> None:
    """There is one a run and node: nothing of the engine's documents, of pydantic or of Celery."""
    code = "import sys, workers.shim; print(*sys.modules)"
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=LIMIT_S
    )
    loaded = {name.split(".")[0] for name in done.stdout.split()}
    assert not loaded & {"pydantic", "numpy", "torch", "celery", "redis", "psutil"}
    assert "engine.run.host_process" in done.stdout
    assert host_process.__name__ == "engine.run.host_process"
