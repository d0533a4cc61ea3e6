"""What a stage reads, what it refuses, and how long its chunks last."""

import json
import math
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from engine.errors import InputError
from engine.job.prefill.config import read_config
from engine.nn.saved_weights import INDEX, SINGLE
from engine.prefill.latency import LatencyModel
from engine.serve.chunks import PrefillChunk, chunks_of
from engine.serve.rotary import frequencies
from engine.serve.stage import ChunkTimes, PrefillStage, StageSettings
from tests.runtime.prefill.checkpoints import LLAMA3, TINY, model, pipeline, prompt, save, theirs


def load(folder: Path, stage: int = 0, stages: int = 1, **settings: Any) -> PrefillStage:
    defaults = {"kv_budget_bytes": 1_000_000}
    return PrefillStage.load(folder, StageSettings(stage=stage, stages=stages, **defaults | settings))


def change(folder: Path, **fields: Any) -> Path:
    """config.json with other fields (None: without)."""
    path = folder / "config.json"
    config = {
        key: value for key, value in (json.loads(path.read_text()) | fields).items() if value is not None
    }
    path.write_text(json.dumps(config))
    return folder


@pytest.mark.parametrize("stage", [0, 1, 2])
def test_a_stage_reads_its_own_files_alone(stage: int, tmp_path: Path) -> None:
    """Of a sharded checkpoint, all files that hold nothing of the stage are taken away."""
    save(tmp_path, max_shard_size="9KB")
    place_of = json.loads((tmp_path / INDEX).read_text())["weight_map"]
    whole = load(tmp_path, stage, 3)
    needed = {place_of[name] for name in whole.part.shapes}
    others = set(place_of.values()) - needed
    assert others
    for file in others:
        (tmp_path / file).unlink()
    assert load(tmp_path, stage, 3).weight_bytes == whole.weight_bytes


@pytest.mark.parametrize("shape", ["grouped", "tied", "wide-heads"])
@pytest.mark.parametrize(("dtype", "width"), [("fp32", 4), ("bf16", 2)])
def test_bytes_of_the_stages_are_those_of_the_model(
    shape: str, dtype: str, width: int, tmp_path: Path
) -> None:
    run = pipeline(save(tmp_path, shape), 3, dtype=dtype)
    expected = sum(p.numel() for p in model(shape).parameters()) * width
    if shape == "tied":  # embedding and head are apart: both stages hold the matrix
        expected += model(shape).get_input_embeddings().weight.numel() * width
    assert sum(stage.weight_bytes for stage in run.stages) == expected
    alone = pipeline(tmp_path, 1, dtype=dtype).stages[0]
    assert alone.weight_bytes == sum(p.numel() for p in model(shape).parameters()) * width


def test_weights_over_the_budget_are_refused_before_they_are_read(tmp_path: Path) -> None:
    needed = load(save(tmp_path), 1, 2).weight_bytes
    (tmp_path / SINGLE).unlink()
    with pytest.raises(InputError) as caught:
        load(tmp_path, 1, 2, weight_budget_bytes=needed - 10)
    assert caught.value.field == "weight_budget_bytes"
    assert str(caught.value) == (
        f"weight_budget_bytes: {needed - 10}: "
        f"stage 1 of 2 has weights of {needed:,} bytes in fp32: 10 too many"
    )
    with pytest.raises(InputError, match=SINGLE):
        load(tmp_path, 1, 2, weight_budget_bytes=needed)


@pytest.mark.parametrize(
    ("fields", "field"),
    [
        ({"model_type": "mistral"}, "model_type"),
        ({"model_type": None}, "model_type"),
        ({"architectures": ["LlamaForSequenceClassification"]}, "architectures"),
        ({"hidden_act": "gelu"}, "config.json.hidden_act"),
        ({"attention_bias": True}, "config.json.attention_bias"),
        ({"mlp_bias": True}, "config.json.mlp_bias"),
        ({"quantization_config": {"bits": 4}}, "config.json.quantization_config"),
        ({"hidden_size": "32"}, "config.json.hidden_size"),
        ({"hidden_size": None}, "config.json.hidden_size"),
        ({"num_key_value_heads": 3}, "num_key_value_heads"),
        ({"head_dim": 7}, "head_dim"),
        ({"rope_parameters": {"rope_type": "yarn", "factor": 2.0}}, "config.json.rope.rope_type"),
        ({"rope_parameters": {"rope_type": "llama3", "factor": 2.0}}, "rope_parameters.low_freq_factor"),
        ({"rope_parameters": {"partial_rotary_factor": 0.5}}, "rope_parameters.partial_rotary_factor"),
    ],
)
def test_other_models_are_refused_by_the_field(fields: dict, field: str, tmp_path: Path) -> None:
    with pytest.raises(InputError) as caught:
        load(change(save(tmp_path), **fields))
    assert caught.value.field == field


def test_damaged_checkpoints_are_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"config\.json cannot be read"):
        load(tmp_path)
    tensors = load_file(save(tmp_path) / SINGLE)
    wrong = tensors | {"model.norm.weight": torch.ones(31)}
    save_file(wrong, tmp_path / SINGLE)
    with pytest.raises(InputError, match=r"tensor model.norm.weight: \[31\]: config.json makes it \[32\]"):
        load(tmp_path)
    save_file({name: t for name, t in tensors.items() if "norm" not in name}, tmp_path / SINGLE)
    with pytest.raises(InputError, match="input_layernorm"):
        load(tmp_path)
    (tmp_path / SINGLE).write_bytes(b"nothing of the kind")
    with pytest.raises(InputError, match="cannot be read"):
        load(tmp_path)
    (tmp_path / INDEX).write_text(json.dumps({"weight_map": dict.fromkeys(tensors, "../x")}))
    with pytest.raises(InputError, match="outside the folder"):
        load(tmp_path)


