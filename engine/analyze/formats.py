"""Reads a trace of any format that is known, by what the file holds and not by its name."""

import re
from dataclasses import dataclass
from pathlib import Path

from engine.analyze.graph import Graph
from engine.analyze.json_columns import first_bytes
from engine.analyze.op_dependencies import op_graph
from engine.analyze.parquet import read_meta, read_parquet
from engine.analyze.span_graph import span_graph
from engine.analyze.spans import read_span_lines, read_span_list
from engine.analyze.trace import Trace
from engine.errors import InputError

PARQUET = b"PAR1"
LOOKED_AT = 1 << 20
KNOWN = "a parquet file of ByteDance's StragglerAnalysis, or spans of meridian"


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Loaded:
    """A trace, and what waits for what in it; None where the format does not say.

    has_launch_delays : False where transfers are not in the trace, and would pass for delays.
    """

    trace: Trace
    graph: Graph | None
    has_launch_delays: bool = True


def load(path: Path, meta: Path | None = None) -> Loaded:
    """The trace at `path`.

    Raises
    ------
    InputError
        The file is no trace, is damaged, or passes a bound of its format's reader.
    """
    begin = first_bytes(path, LOOKED_AT)
    if begin.startswith(PARQUET):
        trace = read_parquet(path, read_meta(meta) if meta else None)
        return Loaded(trace=trace, graph=op_graph(trace))
    if meta is not None:
        raise InputError("--meta", str(meta), "belongs to a parquet file alone")
    if re.match(rb'\s*\{[^\n]*"track"[^\n]*\}\s*(\n|$)', begin):
        trace = read_span_lines(path)
        return Loaded(trace=trace, graph=span_graph(trace))
    if begin.lstrip().startswith(b"{") and re.search(rb'"spans"\s*:\s*\[', begin):
        trace = read_span_list(path)
        return Loaded(trace=trace, graph=span_graph(trace))
    raise InputError("TRACE", str(path), f"not a trace: must be {KNOWN}")
