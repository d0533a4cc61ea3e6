"""ByteDance's op traces: a parquet file with one row an op, and a YAML file with the layout.

The format is that of StragglerAnalysis ("Understanding Stragglers in Large Model Training Using What-if
Analysis"): columns dp_rank, stage, rank, step, optype, start_ts, duration (seconds), seq_id, mc (model chunk
on the stage), mb_id (microbatch) and gmc (chunk on the path of the whole model); −1 where one does not apply.
"""

from pathlib import Path
from typing import Annotated, Any

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from engine.analyze import trace as ops
from engine.analyze.trace import KIND_OF, Layout, Trace
from engine.documents import load_document
from engine.errors import InputError
from engine.inputs import Count, Document, Index, nearest, parse

MOST_ROWS = 50_000_000
MOST_SIZE = 100_000  # of any dimension of a layout

WHOLE = ("dp_rank", "stage", "step", "seq_id", "mc", "mb_id", "gmc")
TIMES = ("start_ts", "duration")
COLUMNS = (*WHOLE, "optype", *TIMES)
OPTYPES = (
    ops.FORWARD,
    ops.BACKWARD,
    ops.FORWARD_SEND,
    ops.FORWARD_RECV,
    ops.BACKWARD_SEND,
    ops.BACKWARD_RECV,
    ops.ALL_GATHER,
    ops.REDUCE_SCATTER,
    ops.SEPARATE,
    ops.LAYERNORM,
    ops.EMBEDDING,
    ops.CLIP,
    ops.OPTIMIZER,
    ops.GARBAGE,
)

Size = Annotated[Count, Field(le=MOST_SIZE)]


class Meta(Document):
    """The layout of a job, as its meta file names it: data, pipeline, tensor and sequence parallel sizes."""

    trial_name: str = ""
    run_id: Index = 0
    dp_size: Size = 1
    pp_size: Size = 1
    tp_size: Size = 1
    dsp_size: Size = 1
    vpp_size: Size = 1
    world_size: Count | None = None


def read_meta(path: Path) -> Meta:
    """The meta file at `path`. Raises InputError where it is not one, or its sizes do not multiply."""
    document = load_document(path)
    if isinstance(document, dict) and isinstance(document.get("trial_name"), int | float):
        document = {**document, "trial_name": str(document["trial_name"])}
    meta = parse(Meta, document)
    product = meta.dp_size * meta.pp_size * meta.tp_size * meta.dsp_size
    if meta.world_size is not None and meta.world_size != product:
        allowed = f"dp_size x pp_size x tp_size x dsp_size is {product}"
        raise InputError("world_size", meta.world_size, allowed)
    return meta


def read_parquet(path: Path, meta: Meta | None) -> Trace:
    """The trace in a parquet file; without `meta` the layout is that of its rows.

    Raises
    ------
    InputError
        The file is damaged, too large, lacks a column, or has a value that no trace has.
    """
    values = _columns(path)
    names, codes = values["optype"]
    kind = _kinds(path, names, codes)
    # Ends are rounded as the file rounds starts: what follows from them is what its authors print.
    end = _seconds(path, "start_ts", values["start_ts"] + values["duration"])
    start, duration = (_seconds(path, name, values[name]) for name in TIMES)
    if (duration < 0).any():
        row = int(np.argmax(duration < 0))
        raise InputError(f"{path.name}: duration", float(duration[row]), f"row {row}: must be 0 or more")
    whole = {name: values[name].astype(np.int64) for name in WHOLE}
    layout = _layout(path, whole, meta)
    # Chunks of a stage follow each other on the path at a distance of all stages.
    position = np.where(whole["mc"] >= 0, whole["mc"] * layout.stages + whole["stage"], -1)
    return Trace(
        format="bytedance",
        layout=layout,
        kind=kind,
        replica=whole["dp_rank"],
        stage=whole["stage"],
        step=whole["step"],
        index=whole["seq_id"],
        chunk=whole["mc"],
        position=np.where(whole["gmc"] >= 0, whole["gmc"], position),
        microbatch=whole["mb_id"],
        start=start,
        end=end,
        duration=duration,
    )


