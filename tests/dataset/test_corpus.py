"""Sequences of a prepared folder and of Megatron's files, against cutting by hand."""

import json
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner
from hypothesis import given, settings
from hypothesis import strategies as st

from engine.commands.data import command
from engine.dataset import files
from engine.dataset.corpus import IGNORED, open_prepared
from engine.dataset.streams import TokenStream
from engine.errors import InputError
from tests.dataset.test_prepare import TEXTS, lines, prepared
from tests.dataset.tokenizers import CHAT, EOS, as_ids, byte_folder
from tests.runtime.decoders import CONFIGS

documents = st.lists(st.lists(st.integers(0, 9), min_size=2, max_size=12), min_size=1, max_size=8)


def stream(texts: list[list[int]], cuts: list[int], *, separate: bool, masked: bool = False) -> TokenStream:
    """The stream of documents whose tokens lie in parts that are cut anywhere."""
    flat = np.array([token for text in texts for token in text], dtype=np.uint16)
    bounds = sorted(cut % flat.size for cut in cuts if cut % flat.size)
    counts = np.split((flat % 3 > 0).astype(np.uint8), bounds) if masked else []
    ends = np.cumsum([len(text) for text in texts])
    return TokenStream(np.split(flat, bounds), counts, ends, separate=separate, eos=99)


@settings(max_examples=60, deadline=None, derandomize=True)
@given(texts=documents, seq=st.integers(1, 9), cuts=st.lists(st.integers(0, 99), max_size=3, unique=True))
def test_concatenated_sequences_are_slices(texts: list[list[int]], seq: int, cuts: list[int]) -> None:
    flat = [token for text in texts for token in text]
    one = stream(texts, cuts, separate=False, masked=True)
    expected = [flat[i : i + seq + 1] for i in range(0, len(flat) - seq, seq)]
    assert one.sequences(seq) == len(expected)
    for number, tokens in enumerate(expected):
        got, counts = one.sequence(number, seq)
        assert got.tolist() == tokens
        assert counts.tolist() == [token % 3 > 0 for token in tokens]


@settings(max_examples=60, deadline=None, derandomize=True)
@given(texts=documents, seq=st.integers(1, 9), cuts=st.lists(st.integers(0, 99), max_size=3, unique=True))
def test_separate_sequences_have_each_target_once(texts: list[list[int]], seq: int, cuts: list[int]) -> None:
    one = stream(texts, cuts, separate=True)
    expected = []
    for text in texts:
        for start in range(0, len(text) - 1, seq):
            piece = text[start : start + seq + 1]
            lacking = seq + 1 - len(piece)
            expected.append((piece + [99] * lacking, [True] * len(piece) + [False] * lacking))
    got = [one.sequence(number, seq) for number in range(one.sequences(seq))]
    assert [(tokens.tolist(), counts.tolist()) for tokens, counts in got] == expected
    targets = sum(int(counts[1:].sum()) for _, counts in got)
    assert targets == sum(len(text) - 1 for text in texts)


