"""The work at the figures of the papers, in a process of its own.

An experiment may take minutes and asks nobody whether it should stop. Its process is ended instead, so that
a computation is cancelled, and gives way to others, within a second.
"""

import json
import os
import queue
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any

from django.utils import timezone

import engine
from engine.reproduce import experiments
from webapp.computations.wires import BEAT_S, Wires


def reproduce(request: dict[str, Any], wires: Wires) -> Iterator[dict[str, Any]]:
    """{"experiments": {name: …}}: rows and plots of each experiment of `request`, as they come.

    What an earlier attempt at the same computation has computed is kept: the work gives way to others.
    """
    titles = {name: experiment.title for name, experiment in experiments().items()}
    names = [name for name in request["experiments"] if name in titles]
    before = (wires.computation.answer or {}).get("experiments", {})
    computed = {name: before[name] for name in names if name in before}
    left = [name for name in names if name not in before]
    wires.of = len(names)
    for _ in computed:
        yield {"experiments": dict(computed)}
    for result in _results(left, titles, wires):
        computed[result.pop("experiment")] = result | {"computed_at": timezone.now().isoformat()}
        yield {"experiments": {name: computed[name] for name in names if name in computed}}


def _results(names: list[str], titles: dict[str, str], wires: Wires) -> Iterator[dict[str, Any]]:
    """What the process writes, until it ends or the computation is to stop."""
    if not names:
        return
    command = [sys.executable, "-m", "engine.reproduce", *names]
    root = str(Path(engine.__file__).parents[1])
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([root, os.environ.get("PYTHONPATH", "")])}
    with (
        tempfile.TemporaryFile("w+") as errors,
        subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=errors, text=True, env=environment
        ) as process,
    ):
        assert process.stdout is not None
        try:
            for name, line in zip(names, _lines(process.stdout, names, titles, wires), strict=False):
                result = json.loads(line)
                assert result["experiment"] == name
                yield result
            if not (wires.stopped or wires.ending()):
                process.wait()  # it ends by itself
        finally:
            process.kill()
        if process.wait() > 0:
            errors.seek(0)
            raise RuntimeError(errors.read()[-2000:])


def _lines(output: IO[str], names: list[str], titles: dict[str, str], wires: Wires) -> Iterator[str]:
    """Its lines; ends early where the computation is to stop."""
    read: queue.SimpleQueue[str | None] = queue.SimpleQueue()
    threading.Thread(target=_read, args=(output, read), daemon=True).start()
    for name in names:
        wires.publish({"at": titles[name]})
        wires.beat()
        while not (line := _next(read)):
            if line is None or wires.cancelled():
                return
        yield line


def _read(output: IO[str], read: queue.SimpleQueue[str | None]) -> None:
    for line in output:
        read.put(line)
    read.put(None)


def _next(read: queue.SimpleQueue[str | None]) -> str | None:
    """The next line, None after the last, empty where none has come yet."""
    try:
        return read.get(timeout=BEAT_S)
    except queue.Empty:
        return ""
