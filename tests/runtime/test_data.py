"""What a run reads: bytes or tokens, what is held out, files per data centre; what it says of its losses."""

import csv
import io
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from engine.errors import InputError
from engine.job.launch import LaunchSpec, single_machine
from engine.job.losses import Losses
from engine.job.sections.optimizer import SpikeSettings
from engine.train.corpus import TextCorpus, corpus_of, open_corpus
from engine.train.metrics import Metrics
from engine.train.text import byte_tokenizer
from tests.events import event
from tests.runtime.held_out import held_out_loss
from tests.runtime.jobs import Run, job


@pytest.fixture(autouse=True)
def _own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


def write(folder: Path, **texts: str) -> str:
    folder.mkdir(parents=True, exist_ok=True)
    for name, text in texts.items():
        (folder / f"{name}.txt").write_text(text)
    return str(folder)


@settings(max_examples=60, deadline=None)
@given(
    sizes=st.lists(st.integers(0, 400), min_size=1, max_size=5),
    seq=st.integers(1, 20),
    share=st.floats(0.01, 0.5),
    seed=st.integers(0, 99),
    step=st.integers(0, 10**9),
)
def test_no_text_is_both_trained_on_and_held_out(
    sizes: list[int], seq: int, share: float, seed: int, step: int
) -> None:
    # every position of every file has its own number
    files = np.split(np.arange(sum(sizes), dtype=np.uint32), np.cumsum(sizes)[:-1])
    cuts = [round(file.size * (1 - share)) for file in files]
    halves = (
        [f[:c] for f, c in zip(files, cuts, strict=True)],
        [f[c:] for f, c in zip(files, cuts, strict=True)],
    )
    drawn: list[set[int]] = []
    for part in halves:
        try:
            corpus = TextCorpus.of(part, seq=seq, seed=seed)
        except InputError:
            assert all(file.size <= seq for file in part)
            return
        tokens, targets = corpus.batch(step, 50, np.arange(50))
        assert (targets == tokens + 1).all(), "the next token of the same file"
        drawn.append({*tokens.ravel().tolist(), *targets.ravel().tolist()})
    assert not drawn[0] & drawn[1]


def test_held_out_is_the_end_of_every_file(tmp_path: Path) -> None:
    data = write(tmp_path / "d", a="a" * 80 + "b" * 20, c="c" * 160 + "d" * 40)
    corpus = open_corpus(data, seq=8, seed=1, share=0.2)
    assert corpus.held_out is not None
    trained, _ = corpus.batch(3, 200, np.arange(200))
    held, _ = corpus.held_out.batch(3, 200, np.arange(200))
    assert set(trained.ravel().tolist()) == set(b"ac")
    assert set(held.ravel().tolist()) == set(b"bd")
    with pytest.raises(InputError, match="in the parts of 90% and 10%"):
        open_corpus(data, seq=30, seed=1, share=0.1)


