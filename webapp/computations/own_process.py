"""Work in a process of its own, which writes a line of JSON for each part of its answer.

What asks nobody whether it should stop, or may take much memory, is ended with its process: a computation is
then cancelled, and gives way to others, within a second, and the worker keeps its memory.
"""

import json
import os
import queue
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import IO, Any

import engine
from webapp.computations.wires import BEAT_S, Wires

LAST_READ_S = 10.0  # for what a process that was killed had written


def json_lines(module: str, arguments: Sequence[str], wires: Wires) -> Iterator[Any]:
    """What `python -m module` writes, until it ends or the computation is to stop.

    Raises
    ------
    RuntimeError
        It failed; with the end of what it wrote to stderr.
    """
    command = [sys.executable, "-m", module, *arguments]
    root = str(Path(engine.__file__).parents[1])
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([root, os.environ.get("PYTHONPATH", "")])}
    with (
        tempfile.TemporaryFile("w+") as errors,
        subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=errors, text=True, env=environment
        ) as process,
    ):
        assert process.stdout is not None
        read: queue.SimpleQueue[str | None] = queue.SimpleQueue()
        reader = threading.Thread(target=_read, args=(process.stdout, read), daemon=True)
        reader.start()
        status = 0
        try:
            for line in _lines(read, wires):
                yield json.loads(line)
            if not (wires.stopped or wires.ending()):
                status = process.wait()  # it ends by itself, or by a signal of others: out of memory
        finally:
            process.kill()
            reader.join(LAST_READ_S)  # its file is closed next
        if status:
            errors.seek(0)
            raise RuntimeError(f"status {status}: {errors.read()[-2000:]}")


def _lines(read: queue.SimpleQueue[str | None], wires: Wires) -> Iterator[str]:
    """The lines that were read; ends early where the computation is to stop."""
    while (line := _next(read)) is not None:
        if line:
            yield line
        elif wires.cancelled():
            return


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
