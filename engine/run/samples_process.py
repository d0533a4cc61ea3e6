"""A process that reads the first samples of a job and ends: `python -m engine.run.samples_process`.

One JSON object on stdin: {job, dc, samples, characters, seconds, memory_bytes}. One on stdout: {samples,
error}, with samples as `engine.job.events.node.ShownSample` has them. It is a process of its own, so that
neither a folder of any size nor a broken file costs its parent memory or time.
"""

import json
import os
import resource
import signal
import sys
from collections.abc import Iterator
from itertools import islice
from types import FrameType
from typing import Any

from engine.documents import read_json
from engine.errors import InputError
from engine.inputs import parse
from engine.job.events.node import MOST_PARTS, ShownPart, ShownSample
from engine.job.job import TrainJob
from engine.train.shown import shown_samples

TOO_LONG = (
    "was not read within {seconds:g} s. A tokenizer encodes a text file whole before its first sample: "
    "prepare large data with meridian data prepare"
)


class _TooLong(BaseException):
    """The time is over; no Exception, which readers of files take for a broken file."""


def main() -> int:
    """Answer the question on stdin."""
    question = read_json(sys.stdin.read())
    os.nice(19)
    resource.setrlimit(resource.RLIMIT_DATA, (question["memory_bytes"],) * 2)
    signal.signal(signal.SIGALRM, _stop)
    signal.setitimer(signal.ITIMER_REAL, question["seconds"])
    samples = answer(question)
    signal.setitimer(signal.ITIMER_REAL, 0)
    sys.stdout.write(json.dumps(samples))
    return 0


def answer(question: dict[str, Any]) -> dict[str, Any]:
    """{samples, error} for a question."""
    try:
        job = parse(TrainJob, question["job"])
        shown = islice(shown_samples(job, 0, question["dc"]), question["samples"])
        samples = [_bounded(sample, question["characters"]).model_dump(mode="json") for sample in shown]
    except InputError as error:
        return {"samples": [], "error": str(error)}
    except _TooLong:
        return {"samples": [], "error": f"The data {TOO_LONG.format(seconds=question['seconds'])}"}
    except MemoryError:
        allowed = f"{question['memory_bytes'] / 2**30:g} GiB"
        return {"samples": [], "error": f"Reading the data takes more than {allowed} of memory"}
    return {"samples": samples, "error": ""}


def _bounded(sample: dict[str, Any], characters: int) -> ShownSample:
    """A sample of at most so many characters."""
    parts = list(_parts(sample["parts"], characters))
    last = sample["parts"][len(parts) - 1]
    is_whole = len(parts) == len(sample["parts"]) and parts[-1].text == last["text"]
    return ShownSample(source=sample["source"][-1_000:], parts=tuple(parts), cut=not is_whole)


def _parts(parts: list[dict[str, Any]], characters: int) -> Iterator[ShownPart]:
    for part in parts[:MOST_PARTS]:
        if characters <= 0:
            return
        text = part["text"][:characters]
        characters -= len(text)
        yield ShownPart(document=part["document"], counts=part["counts"], tokens=part["tokens"], text=text)


def _stop(_number: int, _frame: FrameType | None) -> None:
    raise _TooLong


if __name__ == "__main__":
    sys.exit(main())
