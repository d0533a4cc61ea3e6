"""Documents of every format become the same tokens, whatever the number of processes."""

import gzip
import json
from pathlib import Path
from typing import Any

import fsspec
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from fsspec.spec import AbstractBufferedFile

from engine.dataset import files
from engine.dataset import prepare as preparing
from engine.dataset.corpus import IGNORED, open_prepared
from engine.dataset.document import DatasetDocument, Source
from engine.dataset.prepare import prepare
from engine.dataset.readers import records
from engine.dataset.shards import ShardWork
from engine.errors import InputError
from engine.inputs import parse
from tests.dataset.tokenizers import CHAT, EOS, as_ids, byte_folder

TEXTS = [f"document {n}\nnaïve 漢字" * (n % 5 + 1) for n in range(40)]


def prepared(tmp_path: Path, sources: list[dict[str, Any]], *, processes: int = 1, **fields: Any) -> Any:
    """The index of a new folder `out` below `tmp_path`."""
    folder = byte_folder(tmp_path / "tokenizer", CHAT)
    document = parse(DatasetDocument, {"sources": sources, "tokenizer": folder, **fields})
    return prepare(document, tmp_path / "out", processes=processes)


def tokens_of(folder: Path, source: int = 0) -> list[int]:
    """All tokens of a source, by its shards as they lie on disk."""
    index = json.loads((folder / "index.json").read_text())
    names = [shard["name"] for shard in index["shards"] if shard["source"] == source]
    dtype = "<u2" if index["dtype"] == "uint16" else "<u4"
    return [t for name in names for t in np.fromfile(folder / "shards" / f"{name}.tokens", dtype).tolist()]


def lines(texts: list[str]) -> str:
    return "".join(json.dumps({"text": text, "n": 1}) + "\n" for text in texts)


def test_every_format_gives_the_same_tokens(tmp_path: Path) -> None:
    data = tmp_path / "data"
    for name in ("text", "jsonl", "parquet", "hf"):
        (data / name).mkdir(parents=True)
    for n, text in enumerate(TEXTS):
        (data / "text" / f"{n:03d}.txt").write_text(text)
    (data / "jsonl" / "a.jsonl").write_text(lines(TEXTS[:10]))
    (data / "jsonl" / "b.jsonl.gz").write_bytes(gzip.compress(lines(TEXTS[10:]).encode()))
    (data / "jsonl" / ".hidden.jsonl").write_text("nonsense")
    table = pa.table({"n": list(range(40)), "text": TEXTS})
    pq.write_table(table, data / "parquet" / "a.parquet", row_group_size=7)
    with pa.ipc.new_stream(data / "hf" / "data-00000-of-00001.arrow", table.schema) as writer:
        writer.write_table(table, max_chunksize=9)
    (data / "hf" / "state.json").write_text("{}")
    index = prepared(
        tmp_path,
        [
            {"path": str(data / "text"), "format": "text"},
            {"path": str(data / "jsonl"), "format": "jsonl"},
            {"path": str(data / "parquet" / "*.parquet"), "format": "parquet"},
            {"path": str(data / "hf"), "format": "datasets"},
            {"path": f"file://{data}/jsonl", "format": "jsonl"},
        ],
        processes=2,
    )
    expected = [token for text in TEXTS for token in as_ids(text)]
    for source in range(5):
        assert tokens_of(tmp_path / "out", source) == expected
        assert sum(shard.documents for shard in index.shards if shard.source == source) == 40
    assert not (tmp_path / ".out.partial").exists()


def test_shards_do_not_depend_on_processes_and_cut_no_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(files, "LEAST_SHARD_BYTES", 500)
    (tmp_path / "a.jsonl").write_text(lines(TEXTS))
    source = {"path": str(tmp_path / "a.jsonl"), "format": "jsonl"}
    folders = []
    for processes in (1, 2):
        folder = tmp_path / str(processes)
        index = prepared(folder, [source], processes=processes)
        assert len(index.shards) > 5
        assert tokens_of(folder / "out") == [token for text in TEXTS for token in as_ids(text)]
        folders.append({p.name: p.read_bytes() for p in (folder / "out" / "shards").iterdir()})
    assert folders[0] == folders[1]


BAD = [
    (b'{"text": "whole"', "is not JSON"),
    (b'{"text": "\xff"}', "is not UTF-8"),
    (b'["text"]', "must be an object with field 'text'"),
    (b'{"txt": "x", "a": 1}', "has no field 'text'; it has a, txt"),
    (b'{"text": 3}', "field 'text' must be text, not int"),
    (b'{"text": "\\ud800"}', "half of a surrogate pair"),
    (b'{"text": "' + b"x" * 5000 + b'"}', "is longer than longest_bytes = 2,000"),
    (b"[" * 1500, "is not JSON"),
]


