"""The first samples that a run would read on this machine, decoded, for whoever is about to launch it."""

import json
import logging
import subprocess
import sys
import threading
import time
from collections import deque
from collections.abc import Mapping
from typing import Any

from engine.documents import read_json
from engine.errors import InputError
from engine.inputs import parse
from engine.job.events.base import Emit
from engine.job.events.node import MOST_CHARACTERS, MOST_SAMPLES, Samples, ShownSample
from engine.job.file_access import FileAccess
from engine.job.job import TrainJob

log = logging.getLogger(__name__)

SECONDS = 20.0  # in which the data must be open
KILLED_S = 10.0  # after that: for a process that does not notice
MEMORY_BYTES = 2 << 30


class SamplePreviewer:
    """Reads for one preview at a time, in a process that ends; the task that asks for it returns at once.

    Parameters
    ----------
    files : what documents may name on this machine; a preview reads nothing that a run could not read.
    """

    def __init__(self, *, files: FileAccess, publish: Emit, seconds: float = SECONDS) -> None:
        self._files, self._publish, self._seconds = files, publish, seconds
        self._busy = threading.Lock()
        self._seen: deque[str] = deque(maxlen=100)

    def start(self, preview: str, job: Mapping[str, Any], dc: str) -> str:
        """Publish a `samples` event of the document of a job; once for each `preview`.

        Returns what is being done, for the log.

        Parameters
        ----------
        dc : name of the data centre of this machine, where the job names files for each.
        """
        if preview in self._seen:
            return "known already"
        self._seen.append(preview)
        try:
            opened = self._files.opened(parse(TrainJob, dict(job)))
        except InputError as error:
            self._say(preview, error=str(error))
            return f"refused: {error}"
        threading.Thread(target=self._answer, args=(preview, opened, dc), name="samples", daemon=True).start()
        return "reading"

    def _answer(self, preview: str, job: TrainJob, dc: str) -> None:
        if not self._busy.acquire(blocking=False):
            self._say(preview, error="The node reads another preview: try again in some seconds")
            return
        try:
            samples, error = self._read(job, dc)
            self._say(preview, samples, error)
        except subprocess.TimeoutExpired:
            self._say(preview, error="The process that read the data did not end in time, and was killed")
        except Exception as failure:  # whatever it was, the page that asks is told
            log.exception("preview %s failed", preview)
            self._say(preview, error=f"The samples could not be read: {failure}")
        finally:
            self._busy.release()

    def _read(self, job: TrainJob, dc: str) -> tuple[tuple[ShownSample, ...], str]:
        question = {
            "job": job.to_document(),
            "dc": dc,
            "samples": MOST_SAMPLES,
            "characters": MOST_CHARACTERS,
            "seconds": self._seconds,
            "memory_bytes": MEMORY_BYTES,
        }
        process = subprocess.run(
            [sys.executable, "-m", "engine.run.samples_process"],
            input=json.dumps(question),
            capture_output=True,
            text=True,
            timeout=self._seconds + KILLED_S,
            check=False,
        )
        if process.returncode:
            last = process.stderr.strip().rpartition("\n")[2][:300]
            return (), f"The process that read the data ended with {process.returncode}: {last}"
        answer = read_json(process.stdout)
        return tuple(ShownSample.model_validate(sample) for sample in answer["samples"]), answer["error"]

    def _say(self, preview: str, samples: tuple[ShownSample, ...] = (), error: str = "") -> None:
        self._publish(Samples(preview=preview, samples=samples, error=error[:2_000], t=time.time()))
