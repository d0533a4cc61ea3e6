"""`meridian profile`: the times of each stage, readable as `times_ms`."""

import json

import pytest
from click.testing import CliRunner

from engine.commands.profile import command
from engine.errors import InputError
from engine.inputs import parse
from engine.job.job import TrainJob
from engine.train.profiling import ProfileRequest, profile_stage

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
    assert sum(row.parameters for row in rows) == request.model.parameters


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


def test_the_table_has_a_row_per_stage() -> None:
    lines = run(ASKED).splitlines()
    assert [line.split()[0] for line in lines[-2:]] == ["0", "1"]
    assert "recompute" in lines[0]


def test_a_stage_that_this_machine_cannot_hold_is_not_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    """Weights and gradients, 4 bytes each, of 16 layers of Llama 3 8B with the output matrix."""
    layer = 4096 * (2 * 4096 + 2 * 1024 + 3 * 14336) + 2 * 4096
    needed = 8 * (16 * layer + 128256 * 4096 + 4096)
    asked = {"model": "llama-3-8b", "stages": 2}
    monkeypatch.setattr("engine.train.profiling.machine_bytes", lambda: needed)
    assert parse(ProfileRequest, asked).model.parameters == 8_030_261_248
    monkeypatch.setattr("engine.train.profiling.machine_bytes", lambda: needed - 1)
    with pytest.raises(InputError, match=r"model: .*weights and gradients of one are 32\.1 GB"):
        parse(ProfileRequest, asked)


@pytest.mark.parametrize(
    ("changes", "field"),
    [
        ({"device": "cuda"}, "device"),
        ({"repeats": 0}, "repeats"),
        ({"stages": 9}, "layers"),
        ({"model": {**MODEL, "heads": 5}}, "heads"),
        ({"dtype": "fp8"}, "dtype"),
        ({"model": "tinny"}, "model"),
        ({"model": {**CONFIG, "num_attention_heads": 3}}, "model.num_key_value_heads"),
        ({"model": {**CONFIG, "num_hidden_layers": 10**9}}, "model.num_hidden_layers"),
        ({"model": {**CONFIG, "tie_word_embeddings": True}}, "model"),
    ],
)
def test_bad_input_names_its_field(changes: dict, field: str) -> None:
    with pytest.raises(InputError) as caught:
        parse(ProfileRequest, {**ASKED, **changes})
    assert field in caught.value.field
