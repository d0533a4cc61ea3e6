"""Our own spans as a trace: a span a line, or the list in an answer of `meridian simulate`."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from engine.analyze import trace as ops
from engine.analyze.json_columns import Rest, read_array, read_lines
from engine.analyze.trace import KIND_OF, Floats, Ints, Layout, Trace
from engine.errors import InputError

OPS = {
    "F": ops.FORWARD,
    "R": ops.RECOMPUTE,
    "B": ops.BACKWARD,
    "W": ops.WEIGHT,
    "all_reduce": ops.ALL_REDUCE,
    "optimizer": ops.OPTIMIZER,
}
PAYLOADS = {
    "activation": (ops.FORWARD_LINK, ops.FORWARD_LATENCY),
    "gradient": (ops.BACKWARD_LINK, ops.BACKWARD_LATENCY),
}
TEXTS = ("track", "op", "payload")
NUMBERS = ("pipeline", "stage", "from_stage", "microbatch", "chunk", "start", "end", "arrives", "iteration")
MOST_SIZE = 100_000
NO_TIME_S = 1e-12


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Columns:
    """Spans in columns of one length: codes of texts (−1: none) into `names`, and numbers (NaN: none)."""

    names: tuple[str, ...]
    texts: dict[str, Ints]
    numbers: dict[str, Floats]

    def which(self, field: str, value: str) -> NDArray[np.bool_]:
        """Which spans have this text."""
        code = self.names.index(value) if value in self.names else -2
        return self.texts[field] == code


def read_span_lines(path: Path) -> Trace:
    """The trace in a file of one span a line. Raises InputError where it is none."""
    return trace_of(_columns(read_lines(path, _schema()), path), path)


def read_span_list(path: Path) -> Trace:
    """The trace in the list ``spans`` of a document, such as an answer of `meridian simulate --json`."""
    return trace_of(_columns(read_array(path, ("spans",), _schema(), Rest()), path), path)


def _schema() -> Any:
    import pyarrow as pa

    texts = [(name, pa.string()) for name in TEXTS]
    return pa.schema([*texts, *((name, pa.float64()) for name in NUMBERS)])


def _columns(tables: Iterable[Any], path: Path) -> Columns:
    codes: dict[str, int] = {}
    texts: dict[str, list[Ints]] = {name: [] for name in TEXTS}
    numbers: dict[str, list[Floats]] = {name: [np.zeros(0)] for name in NUMBERS}
    for table in tables:
        for name in TEXTS:
            texts[name].append(text_codes(table.column(name), codes, path))
        for name in NUMBERS:
            numbers[name].append(table.column(name).to_numpy())
    return Columns(
        names=tuple(codes),
        texts={name: np.concatenate([np.zeros(0, dtype=np.int64), *parts]) for name, parts in texts.items()},
        numbers={name: np.concatenate(parts).astype(np.float64) for name, parts in numbers.items()},
    )


def text_codes(column: Any, codes: dict[str, int], path: Path) -> Ints:
    """Codes of a column of text, −1 where there is none; new texts are added to `codes`.

    Raises InputError where a text is not UTF-8.
    """
    import pyarrow as pa

    encoded = column.combine_chunks()
    encoded = (encoded.chunk(0) if isinstance(encoded, pa.ChunkedArray) else encoded).dictionary_encode()
    try:
        texts = encoded.dictionary.to_pylist()
    except UnicodeDecodeError:
        raise InputError("TRACE", str(path), "not UTF-8 text") from None
    own = [codes.setdefault(text, len(codes)) for text in texts]
    indices = encoded.indices.fill_null(len(own)).to_numpy()
    return np.array([*own, -1], dtype=np.int32)[indices]


def trace_of(columns: Columns, path: Path) -> Trace:
    """The trace that spans are; those of work other than training are left out.

    Raises
    ------
    InputError
        There is no forward or backward, or a field is missing or out of range.
    """
    parts = list(_gpu(columns, path)) + list(_links(columns, path))
    if not any(part["kind"] in (KIND_OF[ops.FORWARD], KIND_OF[ops.BACKWARD]) for part in parts):
        raise InputError(f"{path.name}: op", None, "no span of track gpu with op F or B")
    kind = np.concatenate([np.full(len(part["start"]), part["kind"], dtype=np.int8) for part in parts])
    joined = {name: np.concatenate([part[name] for part in parts]) for name in parts[0] if name != "kind"}
    del parts
    layout = Layout(
        replicas=int(joined["replica"].max()) + 1,
        stages=int(joined["stage"].max()) + 1,
        chunks=int(joined["chunk"].max()) + 1,
    )
    position, microbatch = _positions(kind, joined, layout), joined["microbatch"]
    index = np.where(microbatch >= 0, microbatch * layout.chunks + np.maximum(joined["chunk"], 0), -1)
    unnumbered = np.flatnonzero(index < 0)
    index[unnumbered] = _counted(kind[unnumbered], {name: joined[name][unnumbered] for name in joined})
    return Trace(
        format="spans",
        layout=layout,
        kind=kind,
        position=position,
        index=index,
        replica=joined["replica"],
        stage=joined["stage"],
        step=joined["step"],
        chunk=joined["chunk"],
        microbatch=microbatch,
        start=joined["start"],
        end=joined["end"],
        duration=joined["end"] - joined["start"],
    )


def _gpu(columns: Columns, path: Path) -> Iterator[dict[str, Any]]:
    on_gpu = columns.which("track", "gpu")
    for name, kind in OPS.items():
        chosen = on_gpu & columns.which("op", name)
        if chosen.any():
            microbatch = "microbatch" if len(name) == 1 else None
            yield {"kind": KIND_OF[kind], **_part(columns, path, chosen, "stage", microbatch)}


def _links(columns: Columns, path: Path) -> Iterator[dict[str, Any]]:
    crosses = columns.which("track", "wan") | columns.which("track", "lan")
    for payload, (link, latency) in PAYLOADS.items():
        chosen = crosses & columns.which("payload", payload)
        if not chosen.any():
            continue
        part = _part(columns, path, chosen, "from_stage", "microbatch")
        yield {"kind": KIND_OF[link], **part}
        arrives = columns.numbers["arrives"][chosen]
        arrives = np.where(np.isnan(arrives), part["end"], arrives)
        if (arrives > part["end"] + NO_TIME_S).any():
            yield {"kind": KIND_OF[latency], **part, "start": part["end"], "end": arrives}


def _part(
    columns: Columns, path: Path, chosen: NDArray[np.bool_], stage: str, microbatch: str | None
) -> dict[str, Any]:
    def whole(field: str, missing: int | None) -> Ints:
        values = columns.numbers[field][chosen]
        if missing is None and np.isnan(values).any():
            raise InputError(f"{path.name}: {field}", None, "every span needs one")
        values = np.where(np.isnan(values), missing or 0, values)
        bad = (values != np.floor(values)) | (values < 0) | (values >= MOST_SIZE)
        if field != "iteration" and bad.any():
            allowed = f"must be a whole number from 0 to {MOST_SIZE - 1:,}"
            raise InputError(f"{path.name}: {field}", float(values[bad][0]), allowed)
        return values.astype(np.int64)

    start, end = columns.numbers["start"][chosen], columns.numbers["end"][chosen]
    for field, values in (("start", start), ("end", end)):
        if not np.isfinite(values).all():
            raise InputError(f"{path.name}: {field}", None, "every span needs one, a finite number")
    if (end < start).any():
        at = int(np.argmax(end < start))
        raise InputError(f"{path.name}: end", float(end[at]), f"must not be before start ({start[at]})")
    none = np.full(len(start), -1, dtype=np.int64)
    return {
        "replica": whole("pipeline", None),
        "stage": whole(stage, None),
        "step": whole("iteration", 0),
        "chunk": whole("chunk", 0) if microbatch else none,
        "microbatch": whole(microbatch, None) if microbatch else none,
        "start": start,
        "end": end,
    }


def _positions(kind: NDArray[np.int8], joined: dict[str, Any], layout: Layout) -> Ints:
    """Of each op the position of its chunk on the path, by the traversal that its forwards keep to."""
    stage, chunk = joined["stage"], np.maximum(joined["chunk"], 0)
    back_and_forth = np.where(chunk % 2 == 0, stage, layout.stages - 1 - stage)
    candidates = (
        chunk * layout.stages + stage,  # straight, and loop
        chunk * layout.stages + back_and_forth,  # wave
        stage * layout.chunks + chunk,  # sub-blocks of one stage
    )
    forward = kind == KIND_OF[ops.FORWARD]

    def early(position: Ints) -> int:
        """How many forwards begin before the one before them on the path has ended."""
        keys = [joined[name][forward] for name in ("microbatch", "replica", "step")]
        order = np.lexsort((position[forward], *keys))
        same = np.ones(max(len(order) - 1, 0), dtype=np.bool_)
        for key in keys:
            same &= key[order[1:]] == key[order[:-1]]
        start, end = joined["start"][forward][order], joined["end"][forward][order]
        return int(np.count_nonzero(same & (start[1:] < end[:-1])))

    best = candidates[0] if layout.chunks == 1 else min(candidates, key=early)
    return np.where(joined["microbatch"] >= 0, best, -1)


def _counted(kind: NDArray[np.int8], joined: dict[str, Any]) -> Ints:
    """0, 1, … of the ops of one kind, worker and step, by their starts."""
    keys = [kind, joined["stage"], joined["replica"], joined["step"]]
    order = np.lexsort((joined["start"], *keys))
    first = np.ones(len(order), dtype=np.bool_)
    first[1:] = False
    for key in keys:
        first[1:] |= key[order[1:]] != key[order[:-1]]
    at = np.arange(len(order))
    counted = np.zeros(len(order), dtype=np.int64)
    counted[order] = at - np.maximum.accumulate(np.where(first, at, 0))
    return counted