def test_tokens_of_a_tokenizer_file_are_encoded_once(tmp_path: Path) -> None:
    from tokenizers import Tokenizer, models, pre_tokenizers

    words = {"[UNK]": 0, "one": 1, "two": 2, "three": 3}
    tokenizer = Tokenizer(models.WordLevel(words, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer.save(str(tmp_path / "tokenizer.json"))
    data = write(tmp_path / "d", text="one two three four\n" * 30)
    how: dict[str, Any] = {"seq": 4, "seed": 1, "tokenizer": str(tmp_path / "tokenizer.json"), "vocab": 256}
    corpus = open_corpus(data, **how)
    assert corpus.files[0].tolist() == [1, 2, 3, 0] * 30
    cached = list((tmp_path / "cache" / "meridian" / "tokens").iterdir())
    assert len(cached) == 1
    before = cached[0].stat().st_mtime_ns
    assert open_corpus(data, **how).fingerprint() == corpus.fingerprint()
    assert cached[0].stat().st_mtime_ns == before
    (tmp_path / "d" / "text.txt").write_text("two one\n" * 30)
    assert open_corpus(data, **how).files[0].tolist() == [2, 1] * 30
    with pytest.raises(InputError, match=r"model.vocab: 3: at least 4"):
        open_corpus(data, **{**how, "vocab": 3})
    with pytest.raises(InputError, match=r"model.tokenizer.*is not a tokenizer.json"):
        open_corpus(data, **{**how, "tokenizer": str(tmp_path / "d" / "text.txt")})
    (tmp_path / "d" / "text.txt").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(InputError, match="not UTF-8"):
        open_corpus(data, **how)


def test_byte_tokens_are_bytes_whatever_reads_them(tmp_path: Path) -> None:
    (tmp_path / "bytes.json").write_text(byte_tokenizer())
    data = write(tmp_path / "d", text="naïve 漢字\r\n\tx = 1\n" * 9)
    tokens = open_corpus(data, seq=4, seed=1, tokenizer=str(tmp_path / "bytes.json"))
    assert tokens.files[0].tolist() == open_corpus(data, seq=4, seed=1).files[0].tolist()


def test_refused_documents(tmp_path: Path) -> None:
    model = {"layers": 3, "hidden": 32, "heads": 2, "seq": 16}
    for changes, message in [
        ({"model": {**model, "tokenizer": "x"}}, "model.vocab"),
        ({"model": {**model, "vocab": 10}}, "model.vocab"),
        ({"data": {"north": "a", "sout": "b"}}, "did you mean 'south'"),
        ({"data": {"north": "a"}}, "data.south.*every data centre with stages"),
        ({"validation": {"every": 0}}, "validation.every"),
        ({"validation": {"every": 1, "share": 0.9}}, "validation.share"),
        ({"spike": {"factor": 1}}, "spike.factor"),
        ({"spike": True}, "spike"),
    ]:
        with pytest.raises(InputError, match=message):
            job(**changes)


@pytest.mark.long
def test_files_of_each_data_centre(tmp_path: Path) -> None:
    there = {name: write(tmp_path / name, a="some text\n" * 20) for name in ("north", "south")}
    of = job(data=there)
    assert corpus_of(of, "north").fingerprint() == corpus_of(of, "south").fingerprint()
    write(tmp_path / "south", a="some text.\n" * 20)
    assert corpus_of(of, "north").fingerprint() != corpus_of(of, "south").fingerprint()
    run = Run(job(data=there, pipelines=1, stages=2, dc_of_stage=[0, 1]), str(tmp_path / "log"))
    assert run.group.wait(240)
    failed = [e["detail"] for e in run.of_kind("rank") if e["state"] == "failed"]
    assert len(failed) == 1
    assert failed[0].startswith("data.files.south: ")
    assert "not the same text as that in north" in failed[0]


def test_a_spike_or_nan_ends_the_run() -> None:
    losses = Losses(SpikeSettings(factor=2, window=4))
    for step, loss in enumerate([9.0, 3.0, 1.0, 1.0, 1.9]):
        losses.add(step, loss, 1.0)
    with pytest.raises(
        FloatingPointError, match=r"step 5: loss 3 is over 2 times the median 1.45 of the last 4"
    ):
        losses.add(5, 3.0, 1.0)
    for loss, norm in ((float("nan"), 1.0), (1.0, float("inf"))):
        with pytest.raises(FloatingPointError, match="must be finite"):
            losses.add(5, loss, norm)
    assert list(losses.losses) == [9.0, 3.0, 1.0, 1.0, 1.9]
    unwatched = Losses(None)
    for step in range(3):
        unwatched.add(step, 10.0**step, 1.0)


def test_what_is_watched_reaches_the_ranks(tmp_path: Path) -> None:
    for setting, got in ((False, False), ({"factor": 9}, SpikeSettings(factor=9)), (None, SpikeSettings())):
        spec = single_machine(job(spike=setting), run="x", log_dir=str(tmp_path))
        assert LaunchSpec.from_json(spec.to_json()).job.optimizer.spike == got


def test_metrics_have_a_row_per_step() -> None:
    file = io.StringIO()
    metrics = Metrics(file)
    for i in range(3):
        metrics.step(event("step", iteration=i, loss=2.0 - i, t=9.0))
        if i == 1:
            metrics.validation(event("validation", step=2, loss=1.5, t=9.5))
    metrics.close()
    rows = list(csv.DictReader(io.StringIO(file.getvalue())))
    assert [row["step"] for row in rows] == ["1", "2", "3"]
    assert [row["validation_loss"] for row in rows] == ["", "1.5", ""]
    assert rows[2]["loss"] == "0.0"


def validated(folder: Path, **changes: Any) -> None:
    """A run's validation losses are those of the whole model on one device."""
    data = write(folder / "d", a=(Path(json.__file__).read_text() * 3))
    settings = {"every": 2, "share": 0.2, "sequences": 7}
    of = job(
        data=data, validation=settings, steps=3, checkpoint={"dir": str(folder / "c"), "every": 9}, **changes
    )
    run = Run(of, str(folder / "log"))
    result = run.result()
    assert [row["step"] for row in result["validation"]] == [2, 3]
    assert [(e["step"], e["loss"]) for e in run.of_kind("validation")] == [
        (row["step"], row["loss"]) for row in result["validation"]
    ]
    assert result["validation"][-1]["loss"] == pytest.approx(held_out_loss(of, folder / "c"), rel=1e-5)


@pytest.mark.long
def test_validation_loss_is_that_of_the_whole_model(tmp_path: Path) -> None:
    validated(tmp_path, stages=2, dc_of_stage=[0, 1], pipelines=2, microbatches=1)


@pytest.mark.long
@pytest.mark.parametrize("policy", ["crosspipe-wave", "crosspipe-loop", "interleaved"])
def test_validation_through_chunks(policy: str, tmp_path: Path) -> None:
    links = [{"between": ["north", "south"], "latency_ms": 2, "bandwidth_gbps": 1}]
    model = {"layers": 4, "hidden": 32, "heads": 2, "seq": 16}
    validated(
        tmp_path,
        policy=policy,
        chunks=2,
        stages=2,
        dc_of_stage=[0, 1],
        pipelines=1,
        microbatches=2,
        links=links,
        model=model,
        recompute=False,
    )
