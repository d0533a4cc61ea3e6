"""Spans as a Chrome trace (the JSON object format), which Perfetto and chrome://tracing open.

One process per pipeline, one thread per GPU and per direction of a hop. The arrival of a transfer is an
argument of its event.
"""

from collections.abc import Iterable
from typing import Any

from engine.simulate.spans import Span

# Length of one time unit in microseconds, the unit of a Chrome trace.
MICROSECONDS = {"s": 1e6, "ms": 1e3, "us": 1.0, "slot": 1e3}
# Transfers are listed under the GPUs: thread ids of links start here.
FIRST_LINK = 100_000


def chrome_trace(spans: Iterable[Span], unit: str = "slot") -> dict[str, Any]:
    """Return `spans` as a trace object with ``traceEvents``, ready for `json.dump`.

    Parameters
    ----------
    unit : of the spans' times: ``s``, ``ms``, ``us``, or ``slot`` (abstract; one is drawn as a millisecond).

    Raises
    ------
    ValueError
        The unit is not one of these.
    """
    if unit not in MICROSECONDS:
        raise ValueError(f"unit {unit!r}: must be one of {', '.join(MICROSECONDS)}")
    spans = list(spans)
    scale = MICROSECONDS[unit]
    origin = min((span.start for span in spans), default=0.0)
    tracks = {(span.pipeline, _thread(span)): _thread_name(span) for span in spans}
    names = [_metadata("process_name", p, 0, f"pipeline {p}") for p in sorted({p for p, _ in tracks})]
    threads = [_metadata("thread_name", p, t, name) for (p, t), name in sorted(tracks.items())]
    events = [_event(span, origin, scale) for span in spans]
    return {"traceEvents": names + threads + events, "displayTimeUnit": "ms", "otherData": {"unit": unit}}


def _event(span: Span, origin: float, scale: float) -> dict[str, Any]:
    shown = {"microbatch", "chunk", "bytes", "iteration", "run", "gpu"}
    arguments = {name: value for name, value in span.as_dict().items() if name in shown}
    if span.arrives is not None:
        arguments["arrives_us"] = (span.arrives - origin) * scale
    return {
        "ph": "X",
        "name": _name(span),
        "cat": span.track,
        "pid": span.pipeline,
        "tid": _thread(span),
        "ts": (span.start - origin) * scale,
        "dur": (span.end - span.start) * scale,
        "args": arguments,
    }


def _name(span: Span) -> str:
    what = str(span.op if span.track == "gpu" else span.payload)
    number = "" if span.microbatch is None else str(span.microbatch)
    return f"{what}{number}" if len(what) == 1 else f"{what} {number}".strip()


def _thread(span: Span) -> int:
    if span.track == "gpu":
        return span.stage or 0
    hop = min(span.from_stage or 0, span.to_stage or 0)
    return FIRST_LINK + 2 * hop + int(span.payload == "gradient")


def _thread_name(span: Span) -> str:
    if span.track == "gpu":
        return f"stage {span.stage}" + (f" ({span.gpu})" if span.gpu else "")
    return f"{span.track} {span.from_stage} to {span.to_stage}"


def _metadata(kind: str, pid: int, tid: int, name: str) -> dict[str, Any]:
    return {"ph": "M", "name": kind, "pid": pid, "tid": tid, "args": {"name": name}}
