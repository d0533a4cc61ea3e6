"""What is deleted with a run besides what jobs keep of it: its telemetry."""

from webapp.jobs.archive import part
from webapp.live.models import (
    IterationStat,
    KeptRange,
    LogLine,
    PrefillCoordinator,
    PrefillMinute,
    PrefillSecond,
    SpanBatch,
)

PARTS = (
    part(40, "iteration with its metrics", "iterations with their metrics", IterationStat),
    part(50, "recorded timeline of a GPU", "recorded timelines of GPUs", SpanBatch),
    part(55, "kept range of the timeline", "kept ranges of the timeline", KeptRange),
    part(60, "log line", "log lines", LogLine),
    part(70, "prefill coordinator", "prefill coordinators", PrefillCoordinator),
    part(80, "second of prefill figures", "seconds of prefill figures", PrefillSecond),
    part(90, "minute of prefill figures", "minutes of prefill figures", PrefillMinute),
)
