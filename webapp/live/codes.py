"""Span codes: the short arrays in which spans are stored and sent to browsers (docs/dev/interfaces.md)."""

from typing import Any

OPS = {"F": "F", "R": "R", "B": "B", "W": "W", "all_reduce": "A", "optimizer": "O"}
TRAINING = frozenset("FRBW")
SYNC = frozenset("AO")
Code = list[Any]


def code_of(span: dict[str, Any], *, origin: float) -> Code:
    """The code of one span (a dict as `engine.simulate.spans.Span.as_dict` gives).

    Parameters
    ----------
    origin : Unix seconds (or seconds of the span's own clock) that the code's milliseconds count from.

    Raises
    ------
    KeyError, TypeError, ValueError
        The span lacks a field or has one of a wrong kind.
    """
    start, end = _ms(span["start"], origin), _ms(span["end"], origin)
    microbatch = span.get("microbatch")
    if span["track"] == "gpu":
        return [OPS[span["op"]], microbatch, start, end]
    payload = "a" if span["payload"] == "activation" else "g"
    arrives = _ms(span.get("arrives", span["end"]), origin)
    return [
        "T", microbatch, start, end, arrives, int(span["from_stage"]), int(span["to_stage"]), payload,
        int(span.get("bytes") or 0),
    ]  # fmt: skip


def _ms(seconds: Any, origin: float) -> float:
    value = (float(seconds) - origin) * 1e3
    if not -1e13 < value < 1e13:  # also refuses nan and inf
        raise ValueError(f"time out of range: {seconds!r}")
    return round(value, 3)
