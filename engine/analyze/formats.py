"""Reads a trace of any format that is known, by what the file holds and not by its name."""

from pathlib import Path

from engine.analyze.graph import Graph
from engine.analyze.op_dependencies import op_graph
from engine.analyze.parquet import read_meta, read_parquet
from engine.analyze.trace import Trace
from engine.errors import InputError

PARQUET = b"PAR1"
KNOWN = "a parquet file of ByteDance's StragglerAnalysis"


def load(path: Path, meta: Path | None = None) -> tuple[Trace, Graph | None]:
    """The trace at `path`, and what waits for what in it; None where the format does not say.

    Raises
    ------
    InputError
        The file is no trace, is damaged, or passes a bound of its format's reader.
    """
    if _first_bytes(path, len(PARQUET)) == PARQUET:
        trace = read_parquet(path, read_meta(meta) if meta else None)
        return trace, op_graph(trace)
    if meta is not None:
        raise InputError("--meta", str(meta), "belongs to a parquet file alone")
    raise InputError("TRACE", str(path), f"not a trace: must be {KNOWN}")


def _first_bytes(path: Path, count: int) -> bytes:
    try:
        with path.open("rb") as file:
            return file.read(count)
    except (OSError, ValueError) as error:  # a name with NUL in it
        why = error.strerror if isinstance(error, OSError) else error
        raise InputError("TRACE", str(path), f"cannot be read ({why})") from None