def _columns(path: Path) -> dict[str, Any]:
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        file = pq.ParquetFile(path)
        if file.metadata.num_rows > MOST_ROWS:
            allowed = f"too many rows: at most {MOST_ROWS:,}"
            raise InputError(f"{path.name}: rows", file.metadata.num_rows, allowed)
        missing = [name for name in COLUMNS if name not in file.schema_arrow.names]
        if missing:
            columns_there = ", ".join(file.schema_arrow.names[:20])
            allowed = f"required column, but missing; the file has {columns_there or 'none'}"
            raise InputError(f"{path.name}: {missing[0]}", None, allowed)
        table = file.read(columns=list(COLUMNS))
    except (InputError, MemoryError):
        raise
    except (pa.ArrowException, OSError, ValueError) as error:
        why = str(error).partition("\n")[0].partition(". ")[0][:200]
        raise InputError("TRACE", str(path), f"not a parquet file that can be read ({why})") from None
    if table.num_rows == 0:
        raise InputError(f"{path.name}: rows", 0, "at least one op is required")
    return {name: _column(path, name, table.column(name)) for name in COLUMNS}


def _column(path: Path, name: str, column: Any) -> Any:
    """A numpy array; for optype the names, and the code of each row."""
    import pyarrow as pa

    if column.null_count:
        raise InputError(
            f"{path.name}: {name}", None, f"every row needs one; {column.null_count:,} have none"
        )
    kind = column.type
    if name == "optype":
        value_type = kind.value_type if pa.types.is_dictionary(kind) else kind
        if not (pa.types.is_string(value_type) or pa.types.is_large_string(value_type)):
            raise InputError(f"{path.name}: {name}", str(kind), "must be a column of text")
        encoded = column.combine_chunks()
        encoded = encoded if pa.types.is_dictionary(kind) else encoded.dictionary_encode()
        if isinstance(encoded, pa.ChunkedArray):
            encoded = encoded.unify_dictionaries().combine_chunks()
        try:
            return encoded.dictionary.to_pylist(), encoded.indices.to_numpy()
        except UnicodeDecodeError:
            raise InputError(f"{path.name}: {name}", None, "must be UTF-8 text") from None
    wants_whole = name in WHOLE
    if not (pa.types.is_integer(kind) or (not wants_whole and pa.types.is_floating(kind))):
        allowed = "must be a column of whole numbers" if wants_whole else "must be a column of numbers"
        raise InputError(f"{path.name}: {name}", str(kind), allowed)
    return column.to_numpy()


def _kinds(path: Path, names: list[str], codes: NDArray[Any]) -> NDArray[np.int8]:
    for code in np.unique(codes).tolist():  # a column may have names that no row has
        if names[code] not in OPTYPES:
            raise InputError(
                f"{path.name}: optype", names[code], "unknown op, " + nearest(names[code], OPTYPES)
            )
    return np.array([KIND_OF.get(name, -1) for name in names], dtype=np.int8)[codes]


def _seconds(path: Path, name: str, values: NDArray[Any]) -> NDArray[np.float64]:
    seconds = values.astype(np.float64)
    if not np.isfinite(seconds).all():
        row = int(np.argmax(~np.isfinite(seconds)))
        raise InputError(f"{path.name}: {name}", float(seconds[row]), f"row {row}: must be a finite number")
    return seconds


def _layout(path: Path, whole: dict[str, NDArray[np.int64]], meta: Meta | None) -> Layout:
    sizes = {}
    for column, field in (("dp_rank", "dp_size"), ("stage", "pp_size")):
        least, most = int(whole[column].min()), int(whole[column].max())
        if least < 0 or most >= MOST_SIZE:
            value = least if least < 0 else most
            raise InputError(f"{path.name}: {column}", value, f"must be 0 to {MOST_SIZE - 1:,}")
        sizes[field] = most + 1
        if meta is not None and getattr(meta, field) != sizes[field]:
            allowed = f"the rows of {path.name} have {column} 0 to {most}"
            raise InputError(f"meta: {field}", getattr(meta, field), allowed)
    chunks = max(int(whole["mc"].max()) + 1, 1)
    replicas, stages = sizes["dp_size"], sizes["pp_size"]
    if meta is None:
        return Layout(replicas=replicas, stages=stages, chunks=chunks)
    gpus = meta.dp_size * meta.pp_size * meta.tp_size * meta.dsp_size
    return Layout(replicas=replicas, stages=stages, chunks=chunks, gpus=gpus, sequence_parallel=meta.dsp_size)
