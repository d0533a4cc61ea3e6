"""Placement and prefill take a model as plans do: by name, as a shape, as a config.json."""

import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from engine.commands import place, prefill
from engine.errors import InputError
from engine.inputs import parse
from engine.model.presets import PRESETS
from engine.plan.placement.request import PlacementRequest
from engine.prefill.profiles import computed, shipped
from engine.prefill.request import ProfileDocument, ReplayRequest

LLAMA = Path(__file__).parent.parent / "configs" / "llama-3-8b.json"
CONFIG = json.loads(LLAMA.read_text())
SHAPE = {"layers": 32, "hidden": 4096, "heads": 32, "kv_heads": 8, "ffn": 14336, "vocab": 128256, "seq": 8192}
FORMS: dict[str, Any] = {"preset": "llama-3-8b", "shape": SHAPE, "config": CONFIG}
WRONG: dict[str, tuple[Any, str]] = {
    "no size": ({**CONFIG, "hidden_size": None}, "hidden_size"),
    "negative": ({**CONFIG, "num_hidden_layers": -2}, "num_hidden_layers"),
    "heads that do not divide": ({**CONFIG, "num_attention_heads": 33}, "num_key_value_heads"),
    "10^9 layers": ({**CONFIG, "num_hidden_layers": 10**9}, "num_hidden_layers"),
    "a shape with 10^9 layers": ({**SHAPE, "layers": 10**9}, "layers"),
    "no family": ({**CONFIG, "model_type": "lama"}, "model_type"),
    "a list": ([1], ""),
}


def place_document(model: Any) -> dict[str, Any]:
    return {"scenario": "spot", "model": model, "batch": 64, "evaluations": 20}


def replay_document(model: Any) -> dict[str, Any]:
    times = {"forward": 1, "backward": 2}
    scenario = {"stages": 4, "microbatches": 4, "policy": "1f1b", "times": times}
    return {
        "bubbles": {"scenario": scenario, "slot_ms": 100},
        "profile": {"model": model, "gpu": "h100"},
        "trace": "azure-code",
        "requests": 20,
        "load": 0.1,
    }


@pytest.mark.parametrize("form", FORMS)
def test_the_traffic_of_a_placement_is_that_of_its_model(form: str) -> None:
    request = parse(PlacementRequest, place_document(FORMS[form]))
    assert request.traffic == {
        "dp_bytes": 8_030_261_248 * 2 / 8,  # a stage's fp16 gradients
        "pp_bytes": 64 / 8 * 8192 * 4096 * 2,
    }


def test_bytes_that_are_given_are_kept() -> None:
    request = parse(PlacementRequest, place_document("llama-3-8b") | {"pp_bytes": 5.0})
    assert request.traffic["pp_bytes"] == 5.0
    assert request.traffic["dp_bytes"] > 5.0
    assert parse(PlacementRequest, {"scenario": "spot"}).traffic["pp_bytes"] == 1024 / 8 * 2048 * 2048 * 2


def test_a_placement_without_its_traffic_is_refused() -> None:
    links = {"latency_ms": [[0, 1], [1, 0]], "bandwidth_gbps": [[0, 1], [1, 0]]}
    for document, field in (
        ({**place_document("tiny"), "batch": None}, "batch"),
        ({"scenario": "spot", "batch": 64}, "batch"),
        ({**place_document("tiny"), "batch": -1}, "batch"),
        ({**links, "stages": 2, "data_parallel": 1, "dp_bytes": 1}, "pp_bytes"),
        (place_document("llama-3-8"), "model"),
    ):
        with pytest.raises(InputError) as error:
            parse(PlacementRequest, document)
        assert error.value.field == field


