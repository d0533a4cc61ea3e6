"""`meridian profile`: the times of each stage, readable as `times_ms`."""

import json
from types import SimpleNamespace

import pytest
from click.testing import CliRunner

from engine.commands.profile import command
from engine.errors import InputError
from engine.inputs import parse
from engine.job.job import TrainJob
from engine.job.model_document import ConfigModel
from engine.nn.hugging_face import decoder_of
from engine.train.profiling import ProfileRequest, held_bytes, profile_stage
from tests.runtime.decoders import CONFIGS

MODEL = {"layers": 3, "hidden": 32, "heads": 2, "seq": 16}
ASKED = {"model": MODEL, "stages": 2, "repeats": 3}


CONFIG = {
    "model_type": "llama",
    "num_hidden_layers": 2,
    "hidden_size": 64,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "intermediate_size": 128,
    "vocab_size": 300,
    "max_position_embeddings": 32,
}


def run(document: dict, *flags: str) -> str:
    done = CliRunner().invoke(command, ["-", *flags], input=json.dumps(document), catch_exceptions=False)
    return done.stdout


@pytest.mark.parametrize("split", [False, True])
@pytest.mark.parametrize("recompute", [False, True])
@pytest.mark.parametrize("dtype", ["fp32", "bf16", "fp64"])
def test_every_op_of_every_stage_is_timed(split: bool, recompute: bool, dtype: str) -> None:
    request = parse(ProfileRequest, {**ASKED, "split": split, "recompute": recompute, "dtype": dtype})
    rows = [profile_stage(request, stage) for stage in range(2)]
    kinds = {"forward", "backward"}
    kinds |= {"recompute"} if recompute else set()
    kinds |= {"weight"} if split else set()
    for row in rows:
        assert set(row.times_ms) == kinds
        assert all(0 < median <= p95 for median, p95 in row.times_ms.values())
        assert row.tokens == 16
    assert sum(row.parameters for row in rows) == request.model.shape.parameters


def test_the_answer_stands_as_times_ms() -> None:
    answer = json.loads(run({**ASKED, "split": True}, "--json"))
    document = {
        "datacenters": [{"name": "a", "gpus": 2}],
        "stages": 2,
        "microbatches": 2,
        "policy": "1f1b",
        "model": MODEL,
        "steps": 1,
        "times_ms": answer,
    }
    times = parse(TrainJob, document).device.times_ms
    assert times is not None
    assert times.forward == [row["forward_ms"] for row in answer["rows"]]
    assert times.weight == [row["weight_ms"] for row in answer["rows"]]
    del answer["rows"][1]["backward_ms"]
    with pytest.raises(InputError) as caught:
        parse(TrainJob, document)
    assert "backward_ms" in caught.value.field
    answer["rows"] = answer["rows"][:1]
    with pytest.raises(InputError, match=r"times"):
        parse(TrainJob, document)


def test_a_model_is_measured_by_name_or_by_its_config() -> None:
    by_name, by_config = (parse(ProfileRequest, {"model": model, "stages": 2}) for model in ("tiny", CONFIG))
    assert by_name.model.shape.layers == 6
    shape = {"family": "llama", "layers": 2, "hidden": 64, "heads": 4, "kv_heads": 2, "ffn": 128}
    assert by_config.model.model_dump(exclude_none=True) == {**shape, "vocab": 300, "seq": 32}


@pytest.mark.parametrize("family", ["qwen3", "gemma2", "gpt_neox", "opt"])
def test_stages_of_other_families_are_those_of_transformers(family: str) -> None:
    """Every parameter of transformers' own model is measured once, but a tied matrix at both ends."""
    config = {"model_type": family, **CONFIGS[family], "tie_word_embeddings": False, "seq": 16}
    request = parse(ProfileRequest, {**ASKED, "model": config, "stages": 3, "repeats": 1, "split": True})
    rows = [profile_stage(request, stage) for stage in range(3)]
    del config["seq"]
    whole = decoder_of(ConfigModel(config=config, seq=16)).model
    assert sum(row.parameters for row in rows) == sum(p.numel() for p in whole.parameters())
    assert all(min(row.times_ms[kind]) > 0 for row in rows for kind in ("forward", "backward", "weight"))
    assert parse(ProfileRequest, {"model": {"config": config, "seq": 16}}).job.model == request.job.model


def test_models_of_any_size_are_measured_stage_by_stage(monkeypatch: pytest.MonkeyPatch) -> None:
    """Llama-3 8B has 8.03 billion parameters: 8 bytes each in fp32, the fullest of 32 stages 6.0 GB."""
    free = SimpleNamespace(available=7e9)
    monkeypatch.setattr("engine.train.profiling.psutil.virtual_memory", lambda: free)
    request = parse(ProfileRequest, {"model": "llama-3-8b", "stages": 32})
    assert request.model.seq == 8192
    block, matrix = 218_112_000, 128_256 * 4096
    assert held_bytes(request.job, 1) == 8 * block
    assert held_bytes(request.job, 31) == 8 * (block + matrix + 4096)
    with pytest.raises(InputError) as caught:
        parse(ProfileRequest, {"model": "llama-3-8b", "stages": 16})
    assert (caught.value.field, caught.value.value) == ("stages", 16)
    assert "stage 15 take 7.7 GB, and 7.0 GB are free here: take more stages" in caught.value.allowed


def test_the_table_has_a_row_per_stage() -> None:
    lines = run(ASKED).splitlines()
    assert [line.split()[0] for line in lines[-2:]] == ["0", "1"]
    assert "recompute" in lines[0]


@pytest.mark.parametrize(
    ("changes", "field"),
    [
        ({"device": "cuda"}, "device"),
        ({"repeats": 0}, "repeats"),
        ({"stages": 9}, "layers"),
        ({"model": {**MODEL, "heads": 5}}, "heads"),
        ({"dtype": "fp8"}, "dtype"),
        ({"model": "tinny"}, "model"),
        ({"model": {"config": {**CONFIG, "vocab_size": 200}, "seq": 8}}, "model.config.vocab_size"),
        (
            {"model": {**CONFIG, "model_type": "qwen3", "quantization_config": {"bits": 4}}},
            "model.quantization_config",
        ),
        ({"model": {**CONFIG, "num_attention_heads": 3}}, "model.num_key_value_heads"),
        ({"model": {**CONFIG, "num_hidden_layers": 10**9}}, "model.num_hidden_layers"),
        ({"model": {**CONFIG, "model_type": "mixtral", "num_local_experts": 4}}, "model.model_type"),
    ],
)
def test_bad_input_names_its_field(changes: dict, field: str) -> None:
    with pytest.raises(InputError) as caught:
        parse(ProfileRequest, {**ASKED, **changes})
    assert field in caught.value.field