def test_bad_lines_are_named_by_file_and_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(files, "LEAST_SHARD_BYTES", 600)
    path = tmp_path / "a.jsonl"
    good = lines(TEXTS[:20]).encode().splitlines(keepends=True)
    rows: list[bytes] = []
    for n, line in enumerate(good):
        rows.append(line)
        if n < len(BAD):
            rows.append(BAD[n][0] + b"\n")
    path.write_bytes(b"".join(rows) + b"\n\n")
    source = {"path": str(path), "format": "jsonl"}
    index = prepared(tmp_path, [source], on_bad="skip", longest_bytes=2000)
    assert tokens_of(tmp_path / "out") == [token for text in TEXTS[:20] for token in as_ids(text)]
    examples = [(example.where, example.why) for shard in index.shards for example in shard.examples]
    assert sum(shard.skipped for shard in index.shards) == len(BAD) == len(examples)
    for number, ((where, why), (_, expected)) in enumerate(zip(examples, BAD, strict=True)):
        assert where == f"{path}:{2 * number + 2}"
        assert expected in why
    with pytest.raises(InputError, match=rf"sources\[0\]: 'a.jsonl:2': {path}:2 is not JSON.*on_bad: skip"):
        prepared(tmp_path / "refuse", [source])
    assert not (tmp_path / "refuse" / "out").exists()


def test_other_bad_files(tmp_path: Path) -> None:
    table = pa.table({"text": ["a", None, "c"], "other": [1, 2, 3]})
    pq.write_table(table, tmp_path / "a.parquet")
    (tmp_path / "b.parquet").write_bytes(b"PAR1nothing")
    (tmp_path / "t").mkdir()
    (tmp_path / "t" / "a.txt").write_bytes(b"x" * 2_500_000 + b"\xff\xff")
    (tmp_path / "t" / "b.txt").write_text("漢" * 700_000)
    index = prepared(
        tmp_path,
        [
            {"path": str(tmp_path / "*.parquet"), "format": "parquet"},
            {"path": str(tmp_path / "t"), "format": "text"},
        ],
        on_bad="skip",
    )
    assert tokens_of(tmp_path / "out") == [*as_ids("a"), *as_ids("c")]
    assert tokens_of(tmp_path / "out", 1) == as_ids("漢" * 700_000), "nothing is left of the file that is cut"
    examples = [f"{example.where}: {example.why}" for shard in index.shards for example in shard.examples]
    assert "a.parquet: row 2: field 'text' must be text, not NoneType" in examples[0]
    assert "b.parquet: cannot be read" in examples[1]
    assert "a.txt: is not UTF-8 text" in examples[2]


