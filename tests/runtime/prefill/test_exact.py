"""Prefill gives transformers' own logits, at every pipeline degree, whole or in chunks."""

from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from engine.job.checkpoint.manifest import find
from engine.serve.pipeline import PrefillPipeline, PrefillResult
from engine.train import export as exporting
from tests.runtime.prefill.checkpoints import SHAPES, pipeline, prompt, save, theirs
from tests.runtime.test_export import checkpoint_of


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save(tmp_path_factory.mktemp("grouped"))


@pytest.fixture(scope="module")
def pipelines(folder: Path) -> dict[int, PrefillPipeline]:
    return {stages: pipeline(folder, stages) for stages in (1, 2, 3, 4)}


def logits_of(run: PrefillPipeline, tokens: list[int], chunks: list[int] | None = None) -> torch.Tensor:
    done = run.prefill("r", tokens, chunks=chunks, lease_s=60)
    assert isinstance(done, PrefillResult)
    run.abort("r")
    return done.logits


@pytest.mark.parametrize("stages", [1, 2, 3, 4])
@pytest.mark.parametrize("shape", SHAPES)
def test_logits_are_transformers(shape: str, stages: int, tmp_path: Path) -> None:
    tokens = prompt(150)
    run = pipeline(save(tmp_path, shape), stages)
    expected = theirs(tokens, shape)
    assert expected.abs().max() > 1  # a tolerance of 1e-5 says something
    for chunks in (None, [128, 22], [1, 1, 50, 98]):
        torch.testing.assert_close(logits_of(run, tokens, chunks), expected, rtol=1e-5, atol=1e-5)


@settings(max_examples=20)
@given(stages=st.integers(1, 4), chunks=st.lists(st.integers(1, 40), min_size=1, max_size=5))
def test_no_cut_changes_the_logits(
    stages: int, chunks: list[int], pipelines: dict[int, PrefillPipeline]
) -> None:
    tokens = prompt(sum(chunks), seed=sum(chunks))
    logits = logits_of(pipelines[stages], tokens, chunks)
    torch.testing.assert_close(logits, theirs(tokens), rtol=1e-5, atol=1e-5)


def test_bf16_is_as_near_as_bf16_gets(folder: Path) -> None:
    tokens, whole = prompt(100), theirs(prompt(100))
    logits = logits_of(pipeline(folder, 2, dtype="bf16"), tokens, [60, 40])
    assert logits.dtype is torch.bfloat16
    cosine = torch.nn.functional.cosine_similarity(logits.float(), whole, dim=0)
    assert cosine > 0.995


@pytest.mark.parametrize("dtype", ["fp32", "fp64"])
def test_what_training_exports_is_served(dtype: str, tmp_path: Path) -> None:
    """A byte-level Llama out of a training checkpoint, by `meridian export`."""
    from transformers import AutoModelForCausalLM

    shape = {"family": "llama", "layers": 3, "hidden": 32, "heads": 4, "kv_heads": 2, "seq": 64}
    checkpoint_of(tmp_path / "c", shape, dtype)
    exporting.export(find(str(tmp_path / "c")), tmp_path / "out")
    tokens = list(b"the quick brown fox jumps over")
    theirs = AutoModelForCausalLM.from_pretrained(tmp_path / "out", dtype=torch.float32)
    with torch.no_grad():
        expected = theirs(torch.tensor([tokens])).logits[0, -1]
    for stages in (1, 3):
        logits = logits_of(pipeline(tmp_path / "out", stages), tokens, [17, 13])
        torch.testing.assert_close(logits, expected, rtol=1e-5, atol=1e-5)
