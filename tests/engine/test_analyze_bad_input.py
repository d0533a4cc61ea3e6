"""`meridian analyze` of what is no trace: exit 2, and one line with file, field and what is allowed."""

import gzip
import json
import random
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from engine.analyze import json_columns, parquet
from engine.analyze.formats import load
from engine.analyze.result import analyze
from engine.errors import InputError
from engine.schedule.scenario import Scenario
from engine.simulate import simulate
from engine.simulate.trace import chrome_trace
from tests.engine.op_traces import op, two_stages, write

ROWS = two_stages((2.0, 2.0), (4.0, 4.0), 0.25, 2)


def _bytes(data: bytes) -> Callable[[Path], Path]:
    def made(folder: Path) -> Path:
        path = folder / "trace.parquet"
        path.write_bytes(data)
        return path

    return made


def _rows(change: Callable[[list[dict[str, Any]]], list[dict[str, Any]]]) -> Callable[[Path], Path]:
    return lambda folder: write(change([dict(row) for row in ROWS]), folder / "trace.parquet")


def _first(**values: Any) -> Callable[[Path], Path]:
    return _rows(lambda rows: [rows[0] | values, *rows[1:]])


def _other_columns(folder: Path) -> Path:
    pq.write_table(pa.table({"name": ["a"], "age": [1]}), folder / "trace.parquet")
    return folder / "trace.parquet"


def _null(folder: Path) -> Path:
    table = pq.read_table(write(ROWS, folder / "trace.parquet"))
    at = table.schema.get_field_index("duration")
    holes = pa.array([None, *table.column("duration").to_pylist()[1:]], pa.float64())
    pq.write_table(table.set_column(at, "duration", holes), folder / "trace.parquet")
    return folder / "trace.parquet"


def _events(change: dict[str, Any]) -> Callable[[Path], Path]:
    event = {"ph": "X", "name": "F0", "pid": 0, "tid": 0, "ts": 0, "dur": 1}
    return _bytes(json.dumps({"traceEvents": [event | change]}).encode())


def _span(**change: Any) -> bytes:
    span = {"track": "gpu", "op": "F", "pipeline": 0, "stage": 0, "microbatch": 0, "start": 0.0, "end": 1.0}
    return json.dumps(span | change).encode() + b"\n"


BAD = {
    "no file": (lambda folder: folder / "gone", "TRACE", "cannot be read (No such file"),
    "an empty folder": (lambda folder: folder, "TRACE", "no file in this folder"),
    "empty": (_bytes(b""), "TRACE", "not a trace"),
    "text": (_bytes(b"hello"), "TRACE", "not a trace"),
    "torn parquet": (_bytes(b"PAR1" + b"\0" * 40), "TRACE", "not a parquet file that can be read"),
    "other columns": (_other_columns, "dp_rank", "the file has name, age"),
    "not JSON": (_bytes(b'{"traceEvents": [{"ph": "X", "name": F3}]}'), "TRACE", "not JSON"),
    "torn JSON": (
        _bytes(b'{"traceEvents": [{"ph": "X", "name": "F3", "ts": 1'),
        "TRACE",
        "ends in the middle",
    ),
    "torn gzip": (_bytes(gzip.compress(b"[" + b"{}, " * 9)[:-9]), "TRACE", "gzip that cannot be unpacked"),
    "no events": (_bytes(b'{"traceEvents": []}'), "traceEvents", "no complete event"),
    "no ops": (_events({"name": "idle"}), "name", "no event is named as an op"),
    "negative event": (_events({"dur": -1}), "dur", "must be 0 or more"),
    "event without a start": (_events({"ts": "now"}), "ts", "every complete event needs one"),
    "backwards span": (_bytes(_span(end=-1.0)), "end", "must not be before start"),
    "span without a stage": (_bytes(_span(stage=None)), "stage", "every span needs one"),
    "half a microbatch": (_bytes(_span(microbatch=0.5)), "microbatch", "must be a whole number"),
    "other lines": (_bytes(b'{"track": "gpu"}\n'), "op", "no span of track gpu"),
    "no UTF-8": (_bytes(_span(op="\xe4").replace(b"\\u00e4", b"\xe4")), "TRACE", "not UTF-8"),
    "no rows": (lambda folder: _empty(folder), "rows", "at least one op"),
    "a hole": (_null, "duration", "every row needs one"),
    "negative duration": (_first(duration=-1.0), "duration", "must be 0 or more"),
    "not a number": (_first(start_ts=float("nan")), "start_ts", "must be a finite number"),
    "unknown op": (_first(optype="forward-computes"), "optype", "did you mean 'forward-compute'?"),
    "negative stage": (_first(stage=-1), "stage", "must be 0 to"),
    "a missing rank": (_rows(lambda rows: [*rows, op("optimizer", 3, 0.0, 1.0)]), "rank", "has no ops"),
    "an op twice": (_rows(lambda rows: [*rows, rows[0]]), "seq_id", "is there twice"),
    "other ops": (
        _rows(lambda rows: [*rows, *[row | {"dp_rank": 1} for row in rows[1:]]]),
        "dp_rank",
        "differ from those of replica 0",
    ),
}


def _empty(folder: Path) -> Path:
    table = pq.read_table(write(ROWS, folder / "trace.parquet"))
    pq.write_table(table.slice(0, 0), folder / "trace.parquet")
    return folder / "trace.parquet"