def test_a_step_is_the_same_in_every_layout(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(files, "LEAST_SHARD_BYTES", 900)
    (tmp_path / "a.jsonl").write_text(lines(TEXTS))
    (tmp_path / "b.jsonl").write_text(lines(["other " * 30, "words " * 9]))
    sources = [
        {"path": str(tmp_path / f"{name}.jsonl"), "format": "jsonl", "weight": weight}
        for name, weight in (("a", 3), ("b", 1))
    ]
    prepared(tmp_path, sources)
    corpus = open_prepared(str(tmp_path / "out"), seq=16, seed=5, vocabulary=300, field="data.prepared")
    whole = corpus.batch(7, 24, np.arange(24))
    for parts in (2, 3, 8, 24):
        pieces = [corpus.batch(7, 24, part) for part in np.split(np.arange(24), parts)]
        for together, apart in zip(whole, zip(*pieces, strict=True), strict=True):
            assert (together == np.concatenate(apart)).all()
    assert (whole[0][:, 1:] == whole[1][:, :-1]).all()
    assert corpus.counted(7, 24) is None
    # An epoch of source a, put together from what steps drew, is its tokens.
    flat = [token for text in TEXTS for token in as_ids(text)]
    drawn: dict[int, list[int]] = {}
    for step in range(60):
        tokens, targets = corpus.batch(step, 24, np.arange(24))
        source, number = corpus.order.drawn(np.arange(step * 24, step * 24 + 24))
        for row in np.flatnonzero(source == 0):
            drawn[int(number[row])] = [*tokens[row].tolist(), int(targets[row, -1])]
    assert len(drawn) == corpus.sources[0].sequences(16)
    assert all(row == flat[n * 16 : n * 16 + 17] for n, row in drawn.items())
    other = open_prepared(str(tmp_path / "out"), seq=16, seed=6, vocabulary=300, field="data.prepared")
    assert (other.batch(7, 24, np.arange(24))[0] != whole[0]).any()


def test_refused_folders(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_text(lines(TEXTS))
    prepared(tmp_path, [{"path": str(tmp_path / "a.jsonl"), "format": "jsonl"}])
    folder = tmp_path / "out"

    def opened(seq: int = 8, vocabulary: int = 257) -> Any:
        return open_prepared(str(folder), seq=seq, seed=1, vocabulary=vocabulary, field="data.prepared")

    assert opened().fingerprint() == opened(seq=9).fingerprint()
    with pytest.raises(InputError, match=r"model.vocab: 256: at least 257"):
        opened(vocabulary=256)
    with pytest.raises(InputError, match=r"data.prepared.*not one sequence of seq \+ 1 = 100,?001"):
        opened(seq=100_000)
    with pytest.raises(InputError, match=r"index.json cannot be read"):
        open_prepared(str(tmp_path), seq=8, seed=1, vocabulary=None, field="data.prepared")
    index = folder / "index.json"
    text = index.read_text()
    index.write_text(text.replace('"version": 1', '"version": 2'))
    with pytest.raises(InputError, match="is not read by this version"):
        opened()
    index.write_text(text.replace('"name": "00000"', '"name": "../00000"'))
    with pytest.raises(InputError, match=r"shards\[0\].name"):
        opened()
    index.write_text(text)
    shard = folder / "shards" / "00000.tokens"
    shard.write_bytes(shard.read_bytes()[:-2])
    with pytest.raises(InputError, match="is damaged: prepare it again"):
        opened()


def megatron(prefix: Path, texts: list[list[int]], code: int = 8, kind: str = "H") -> str:
    """Megatron's two files byte by byte, a document of two sequences first."""
    sequences = [texts[0][:1], texts[0][1:], *texts[1:]]
    size = struct.calcsize(f"<{kind}")
    flat = [token for text in texts for token in text]
    prefix.with_name(prefix.name + ".bin").write_bytes(struct.pack(f"<{len(flat)}{kind}", *flat))
    starts = [0]
    for sequence in sequences:
        starts.append(starts[-1] + len(sequence) * size)
    bounds = [0, *range(2, len(sequences) + 1)]
    index = b"MMIDIDX\x00\x00" + struct.pack("<QBQQ", 1, code, len(sequences), len(bounds))
    index += struct.pack(f"<{len(sequences)}i", *map(len, sequences))
    index += struct.pack(f"<{len(sequences)}q", *starts[:-1]) + struct.pack(f"<{len(bounds)}q", *bounds)
    prefix.with_name(prefix.name + ".idx").write_bytes(index)
    return str(prefix)


@pytest.mark.parametrize(("code", "kind"), [(8, "H"), (4, "i"), (1, "B"), (5, "q")])
def test_megatron_files_are_read_as_they_are(tmp_path: Path, code: int, kind: str) -> None:
    texts = [[1, 2, 3, 4, 0], [5, 6, 0], [7, 8, 9, 10, 11, 0]]
    path = megatron(tmp_path / "my_text_document", texts, code, kind)
    for name in (path, f"{path}.bin", f"{path}.idx"):
        corpus = open_prepared(name, seq=4, seed=1, vocabulary=12, field="data.prepared")
        assert corpus.sources[0].document_ends.tolist() == [5, 8, 14]
        rows = [corpus.sources[0].sequence(n, 4)[0].tolist() for n in range(corpus.sources[0].sequences(4))]
        assert rows == [[1, 2, 3, 4, 0], [0, 5, 6, 0, 7], [7, 8, 9, 10, 11]]
    tokens, targets = corpus.batch(0, 3, np.arange(3))
    assert sorted(tokens[:, 0].tolist()) == [0, 1, 7]
    assert IGNORED not in targets
    small = open_prepared(path, seq=4, seed=1, vocabulary=8, field="data.prepared")
    with pytest.raises(InputError, match=r"model.vocab: 8: at least 12"):
        small.batch(0, 3, np.arange(3))


def broken(index: bytes) -> Iterator[tuple[bytes, str]]:
    yield index[:-1], "cut short"
    yield index[:20], "cut short"
    yield b"X" + index[1:], "does not begin with MMIDIDX"
    yield index[:9] + struct.pack("<Q", 2) + index[17:], "version 2"
    yield index[:17] + b"\x07" + index[18:], "type 7"
    yield index[:34] + struct.pack("<i", 2) + index[38:], "do not stand one after another"
    yield index[:-8] + struct.pack("<q", 2), "do not hold all sequences"


def test_broken_megatron_files(tmp_path: Path) -> None:
    path = megatron(tmp_path / "m", [[1, 2, 3, 4, 0], [5, 6, 0]])
    index = (tmp_path / "m.idx").read_bytes()
    for data, message in broken(index):
        (tmp_path / "m.idx").write_bytes(data)
        with pytest.raises(InputError, match=f"data.prepared.*{message}"):
            open_prepared(path, seq=4, seed=1, vocabulary=None, field="data.prepared")
    (tmp_path / "m.idx").write_bytes(index)
    (tmp_path / "m.bin").write_bytes(b"\x01\x00")
    with pytest.raises(InputError, match="has 1 tokens"):
        open_prepared(path, seq=4, seed=1, vocabulary=None, field="data.prepared")


def test_the_commands(tmp_path: Path) -> None:
    chat = [{"role": "user", "content": "two"}, {"role": "assistant", "content": "five six"}]
    (tmp_path / "a.jsonl").write_text(json.dumps({"m": chat}) + "\nnonsense\n")
    source = {"path": str(tmp_path / "a.jsonl"), "format": "jsonl", "messages": "m"}
    document = {
        "sources": [source],
        "tokenizer": byte_folder(tmp_path / "t", CHAT),
        "packing": "separate",
        "on_bad": "skip",
    }
    (tmp_path / "d.json").write_text(json.dumps(document))
    folder = str(tmp_path / "out")
    done = CliRunner().invoke(
        command, ["prepare", str(tmp_path / "d.json"), "--out", folder, "--json"], catch_exceptions=False
    )
    assert json.loads(done.stdout)["sources"][0] | {"path": ""} == {
        "path": "",
        "documents": 1,
        "tokens": len("<user>two\n<assistant>five six\n") + 1,
        "counted": len("five six\n") + 1,
        "skipped": 1,
    }
    assert "a.jsonl:2: is not JSON" in done.stderr
    shown = CliRunner().invoke(
        command, ["inspect", folder, "--seq", "40", "--batch", "1"], catch_exceptions=False
    )
    assert shown.stdout.splitlines()[1:] == [
        "  document 0: ⟪<user>two\\n<assistant>⟫five six\\n<eos>",
        f"  filled up: ⟪{'<eos>' * (41 - 31)}⟫",
    ]
    row = json.loads(
        CliRunner().invoke(command, ["inspect", folder, "--seq", "40", "--batch", "1", "--json"]).stdout
    )
    assert [(part["document"], part["counts"], part["tokens"]) for part in row["parts"]] == [
        (0, False, 21),
        (0, True, 10),
        (None, False, 10),
    ]
    assert row["parts"][2]["ids"] == [EOS] * 10
    config = tmp_path / "model" / "config.json"
    config.parent.mkdir()
    config.write_text(json.dumps(CONFIGS["qwen2"] | {"model_type": "qwen2"}))
    job = {
        "datacenters": [{"name": "a", "gpus": 1}],
        "cell": {"stages": 1, "microbatches": 1, "micro_batch": 1},
        "model": {"config": str(config.parent), "seq": 40},
        "data": {"prepared": folder},
        "device": {"kind": "cpu"},
        "optimizer": {"steps": 1, "lr": 0.1},
        "strategy": {"kind": "pipeline", "policy": "1f1b"},
    }
    (tmp_path / "job.json").write_text(json.dumps(job))
    of_job = CliRunner().invoke(command, ["inspect", str(tmp_path / "job.json")], catch_exceptions=False)
    assert of_job.stdout == shown.stdout