@pytest.mark.parametrize(
    ("field", "settings"),
    [
        ("stages", {"stages": 5}),
        ("stage", {"stage": 2, "stages": 2}),
        ("dtype", {"dtype": "fp16"}),
        ("kv_budget_bytes", {"kv_budget_bytes": 100}),
        ("block_tokens", {"block_tokens": 0}),
    ],
)
def test_settings_that_cannot_be_name_the_field(field: str, settings: dict, tmp_path: Path) -> None:
    save(tmp_path)
    with pytest.raises(InputError) as caught:
        load(tmp_path, **settings)
    assert caught.value.field == field


def test_configs_of_transformers_4_are_read_alike(tmp_path: Path) -> None:
    new = read_config(save(tmp_path, "llama3"))
    old = {key: value for key, value in LLAMA3.items() if key != "rope_theta"}
    change(tmp_path, rope_parameters=None, rope_theta=5000.0, rope_scaling=old)
    assert read_config(tmp_path) == new
    assert torch.equal(frequencies(new), model("llama3").model.rotary_emb.inv_freq)


@pytest.mark.parametrize(
    ("tokens", "chunks", "field"),
    [
        ([], None, "tokens"),
        ([1] * 257, None, "tokens"),
        ([1, 97], None, "tokens[1]"),
        ([-1], None, "tokens[0]"),
        ([1, 2], [1], "chunks"),
        ([1, 2], [2, 0], "chunks[1]"),
    ],
)
def test_bad_prompts_name_the_field(tokens: list, chunks: Any, field: str, tmp_path: Path) -> None:
    run = pipeline(save(tmp_path), 1)
    with pytest.raises(InputError) as caught:
        run.prefill("r", tokens, chunks=chunks, lease_s=60)
    assert caught.value.field == field
    assert run.stages[0].pool.bytes_in_use == 0


def test_chunks_run_in_order_alone(tmp_path: Path) -> None:
    stage = load(save(tmp_path))
    stage.pool.reserve("r", 10, lease_s=60)
    ids = torch.tensor(prompt(10))
    first, second = chunks_of("r", 10, [6, 4])
    with pytest.raises(ValueError, match="holds 0 of 10"):
        stage.run(second, ids[6:])
    with pytest.raises(ValueError, match="must be"):
        stage.run(first, ids)
    assert stage.run(first, ids[:6]).numel() == 0
    torch.testing.assert_close(stage.run(second, ids[6:]), theirs(prompt(10)), rtol=1e-5, atol=1e-5)


def test_two_requests_do_not_mix(tmp_path: Path) -> None:
    stage = load(save(tmp_path))
    prompts = {"a": prompt(20, seed=1), "b": prompt(20, seed=2)}
    for name in prompts:
        stage.pool.reserve(name, 20, lease_s=60)
    outputs = {}
    for place in range(2):
        for name, tokens in prompts.items():
            chunk = chunks_of(name, 20, [12, 8])[place]
            outputs[name] = stage.run(chunk, torch.tensor(tokens[chunk.done : chunk.done + chunk.tokens]))
    for name, tokens in prompts.items():
        torch.testing.assert_close(outputs[name], theirs(tokens), rtol=1e-5, atol=1e-5)


def test_the_emulated_device_takes_the_profile_s_time(tmp_path: Path) -> None:
    latency, ran = LatencyModel(a_ms=40, b_ms=0.5, c_ms=0.01), list[ChunkTimes]()
    settings = StageSettings(stage=0, stages=2, kv_budget_bytes=1_000_000, latency=latency)
    stage = PrefillStage.load(save(tmp_path), settings, report=ran.append)
    ids = torch.tensor(prompt(90))
    stage.pool.reserve("r", 90, lease_s=60)
    for chunk in chunks_of("r", 90, [40, 50]):
        stage.run(chunk, ids[chunk.done : chunk.done + chunk.tokens])
    expected = [(40 + 0.5 * 40 + 0.01 * 1600) / 2, (40 + 0.5 * 50 + 0.01 * (8100 - 1600)) / 2]
    for done, ms in zip(ran, expected, strict=True):
        lasted = (done.end - done.start) * 1e3
        assert ms <= lasted < ms + 100 + done.overrun_s * 1e3
        assert done.overrun_s == 0 or math.isclose(lasted, ms + done.overrun_s * 1e3, abs_tol=5)
    assert [done.chunk for done in ran] == list(chunks_of("r", 90, [40, 50]))


def test_a_chunk_has_tokens() -> None:
    with pytest.raises(ValueError, match="tokens"):
        PrefillChunk(request="r", done=0, tokens=0, total=1)


def test_drawn_weights_need_no_file(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps(TINY | {"model_type": "llama"}))
    settings = StageSettings(stage=1, stages=2, kv_budget_bytes=1_000_000, dtype="bf16")
    stage = PrefillStage.load(tmp_path, settings, seed=3)
    stage.pool.reserve("r", 5, lease_s=60)
    logits = stage.run(chunks_of("r", 5)[0], torch.ones(5, 32, dtype=torch.bfloat16))
    assert logits.shape == (97,)
    assert logits.isfinite().all()
