"""The first samples of a job, read by an agent: what a run would read, and nothing that is not open to it."""

import json
import queue
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from engine.dataset.document import DatasetDocument
from engine.dataset.prepare import prepare
from engine.inputs import parse
from engine.job.events.node import MOST_CHARACTERS, MOST_SAMPLES, Samples
from engine.job.file_access import FileAccess
from engine.job.job import TrainJob
from engine.train.corpus import corpus_of
from engine.train.shown import shown_samples
from tests.dataset.tokenizers import MARKED, byte_folder
from tests.waiting import LIMIT_S
from tests.workers.launching import JOB
from workers.samples import SamplePreviewer

TEXT = {"layers": 2, "hidden": 16, "heads": 2, "seq": 24}


def previewed(folder: Path, document: dict[str, Any], dc: str = "a", **settings: Any) -> Samples:
    """The answer of an agent that opens `folder` to runs."""
    events: queue.Queue[Any] = queue.Queue()
    files = FileAccess(roots=(str(folder),), closed=(str(folder / "own"),))
    previewer = SamplePreviewer(files=files, publish=events.put, **settings)
    previewer.start("p1", document, dc)
    assert previewer.start("p1", document, dc) == "known already"
    answer = events.get(timeout=3 * LIMIT_S)
    assert (answer.kind, answer.preview) == ("samples", "p1")
    assert len(answer.to_json()) < 200_000
    return answer


def chats(folder: Path) -> str:
    """A prepared folder of chats, whose answers alone count."""
    rows = [
        {
            "messages": [
                {"role": "user", "content": f"ask {n}"},
                {"role": "assistant", "content": f"<b>{n}</b>"},
            ]
        }
        for n in range(40)
    ]
    (folder / "chats.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    source = {"path": str(folder / "chats.jsonl"), "format": "jsonl", "messages": "messages"}
    wanted = {"sources": [source], "tokenizer": byte_folder(folder / "tokenizer", MARKED)}
    prepare(parse(DatasetDocument, wanted), folder / "prepared", processes=1)
    return str(folder / "prepared")


def test_chats_are_shown_as_the_run_would_read_them(tmp_path: Path) -> None:
    document = {**JOB, "model": {**TEXT, "vocab": 257}, "data": {"prepared": chats(tmp_path)}}
    document["data"]["files"] = None
    answer = previewed(tmp_path, document)
    assert answer.error == ""
    job = parse(TrainJob, document)
    tokens, targets = corpus_of(job).batch(0, job.cell.global_batch, np.arange(job.cell.global_batch))
    assert len(answer.samples) == min(MOST_SAMPLES, job.cell.global_batch)
    for sample, ids, aims in zip(answer.samples, tokens.tolist(), targets.tolist(), strict=False):
        text = "".join(part.text for part in sample.parts)
        assert text.replace("<eos>", "\0").startswith(bytes(0 if n == 256 else n for n in ids).decode())
        counts = [part.counts for part in sample.parts for _ in range(part.tokens)]
        assert counts[1:] == [aim >= 0 for aim in aims]
        assert not sample.cut
        assert sample.source == str(tmp_path / "chats.jsonl")


def test_text_is_shown_with_its_tokenizer_and_without(tmp_path: Path) -> None:
    (tmp_path / "books").mkdir()
    for name in ("a", "b"):
        (tmp_path / "books" / f"{name}.txt").write_text(f"{name}: the old man and the sea\n" * 40)
    byte_folder(tmp_path / "tokenizer")
    tokenizer = {"vocab": 257, "tokenizer": str(tmp_path / "tokenizer" / "tokenizer.json")}
    samples = []
    for model in (TEXT, TEXT | tokenizer):
        document = {**JOB, "model": model, "data": {"a": str(tmp_path / "books")}}
        answer = previewed(tmp_path, document)
        samples.append([(sample.source, [part.text for part in sample.parts]) for sample in answer.samples])
        job = parse(TrainJob, document)
        tokens, _ = corpus_of(job).batch(0, job.cell.global_batch, np.arange(job.cell.global_batch))
        for (source, (text,)), ids in zip(samples[-1], tokens.tolist(), strict=True):
            assert text.encode()[:-1] == bytes(ids)
            assert text in Path(source).read_text()
    assert samples[0] == samples[1], "ids of this tokenizer are bytes"


def test_a_long_sample_is_cut(tmp_path: Path) -> None:
    (tmp_path / "text").write_text("0123456789" * 1_000)
    document = {**JOB, "model": {**TEXT, "seq": 6_000}, "data": {"a": str(tmp_path / "text")}}
    answer = previewed(tmp_path, document)
    assert [len(sample.parts[0].text) for sample in answer.samples] == [MOST_CHARACTERS] * 2
    assert all(sample.cut for sample in answer.samples)


@pytest.mark.parametrize(
    ("data", "message"),
    [
        ({"files": "{folder}/missing"}, "no such file or folder"),
        ({"prepared": "{folder}/missing"}, "must be a folder of `meridian data prepare`"),
        ({"files": "/etc/hostname"}, "MERIDIAN_NODE_ROOTS"),
        ({"prepared": "/no/such/folder"}, "MERIDIAN_NODE_ROOTS"),
        ({"files": "{folder}/own/key"}, "MERIDIAN_NODE_ROOTS"),
        ({"files": "{folder}/to-etc/hostname"}, "MERIDIAN_NODE_ROOTS"),
        ({"files": "{folder}", "prepared": "{folder}"}, "must be left out with data.prepared"),
    ],
)
def test_what_cannot_be_read_is_said_and_nothing_else(
    tmp_path: Path, data: dict[str, str], message: str
) -> None:
    (tmp_path / "own").mkdir()
    (tmp_path / "own" / "key").write_text("secret " * 100)
    (tmp_path / "to-etc").symlink_to("/etc")
    paths = {name: path.format(folder=tmp_path) for name, path in data.items()}
    answer = previewed(tmp_path, {**JOB, "data": {"files": None, **paths}})
    assert answer.samples == ()
    assert message in answer.error


def test_a_tokenizer_that_does_not_fit_is_named(tmp_path: Path) -> None:
    document = {**JOB, "model": {**TEXT, "vocab": 256}, "data": {"prepared": chats(tmp_path), "files": None}}
    answer = previewed(tmp_path, document)
    assert answer.error.startswith("model.vocab: 256: at least 257")


def test_it_takes_no_longer_than_it_may(tmp_path: Path) -> None:
    (tmp_path / "text").write_text("some words to encode\n" * 400_000)
    byte_folder(tmp_path / "tokenizer")
    model = {**TEXT, "vocab": 257, "tokenizer": str(tmp_path / "tokenizer" / "tokenizer.json")}
    document = {**JOB, "model": model, "data": {"a": str(tmp_path / "text")}}
    answer = previewed(tmp_path, document, seconds=0.2)
    assert "was not read within 0.2 s" in answer.error


def test_a_job_reads_the_files_of_its_data_centre(tmp_path: Path) -> None:
    both = [{"name": name, "gpus": 1} for name in ("a", "b")]
    files = {}
    for name in ("a", "b"):
        (tmp_path / name).write_text(f"{name} " * 100)
        files[name] = str(tmp_path / name)
    links = [{"between": ["a", "b"], "latency_ms": 1, "bandwidth_gbps": 1}]
    document = {**JOB, "datacenters": both, "dc_of_stage": [0, 1], "links": links, "data": files}
    job = parse(TrainJob, document)
    for name in ("a", "b"):
        assert {sample["source"] for sample in shown_samples(job, 0, name)} == {files[name]}