@pytest.mark.parametrize("degree", [1, 2, 4])
def test_computed_times_are_near_measured_ones(degree: int) -> None:
    """Those of the one model of ours that has a measured profile, from 512 tokens on."""
    measured = next(p for p in shipped() if (p.model, p.tensor_parallel) == ("llama-3-8b", degree))
    points = computed(PRESETS["llama-3-8b"], measured.gpu, degree)
    ours = parse(ProfileDocument, {"points": list(points)}).latency
    for tokens, ms in measured.points:
        if 512 <= tokens <= 8192:
            assert ours.ms(int(tokens)) == pytest.approx(ms, rel=0.2), tokens


def test_a_model_without_a_measured_profile_is_computed_alike_in_each_form() -> None:
    requests = [parse(ReplayRequest, replay_document(model)) for model in FORMS.values()]
    assert len({request.profile.measured for request in requests}) == 1
    assert {request.cache.token_bytes for request in requests} == {131_072}
    other = parse(ReplayRequest, replay_document("llama-3-70b"))
    assert other.cache.token_bytes == 80 * 2 * 8 * 128 * 2
    assert other.hop.token_ms == 2 * 8192 / other.bytes_per_ms
    own = parse(ReplayRequest, replay_document("llama-3-70b") | {"kv_bytes_per_token": 7})
    assert own.cache.token_bytes == 7


def test_a_measured_profile_goes_before() -> None:
    measured = next(p for p in shipped() if (p.model, p.tensor_parallel) == ("llama-3-8b", 2))
    document = {"model": "llama-3-8b", "gpu": measured.gpu, "tensor_parallel": 2}
    assert parse(ProfileDocument, document).measured == measured.points


@pytest.mark.parametrize(
    ("changes", "field"),
    [
        ({"tensor_parallel": 3}, "tensor_parallel"),
        ({"gpu": "h1000"}, "gpu"),
        ({"gpu": None}, "gpu"),
        ({"model": {**SHAPE, "seq": 256}}, "model.seq"),
    ],
)
def test_times_that_cannot_be_computed_are_refused_by_name(changes: dict[str, Any], field: str) -> None:
    with pytest.raises(InputError) as error:
        parse(ProfileDocument, {"model": CONFIG, "gpu": "h100"} | changes)
    assert error.value.field == field


@pytest.mark.parametrize("name", WRONG)
def test_a_wrong_model_is_named_by_its_field(name: str) -> None:
    model, field = WRONG[name]
    with pytest.raises(InputError) as of_placement:
        parse(PlacementRequest, place_document(model))
    assert of_placement.value.field == f"model.{field}".rstrip(".")
    with pytest.raises(InputError) as of_prefill:
        parse(ReplayRequest, replay_document(model))
    assert of_prefill.value.field == f"profile.model.{field}".rstrip(".")


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("model_type: [llama", "not JSON or YAML"),
        (json.dumps({**CONFIG, "note": "x" * 5_000_000}), "note"),
        ("- a\n- b", "model"),
    ],
    ids=["half a YAML list", "5 MB", "a YAML list"],
)
def test_a_file_that_is_no_config_is_refused(text: str, why: str, tmp_path: Path) -> None:
    file, request = tmp_path / "config.json", tmp_path / "asked.json"
    file.write_text(text)
    for command, arguments, document in (
        (place.command, [], place_document(str(tmp_path))),
        (prefill.command, ["replay"], replay_document(str(file))),
    ):
        request.write_text(json.dumps(document))
        with pytest.raises(InputError, match=why) as error:
            CliRunner().invoke(command, [*arguments, str(request)], catch_exceptions=False)
        assert len(str(error.value)) < 500


def test_commands_read_the_file_of_a_model(tmp_path: Path) -> None:
    request = tmp_path / "asked.json"
    for command, arguments, document, word in (
        (place.command, [], place_document(str(LLAMA)), "communication"),
        (prefill.command, ["replay"], replay_document(str(LLAMA)), "accepted"),
    ):
        request.write_text(json.dumps(document))
        assert word in CliRunner().invoke(command, [*arguments, str(request)], catch_exceptions=False).output