def test_refused_documents(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_text(lines(TEXTS))
    (tmp_path / "dict").mkdir()
    (tmp_path / "dict" / "dataset_dict.json").write_text('{"splits": ["train", "test"]}')
    good: dict[str, Any] = {"path": str(tmp_path / "a.jsonl"), "format": "jsonl"}
    for source, message in [
        ({**good, "format": "csv"}, r"sources\[0\].format"),
        ({**good, "field": "a", "messages": "b"}, "give either field or messages"),
        ({**good, "format": "text", "field": "a"}, "must be left out for format text"),
        ({**good, "path": str(tmp_path / "nothing")}, r"sources\[0\].path.*no such file"),
        ({**good, "path": str(tmp_path / "dict"), "format": "datasets"}, "name the folder of one"),
        ({**good, "path": "nosuch://bucket/a"}, r"sources\[0\].path"),
        ({**good, "weight": 0}, "weight"),
    ]:
        with pytest.raises(InputError, match=message):
            prepared(tmp_path, [source])
    with pytest.raises(InputError, match=r"sources\[1\].weight: give all sources a weight"):
        prepared(tmp_path, [{**good, "weight": 1}, good])
    with pytest.raises(InputError, match="less than 1 of 10,000"):
        prepared(tmp_path, [{**good, "weight": 1}, {**good, "weight": 1e-5}])
    (tmp_path / "out").mkdir()
    with pytest.raises(InputError, match=r"--out.*exists already"):
        prepared(tmp_path, [good])


def test_an_interrupted_command_goes_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(files, "LEAST_SHARD_BYTES", 700)
    path = tmp_path / "a.jsonl"
    path.write_text(lines(TEXTS) + "nonsense\n")
    source = {"path": str(path), "format": "jsonl"}
    with pytest.raises(InputError, match="is not JSON"):
        prepared(tmp_path, [source])
    shards = tmp_path / ".out.partial" / "shards"
    finished = {p.name: p.stat().st_mtime_ns for p in shards.glob("*.json")}
    assert finished
    original = preparing._written
    counts: list[int] = []

    def counting(work: list[ShardWork], *rest: Any) -> Any:
        counts.append(len(work))
        return original(work, *rest)

    monkeypatch.setattr(preparing, "_written", counting)
    with pytest.raises(InputError, match="is not JSON"):
        prepared(tmp_path, [source])
    one = parse(Source, source)
    everything = len(files.items_of([one], [files.files_of(one, "")]))
    assert counts == [everything - len(finished)]
    path.write_text(lines(TEXTS))
    index = prepared(tmp_path, [source])
    assert counts[1] == len(index.shards), "other files: all of it is done again"
    assert tokens_of(tmp_path / "out") == [token for text in TEXTS for token in as_ids(text)]


def test_chats_are_masked(tmp_path: Path) -> None:
    chats = [
        [{"role": "user", "content": f"q{n}"}, {"role": "assistant", "content": f"answer {n}"}]
        for n in range(9)
    ]
    (tmp_path / "a.jsonl").write_text("".join(json.dumps({"m": chat}) + "\n" for chat in chats))
    prepared(
        tmp_path,
        [{"path": str(tmp_path / "a.jsonl"), "format": "jsonl", "messages": "m"}],
        packing="separate",
    )
    corpus = open_prepared(str(tmp_path / "out"), seq=64, seed=1, vocabulary=257, field="data.prepared")
    tokens, targets = corpus.batch(0, 9, np.arange(9))
    learnt = []
    for row, after in zip(tokens, targets, strict=True):
        text = bytes(token for token in row.tolist() if token != EOS).decode()
        assert text.startswith("<user>q")
        learnt.append([token for token in after.tolist() if token != IGNORED])
    assert sorted(learnt) == sorted(as_ids(f"answer {n}\n") for n in range(9))
    assert corpus.counted(0, 9) == sum(map(len, learnt))


class Bucket(fsspec.AbstractFileSystem):  # type: ignore[misc]
    """An object store as s3fs has it: files that come in ranges of bytes, and errors of its own."""

    protocol = "bucket"
    cachable = False
    objects: dict[str, bytes] = {}  # the tests' own
    broken_after = 1 << 30

    def info(self, path: str, **_: Any) -> dict[str, Any]:
        name = self._strip_protocol(path)
        if name not in self.objects:
            raise FileNotFoundError(path)
        return {"name": name, "size": len(self.objects[name]), "type": "file", "ETag": "1"}

    def ls(self, path: str, detail: bool = True, **_: Any) -> Any:
        if self.broken_after < 0:
            raise ConnectionRefused("no such endpoint")
        return [self.info(name) for name in self.objects] if detail else list(self.objects)

    def _open(self, path: str, mode: str = "rb", **_: Any) -> Any:
        return Ranges(self, path, mode, block_size=1 << 12)


class ConnectionRefused(Exception):
    """No OSError, as those of botocore."""


class Ranges(AbstractBufferedFile):  # type: ignore[misc]
    def _fetch_range(self, start: int, end: int) -> bytes:
        if end > self.fs.broken_after:
            raise ConnectionRefused("the endpoint is gone")
        return Bucket.objects[self.fs._strip_protocol(self.path)][start:end]


@pytest.fixture
def bucket(monkeypatch: pytest.MonkeyPatch) -> type[Bucket]:
    fsspec.register_implementation("bucket", Bucket, clobber=True)
    whole = lines(TEXTS).encode()
    monkeypatch.setattr(
        Bucket, "objects", {"a/x.jsonl": whole, "a/y.jsonl.gz": gzip.compress(whole), "a/z.txt": b"left out"}
    )
    return Bucket


def read_from(source: Source) -> list[str]:
    document = parse(DatasetDocument, {"sources": [source.model_dump()], "tokenizer": "none"})
    parts = [part for item in files.items_of([source], [files.files_of(source, "s")]) for part in item.parts]
    return [record.text for part in parts for record in records(part, source, document, None)]  # type: ignore[union-attr]


@pytest.mark.parametrize("path", ["bucket://a/*.jsonl*", "bucket://a"])
def test_an_object_store_gives_what_its_files_hold(bucket: type[Bucket], path: str) -> None:
    assert read_from(Source(path=path, format="jsonl")) == TEXTS * 2


def test_a_part_of_a_file_in_an_object_store(bucket: type[Bucket]) -> None:
    source = Source(path="bucket://a/x.jsonl", format="jsonl")
    document = parse(DatasetDocument, {"sources": [source.model_dump()], "tokenizer": "none"})
    size = len(bucket.objects["a/x.jsonl"])
    texts = [
        record.text  # type: ignore[union-attr]
        for start in range(0, size, 700)
        for record in records(
            files.Part(path=source.path, start=start, end=min(start + 700, size)), source, document, None
        )
    ]
    assert texts == TEXTS


def test_a_store_that_fails_is_no_corrupt_record(
    bucket: type[Bucket], monkeypatch: pytest.MonkeyPatch
) -> None:
    """on_bad: skip would leave out the rest of the file."""
    source = Source(path="bucket://a/x.jsonl", format="jsonl")
    monkeypatch.setattr(Bucket, "broken_after", 2000)
    with pytest.raises(files.StoreError, match="the endpoint is gone"):
        read_from(source)
    monkeypatch.setattr(Bucket, "broken_after", -1)
    with pytest.raises(
        InputError, match=r"s\.path: 'bucket://a/\*.jsonl': cannot be read \(no such endpoint"
    ):
        files.files_of(Source(path="bucket://a/*.jsonl", format="jsonl"), "s")