def _changed(data: bytes, draw: random.Random) -> bytes:
    """The bytes of a file with some of them changed, removed or cut off."""
    changed = bytearray(data)
    for _ in range(draw.choice([1, 1, 2, 5])):
        at, how = draw.randrange(len(changed)), draw.random()
        if how < 0.5:
            changed[at] = draw.randrange(256)
        elif how < 0.7:
            del changed[at : at + draw.randrange(1, 40)]
        elif how < 0.9:
            value = draw.choice([b"-1", b"null", b"1e400", b'"x"', b"{}", b"NaN", b"9" * 20])
            changed[at : at + len(value)] = value
        else:
            del changed[at + 1 :]
    return bytes(changed)


@pytest.mark.parametrize("seed", range(4))
def test_a_damaged_file_is_answered_or_refused(tmp_path: Path, seed: int) -> None:
    draw = random.Random(seed)
    done = simulate(Scenario(stages=2, microbatches=3, times={"forward": 1, "backward": 2}, policy="1f1b"))
    lines = b"".join(json.dumps(span.as_dict()).encode() + b"\n" for span in done.spans())
    events = json.dumps(chrome_trace(done.spans(), "s"), indent=1).encode()
    _profile(0, tmp_path, "profile", world=1)
    whole = [
        lines,
        events,
        gzip.compress(lines),
        (tmp_path / "profile").read_bytes(),
        write(ROWS, tmp_path / "parquet").read_bytes(),
    ]
    messages: list[str] = []
    for _ in range(100):
        (tmp_path / "trace").write_bytes(_changed(draw.choice(whole), draw))
        try:
            json.dumps(analyze(load(tmp_path / "trace")).as_dict(), allow_nan=False)
        except InputError as error:
            messages.append(str(error))
    assert len(messages) > 30
    assert not any("\n" in line for line in messages)


@pytest.mark.parametrize("case", BAD)
def test_a_bad_file_is_refused_with_its_field(tmp_path: Path, case: str) -> None:
    make, field, allowed = BAD[case]
    with pytest.raises(InputError) as caught:
        load(make(tmp_path))
    assert field in caught.value.field
    assert allowed in caught.value.allowed
    assert "\n" not in str(caught.value)


def test_a_large_trace_is_refused_before_it_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(parquet, "MOST_ROWS", 5)
    with pytest.raises(InputError, match="too many rows: at most 5"):
        load(write(ROWS, tmp_path / "trace.parquet"))


def _profile(rank: object, folder: Path, name: str, world: int = 3) -> None:
    events = [
        {"ph": "X", "cat": "user_annotation", "name": "Forward 0", "pid": 1, "tid": 1, "ts": 0, "dur": 5},
        {"ph": "X", "cat": "user_annotation", "name": "Backward 0", "pid": 1, "tid": 1, "ts": 5, "dur": 5},
    ]
    info = {"rank": rank, "world_size": world}
    (folder / name).write_text(json.dumps({"distributedInfo": info, "traceEvents": events}))


@pytest.mark.parametrize(
    ("ranks", "message"),
    [
        ((0, 2), "rank: 1: no file of this rank; world_size is 3"),
        ((0, 1, 1), "another file is of this rank too"),
        ((0, -1, 2), "distributedInfo.rank: -1: must be 0 to"),
    ],
)
def test_a_folder_with_ranks_that_do_not_fit_is_refused(
    tmp_path: Path, ranks: tuple[int, ...], message: str
) -> None:
    for at, rank in enumerate(ranks):
        _profile(rank, tmp_path, f"{at}.json")
    with pytest.raises(InputError, match=message):
        load(tmp_path)


def test_bounds_of_long_json_are_counted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "spans.jsonl").write_bytes(_span() * 5)
    monkeypatch.setattr(json_columns, "MOST_ELEMENTS", 4)
    with pytest.raises(InputError, match="too many events: at most 4"):
        load(tmp_path / "spans.jsonl")
    monkeypatch.setattr(json_columns, "MOST_BYTES", 100)
    with pytest.raises(InputError, match="too large: at most 100 bytes"):
        load(tmp_path / "spans.jsonl")


@pytest.mark.parametrize(
    ("meta", "field"),
    [
        ("dp_size: 4\npp_size: 2\n", "dp_size"),
        ("dp_size: 1\npp_size: 2\nworld_size: 3\n", "world_size"),
        ("dp_size: 1\npp_size: 2\nstages: 2\n", "stages"),
        ("dp_size: 0\n", "dp_size"),
    ],
)
def test_a_layout_that_does_not_fit_is_refused(tmp_path: Path, meta: str, field: str) -> None:
    (tmp_path / "meta.yaml").write_text(meta)
    with pytest.raises(InputError) as caught:
        load(write(ROWS, tmp_path / "trace.parquet"), tmp_path / "meta.yaml")
    assert field in caught.value.field


def test_the_command_says_it_in_one_line_and_exits_with_2(tmp_path: Path) -> None:
    path = _first(duration=-1.0)(tmp_path)
    done = subprocess.run(
        [sys.executable, "-m", "engine.cli", "analyze", str(path)],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 2
    assert done.stdout == ""
    lines = [line for line in done.stderr.splitlines() if "first run" not in line]
    assert lines == ["meridian: trace.parquet: duration: -1.0: row 0: must be 0 or more"]


@pytest.mark.parametrize("name", ["trace.parquet", "spans.jsonl"])
def test_too_little_memory_is_no_damaged_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    def fail(*arguments: Any, **named: Any) -> Any:
        raise pa.ArrowMemoryError("malloc of size 1 failed")

    path = write(ROWS, tmp_path / name) if name == "trace.parquet" else tmp_path / name
    if name == "spans.jsonl":
        path.write_bytes(_span())
    monkeypatch.setattr(pq.ParquetFile, "read", fail)
    monkeypatch.setattr("pyarrow.json.read_json", fail)
    with pytest.raises(MemoryError):
        load(path)
