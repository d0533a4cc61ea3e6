"""The process in which trackers write: what they do with threads and locks stays out of the host.

Reads lines from standard input: first what is tracked (JSON: folders, name, document), then `step` and
`validation` events, last the ending of the run as one word. Its log is tracking.log.
"""

import json
import os
import signal
import sys
from typing import cast, get_args

from engine.job.events.event import from_json
from engine.job.events.training import Step, Validation
from engine.train.trackers import figures_of, open_trackers
from engine.train.trackers.base import Ending, TrackedRun


def main() -> int:
    """Entry point of ``python -m engine.run.tracking_process``."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    os.environ["MLFLOW_DISABLE_TELEMETRY"] = os.environ["DO_NOT_TRACK"] = (
        "true"  # before a tracker is imported
    )
    first = json.loads(sys.stdin.buffer.readline())
    run = TrackedRun(name=first["name"], document=first["document"])
    trackers = open_trackers(first["folders"], run)
    ending: Ending = "failed"  # unless the host says how the run ended
    for line in sys.stdin.buffer:
        word = line.decode().strip()
        if word in get_args(Ending):
            ending = cast(Ending, word)
            break
        event = from_json(line)
        assert isinstance(event, Step | Validation)
        figures, step = figures_of(event)
        for tracker in trackers:
            tracker.add(figures, step, event.t)
    for tracker in trackers:
        tracker.close(ending)
    return 0


if __name__ == "__main__":
    sys.exit(main())
