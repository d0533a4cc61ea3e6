"""Span codes: the short arrays in which spans are stored and sent to browsers (docs/dev/interfaces.md)."""

from typing import Any

from engine.simulate.spans import Span

OPS = {
    "F": "F", "R": "R", "B": "B", "W": "W", "all_reduce": "A", "optimizer": "O", "checkpoint": "C",
    "prefill": "P",
}  # fmt: skip
TRAINING = frozenset("FRBW")
SYNC = frozenset("AOC")
PREFILL = "P"
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


OP_NAMES: dict[str, Any] = {code: op for op, code in OPS.items()}


def span_of(code: Code, *, pipeline: int, stage: int, wan: bool, **where: Any) -> Span:
    """The span of a code, in milliseconds: the inverse of `code_of`.

    Parameters
    ----------
    wan : whether the code, if a transfer, goes between two data centres.
    where : run, iteration and gpu of the span.
    """
    if code[0] != "T":
        return Span(
            track="gpu", pipeline=pipeline, stage=stage, op=OP_NAMES[code[0]], microbatch=code[1],
            start=code[2], end=code[3], **where,
        )  # fmt: skip
    return Span(
        track="wan" if wan else "lan", pipeline=pipeline, from_stage=code[5], to_stage=code[6],
        payload="activation" if code[7] == "a" else "gradient", microbatch=code[1], start=code[2],
        end=code[3], arrives=code[4], bytes=code[8], run=where.get("run"), iteration=where.get("iteration"),
    )  # fmt: skip


def _ms(seconds: Any, origin: float) -> float:
    value = (float(seconds) - origin) * 1e3
    if not -1e13 < value < 1e13:  # also refuses nan and inf
        raise ValueError(f"time out of range: {seconds!r}")
    return round(value, 3)
