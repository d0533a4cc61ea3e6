"""Span codes: the short arrays in which spans are stored and sent to browsers (docs/dev/interfaces.md)."""

from dataclasses import replace
from typing import Any

from engine.simulate.spans import Payload, Span, SpanOp

OPS: dict[SpanOp, str] = {
    "F": "F",
    "R": "R",
    "B": "B",
    "W": "W",
    "all_reduce": "A",
    "optimizer": "O",
    "prefill": "P",
    "checkpoint": "C",
}
TRAINING = frozenset("FRBW")
SYNC = frozenset("AOC")
PREFILL = "P"
TRANSFER = "T"
# Of strategy swap: copies between host and GPU, next to the ops: a sub-model in, its gradients out.
LOADS: dict[Payload | None, str] = {None: "L", "gradient": "G"}
PAYLOADS: dict[Payload, str] = {"activation": "a", "gradient": "g"}
Code = list[Any]


def code_of(span: Span, *, origin: float) -> Code:
    """The code of one span.

    Parameters
    ----------
    origin : Unix seconds (or seconds of the span's own clock) that the code's milliseconds count from.

    Raises
    ------
    ValueError
        The span lacks a field, its op has no code, or its times are out of range.
    """
    start, end = _ms(span.start, origin), _ms(span.end, origin)
    if span.op == "load" and span.payload in LOADS:
        return [LOADS[span.payload], span.chunk, start, end, span.bytes or 0]
    if span.track == "gpu":
        if span.op not in OPS:
            raise ValueError(f"op {span.op!r} has no code")
        return [OPS[span.op], span.microbatch, start, end]
    if span.from_stage is None or span.to_stage is None or span.payload is None:
        raise ValueError("a transfer has from_stage, to_stage and payload")
    arrives = end if span.arrives is None else _ms(span.arrives, origin)
    return [
        TRANSFER,
        span.microbatch,
        start,
        end,
        arrives,
        span.from_stage,
        span.to_stage,
        PAYLOADS[span.payload],
        span.bytes or 0,
    ]


def in_seconds(span: Span) -> Span:
    """A span whose times are in ms, in seconds: `code_of` makes milliseconds of them again."""
    arrives = None if span.arrives is None else span.arrives / 1e3
    return replace(span, start=span.start / 1e3, end=span.end / 1e3, arrives=arrives)


OP_NAMES = {code: op for op, code in OPS.items()}
PAYLOAD_NAMES = {code: payload for payload, code in PAYLOADS.items()}
LOAD_PAYLOADS = {code: payload for payload, code in LOADS.items()}


def span_of(code: Code, *, pipeline: int, stage: int, wan: bool, **where: Any) -> Span:
    """The span of a code, in milliseconds: the inverse of `code_of`.

    Parameters
    ----------
    wan : whether the code, if a transfer, goes between two data centres.
    where : run, iteration and gpu of the span.
    """
    if code[0] in LOAD_PAYLOADS:
        return Span(
            track="gpu",
            pipeline=pipeline,
            stage=stage,
            op="load",
            chunk=code[1],
            payload=LOAD_PAYLOADS[code[0]],
            start=code[2],
            end=code[3],
            bytes=code[4],
            **where,
        )
    if code[0] != TRANSFER:
        return Span(
            track="gpu",
            pipeline=pipeline,
            stage=stage,
            op=OP_NAMES[code[0]],
            microbatch=code[1],
            start=code[2],
            end=code[3],
            **where,
        )
    return Span(
        track="wan" if wan else "lan",
        pipeline=pipeline,
        from_stage=code[5],
        to_stage=code[6],
        payload=PAYLOAD_NAMES[code[7]],
        microbatch=code[1],
        start=code[2],
        end=code[3],
        arrives=code[4],
        bytes=code[8],
        run=where.get("run"),
        iteration=where.get("iteration"),
    )


def _ms(seconds: float, origin: float) -> float:
    value = (seconds - origin) * 1e3
    if not -1e13 < value < 1e13:  # also refuses nan and inf
        raise ValueError(f"time out of range: {seconds!r}")
    return round(value, 3)
