"""Events of a Chrome trace in columns: what torch.profiler (Kineto), Perfetto's JSON and `--trace` write."""

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from engine.analyze.json_columns import Rest, read_array
from engine.analyze.spans import text_codes
from engine.analyze.trace import Floats, Ints
from engine.errors import InputError

ARGUMENTS = ("microbatch", "chunk", "iteration", "arrives_us")
NUMBERS = ("pid", "tid", "ts", "dur")
# Kinds of event that say nothing of what a GPU does and when, and are most of a profile.
UNUSED = frozenset({"python_function", "cuda_runtime", "cuda_driver", "ac2g", "fwdbwd", "overhead", "Trace"})
MICROSECOND = 1e-6


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Events:
    """The complete events of a file, in order of their starts, in seconds.

    name, category : codes into `names` (−1: none).  arguments : numbers, NaN where there is none.
    document : the fields of the file beside its events.
    """

    names: tuple[str, ...]
    name: Ints
    category: Ints
    process: Floats
    thread: Floats
    start: Floats
    end: Floats
    arguments: dict[str, Floats]
    document: dict[str, Any]

    def matching(self, pattern: str) -> NDArray[np.bool_]:
        """Which events have a name that the pattern matches as a whole."""
        fits = [re.fullmatch(pattern, name) is not None for name in self.names]
        return np.array([*fits, False])[self.name]

    def of_category(self, *categories: str) -> NDArray[np.bool_]:
        """Which events are of one of these categories."""
        return np.array([*(name in categories for name in self.names), False])[self.category]


def read_events(path: Path) -> Events:
    """The complete events of the trace at `path`. Raises InputError where it has none, or a bad one."""
    import pyarrow as pa

    inner = pa.struct([(name, pa.float64()) for name in ARGUMENTS])
    texts = [(name, pa.string()) for name in ("ph", "cat", "name")]
    schema = pa.schema([*texts, *((name, pa.float64()) for name in NUMBERS), ("args", inner)])
    rest, codes = Rest(), dict[str, int]()
    parts: list[list[NDArray[Any]]] = []
    for table in read_array(path, ("traceEvents",), schema, rest):
        if part := _part(table, codes, path):
            parts.append(part)
    if not parts:
        raise InputError(f"{path.name}: traceEvents", None, "no complete event (ph X) that tells of an op")
    # Column after column, so that a trace of gigabytes is not there twice.
    columns = [np.concatenate([part.pop() for part in parts]) for _ in range(len(parts[0]))]
    name, category, process, thread, start, length, *arguments = columns[::-1]
    for field, values in (("ts", start), ("dur", length)):
        if not np.isfinite(values).all():
            raise InputError(f"{path.name}: {field}", None, "every complete event needs one, a number")
    if (length < 0).any():
        raise InputError(f"{path.name}: dur", float(length[length < 0][0]), "must be 0 or more")
    order = np.argsort(start, kind="stable")
    start, length = start[order] * MICROSECOND, length[order] * MICROSECOND
    return Events(
        names=tuple(codes),
        name=name[order],
        category=category[order],
        process=process[order],
        thread=thread[order],
        start=start,
        end=start + length,
        arguments={field: values[order] for field, values in zip(ARGUMENTS, arguments, strict=True)},
        document=rest.fields,
    )


def _part(table: Any, codes: dict[str, int], path: Path) -> list[NDArray[Any]]:
    """Columns of the events of a table that are used; empty if there are none."""
    import pyarrow.compute as pc

    unused = pc.is_in(table.column("cat"), value_set=_texts(UNUSED))
    table = table.filter(pc.and_(pc.equal(table.column("ph"), "X"), pc.invert(unused)))
    if table.num_rows == 0:
        return []
    inner = table.column("args").combine_chunks()
    return [
        text_codes(table.column("name"), codes, path),
        text_codes(table.column("cat"), codes, path),
        *(table.column(name).to_numpy().astype(np.float64) for name in NUMBERS),
        *(pc.struct_field(inner, name).to_numpy(zero_copy_only=False) for name in ARGUMENTS),
    ]


def _texts(values: frozenset[str]) -> Any:
    import pyarrow as pa

    return pa.array(sorted(values))
