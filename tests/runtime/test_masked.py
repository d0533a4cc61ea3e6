"""Runs on a prepared folder: losses over unequal numbers of tokens, against one process."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from engine.dataset.corpus import IGNORED
from engine.dataset.document import DatasetDocument
from engine.dataset.prepare import prepare
from engine.errors import InputError
from engine.inputs import parse
from engine.job.changed import changed
from engine.job.file_access import files_of
from engine.job.flat import in_sections
from engine.job.job import TrainJob
from engine.train.corpus import corpus_of
from tests.dataset.test_corpus import megatron
from tests.dataset.tokenizers import CHAT, byte_folder
from tests.runtime import swap_jobs
from tests.runtime.cells import Cell, far, whole
from tests.runtime.held_out import held_out_loss
from tests.runtime.jobs import Run, document, job
from tests.runtime.test_training_equals_single import reference

MODEL = {"layers": 3, "hidden": 32, "heads": 2, "seq": 24, "vocab": 257}


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, str]:
    """Chats whose answers have 0 to 60 characters, to train on, and others to validate on."""
    root = tmp_path_factory.mktemp("prepared")
    tokenizer = byte_folder(root / "tokenizer", CHAT)
    for name, first in (("train", 0), ("valid", 100)):
        chats = [
            [{"role": "user", "content": f"{n}?"}, {"role": "assistant", "content": "yes " * (n * 7 % 16)}]
            for n in range(first, first + 40)
        ]
        (root / f"{name}.jsonl").write_text("".join(json.dumps({"m": chat}) + "\n" for chat in chats))
        source = {"path": str(root / f"{name}.jsonl"), "format": "jsonl", "messages": "m"}
        wanted = {"sources": [source], "tokenizer": tokenizer, "packing": "separate"}
        prepare(parse(DatasetDocument, wanted), root / name, processes=1)
    return str(root / "train"), str(root / "valid")


def of(folder: str, **changes: Any) -> TrainJob:
    return job(**{"model": MODEL, "data": {"prepared": folder}, "dtype": "fp64", **changes})


@pytest.mark.parametrize(
    "changes",
    [
        {"policy": "atlas", "micro_batch": 1, "microbatches": 6},
        {"policy": "1f1b", "micro_batch": 3, "accumulation": 2},
        {"policy": "zb-h1", "stages": 1, "dc_of_stage": [0], "micro_batch": 1, "microbatches": 5},
        {"policy": "gpipe", "pipelines": 1, "model": {**MODEL, "family": "llama"}, "recompute": False},
    ],
    ids=lambda changes: changes["policy"],
)
def test_loss_and_gradients_are_those_of_one_pass(folders: tuple[str, str], changes: dict[str, Any]) -> None:
    train_job = of(folders[0], **changes)
    cell = Cell(train_job)
    for step in (0, 1):
        assert far(cell.run(step), whole(train_job, step)) < 1e-12
    _, targets = cell.corpus.batch(0, train_job.cell.global_batch, np.arange(train_job.cell.global_batch))
    counts = (targets != IGNORED).sum(axis=1)
    assert len(set(counts.tolist())) > 2, "the sequences count unequal numbers of tokens"
    assert cell.corpus.counted(0, train_job.cell.global_batch) == counts.sum()


@pytest.mark.long
def test_a_run_trains_validates_and_resumes_as_one_process(folders: tuple[str, str], tmp_path: Path) -> None:
    train, valid = folders
    data = {"prepared": train, "validation": {"every": 2, "sequences": 7, "prepared": valid}}
    saves = {"dir": str(tmp_path / "checkpoints"), "every": 2}
    train_job = of(train, data=data, steps=4, policy="1f1b", checkpoint=saves, stages=2, dc_of_stage=[0, 1])
    losses, norms, _ = reference(train_job)
    result = Run(train_job, str(tmp_path / "a")).result()
    assert result["losses"] == pytest.approx(losses, rel=1e-9)
    assert result["grad_norms"] == pytest.approx(norms, rel=1e-9)
    assert [row["step"] for row in result["validation"]] == [2, 4]
    held_out = held_out_loss(train_job, tmp_path / "checkpoints")
    assert result["validation"][-1]["loss"] == pytest.approx(held_out, rel=1e-6)
    (tokenizer,) = (tmp_path / "checkpoints").glob("step-000000004-*/tokenizer.json")
    assert tokenizer.read_bytes() == (Path(train) / "tokenizer.json").read_bytes()
    more = of(
        train, data=data, steps=5, policy="gpipe", pipelines=1, microbatches=6, checkpoint=saves, resume=True
    )
    resumed = Run(more, str(tmp_path / "b")).result()
    expected, _, _ = reference(of(train, data=data, steps=5))
    assert resumed["resumed_from"] == 4
    assert resumed["losses"] == pytest.approx(expected[4:], rel=1e-5)


@pytest.mark.long
def test_a_swap_run_is_one_process(folders: tuple[str, str], tmp_path: Path) -> None:
    swap_job = swap_jobs.job(data={"prepared": folders[0]}, model={**MODEL, "layers": 6}, steps=2)
    losses, norms, _ = reference(swap_job)
    result = Run(swap_job, str(tmp_path)).result()
    assert result["losses"] == pytest.approx(losses, rel=1e-9)
    assert result["grad_norms"] == pytest.approx(norms, rel=1e-9)


def test_refused_documents(folders: tuple[str, str]) -> None:
    train, valid = folders
    for changes, message in [
        ({"data": {"prepared": train, "files": "/x"}}, "data.files.*must be left out"),
        (
            {"data": {"prepared": train, "validation": {"every": 1}}},
            "data.validation.prepared: required",
        ),
        ({"data": {"validation": {"every": 1, "prepared": valid}}}, "belongs to data.prepared"),
        ({"data": {"prepared": {"north": train}}}, "data.prepared.south"),
    ]:
        with pytest.raises(InputError, match=message):
            of(train, **changes)
    with pytest.raises(InputError, match="at least 257"):
        corpus_of(of(train, model={**MODEL, "vocab": 256}))
    with pytest.raises(InputError, match=r"model.tokenizer.*must be left out"):
        corpus_of(of(train, model={**MODEL, "tokenizer": "t"}))


def test_a_dataset_of_megatron_wants_a_tokenizer(folders: tuple[str, str], tmp_path: Path) -> None:
    path = megatron(tmp_path / "m", [[1, 2, 3, 0] * 20, [5, 6, 0]])
    with pytest.raises(InputError, match=r"model.tokenizer: required with a dataset of Megatron"):
        corpus_of(of(path))
    tokenizer = f"{folders[0]}/tokenizer.json"
    train_job = of(path, model={**MODEL, "tokenizer": tokenizer}, stages=1, dc_of_stage=[0])
    assert files_of(train_job) == [("data.prepared", path), ("model.tokenizer", tokenizer)]
    assert far(Cell(train_job).run(), whole(train_job)) < 1e-12


def test_all_paths_are_asked_for(folders: tuple[str, str]) -> None:
    train, valid = folders
    data = {"prepared": {"north": train, "south": "/s"}, "validation": {"every": 1, "prepared": valid}}
    assert files_of(of(train, data=data)) == [
        ("data.prepared.north", train),
        ("data.prepared.south", "/s"),
        ("data.validation.prepared", valid),
    ]


def test_a_data_centre_may_be_called_prepared() -> None:
    flat = document(data={"prepared": "/x", "other": "/y"})
    assert in_sections(flat)["data"] == {"files": {"prepared": "/x", "other": "/y"}}
    centres = [{"name": "prepared", "gpus": 4}, {"name": "south", "gpus": 2}]
    flat = document(data={"prepared": "/x"}, datacenters=centres)
    assert in_sections(flat)["data"] == {"files": {"prepared": "/x"}}
    assert changed(in_sections(document(data={"prepared": "/x"})), {})["data"] == {"prepared": "/x"}


def test_bytes_of_text_are_those_of_the_targets_that_count(folders: tuple[str, str]) -> None:
    """Here a token is a byte, and EOS is no text; the validation set has figures of its own."""
    validation = {"every": 1, "prepared": folders[1], "sequences": 4}
    corpus = corpus_of(of(folders[0], data={"prepared": folders[0], "validation": validation}))
    for one, batch in ((corpus, 12), (corpus.held_out, 4)):
        assert one is not None
        _, targets = one.batch(0, batch, np.arange(batch))
        counted = targets[targets != IGNORED]
        assert 0 < (counted == 256).sum() < counted.size
        assert one.tokens_per_byte(0, batch) == counted.size / (counted < 256).sum()
