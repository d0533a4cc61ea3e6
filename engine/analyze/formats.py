"""Reads a trace of any format that is known, by what the file holds and not by its name."""

import re
from dataclasses import dataclass, replace
from pathlib import Path

from engine.analyze.events import Events, read_events
from engine.analyze.graph import Graph
from engine.analyze.json_columns import first_bytes
from engine.analyze.kineto import is_profile, read_profiles
from engine.analyze.op_dependencies import op_graph
from engine.analyze.parquet import read_meta, read_parquet
from engine.analyze.perfetto import read_perfetto
from engine.analyze.span_graph import span_graph
from engine.analyze.spans import read_span_lines, read_span_list, trace_of
from engine.analyze.trace import BACKWARD, FORWARD, KERNELS, Trace
from engine.errors import InputError

_PARQUET = b"PAR1"
PARQUET, SPAN_LIST, SPAN_LINES, EVENTS = "parquet", "span list", "span lines", "events"
LOOKED_AT = 1 << 20
KNOWN = (
    "a parquet file of ByteDance's StragglerAnalysis, profiles of torch.profiler, a Chrome trace (Perfetto's "
    "JSON) with ops, or spans of meridian"
)
PROFILES = (".json", ".json.gz")


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Loaded:
    """A trace, and what waits for what in it; None where the format does not say.

    has_launch_delays : False where transfers are not in the trace, and would pass for delays.
    """

    trace: Trace
    graph: Graph | None
    has_launch_delays: bool = True


def format_of(begin: bytes) -> str | None:
    """How to read a file of which `begin` is the first `LOOKED_AT` bytes, unpacked; None: it is no trace."""
    if begin.startswith(_PARQUET):
        return PARQUET
    if begin.lstrip().startswith(b"{") and re.search(rb'"spans"\s*:\s*\[', begin):
        return SPAN_LIST
    if re.match(rb'\s*\{[^\n]*"track"[^\n]*\}\s*(\n|$)', begin):
        return SPAN_LINES
    if re.match(rb"\s*[\[{]", begin) and (begin.lstrip().startswith(b"[") or b'"traceEvents"' in begin):
        return EVENTS
    return None


def load(path: Path, meta: Path | None = None) -> Loaded:
    """The trace at `path`.

    Raises
    ------
    InputError
        The file is no trace, is damaged, or passes a bound of its format's reader.
    """
    if path.is_dir():
        return _load_folder(path)
    form = format_of(first_bytes(path, LOOKED_AT))
    if form == PARQUET:
        trace = read_parquet(path, read_meta(meta) if meta else None)
        return Loaded(trace=trace, graph=op_graph(trace))
    if meta is not None:
        raise InputError("--meta", str(meta), "belongs to a parquet file alone")
    if form in (SPAN_LIST, SPAN_LINES):
        trace = (read_span_list if form == SPAN_LIST else read_span_lines)(path)
        return Loaded(trace=trace, graph=span_graph(trace))
    if form == EVENTS:
        events = read_events(path)
        if is_profile(events):
            return _profiled(read_profiles([(path, events)], whole=False))
        columns = read_perfetto(events, path)
        del events  # gigabytes in a long trace
        trace = replace(trace_of(columns, path), format="perfetto")
        return Loaded(trace=trace, graph=span_graph(trace))
    raise InputError("TRACE", str(path), f"not a trace: must be {KNOWN}")


def _load_folder(folder: Path) -> Loaded:
    """The profiles of all ranks of a run, one file each."""
    files = sorted(file for file in folder.iterdir() if file.name.endswith(PROFILES))
    if not files:
        allowed = f"no file in this folder ends with {' or '.join(PROFILES)}: one of each rank is needed"
        raise InputError("TRACE", str(folder), allowed)
    return _profiled(read_profiles(((file, _profile(file)) for file in files), whole=True))


def _profile(file: Path) -> Events:
    events = read_events(file)
    if not is_profile(events):
        raise InputError("TRACE", str(file), "not of torch.profiler, as all files of a folder must be")
    return events


def _profiled(trace: Trace) -> Loaded:
    has_ops = bool(trace.is_kind(FORWARD, BACKWARD).any()) and not trace.is_kind(KERNELS).any()
    return Loaded(trace=trace, graph=span_graph(trace) if has_ops else None, has_launch_delays=False)
