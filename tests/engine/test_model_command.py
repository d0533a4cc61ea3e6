"""`meridian model`, and models by file in the documents of other commands."""

import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from engine.cli import cli
from engine.commands.model_files import with_model
from engine.errors import InputError
from engine.inputs import parse
from engine.model.hugging_face import HuggingFaceModel
from engine.plan.network.request import NetworkRequest
from engine.plan.request import PlanRequest
from engine.plan.swap.request import SwapRequest

CONFIGS = Path(__file__).parent.parent / "configs"
MIXTRAL, QWEN = CONFIGS / "mixtral-8x7b.json", CONFIGS / "qwen2.5-7b.json"
PLAN: dict[str, Any] = {
    "datacenters": [{"name": "a", "gpus": 8, "gpu_type": "a100-80g", "price_per_gpu_hour": 2}],
    "job": {"partitions": 4, "microbatches": 8},
}


def said(*words: str) -> str:
    """What `meridian model` prints. Raises InputError, which main turns into one line and status 2."""
    return CliRunner().invoke(cli, ["model", *words], standalone_mode=False, catch_exceptions=False).stdout


def answered(*words: str) -> dict[str, Any]:
    answer: dict[str, Any] = json.loads(said(*words, "--json"))
    return answer


def test_a_config_in_figures() -> None:
    answer = answered(str(MIXTRAL), "--dtype", "fp32")
    attention, expert, router = 2 * 4096 * (4096 + 1024), 3 * 4096 * 14_336, 4096 * 8
    weights = 32 * (attention + 2 * expert + router) + 32_000 * 4096
    assert answer == {
        "family": "mixtral",
        "parameters": 46_702_792_704,
        "active_parameters": 46_702_792_704 - 32 * 6 * expert,
        "tied_embeddings": False,
        "layers": 32,
        "hidden": 4096,
        "heads": 32,
        "kv_heads": 8,
        "head_dim": 128,
        "ffn": 14_336,
        "vocab": 32_000,
        "seq": 32_768,
        "experts": 8,
        "experts_per_token": 2,
        "window": None,
        "windowed_layers": None,
        "dtype": "fp32",
        "weight_bytes": 4 * 46_702_792_704,
        "kv_bytes_per_token": 4 * 32 * 2 * 1024,
        "forward_flops_per_token": 2 * weights,
        "source": str(MIXTRAL),
        "assumed": {"tie_word_embeddings": False, "head_dim": 128},
    }


def test_a_folder_a_shape_and_a_preset(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(QWEN.read_text())
    assert answered(str(tmp_path))["parameters"] == 7_615_616_512
    shape = tmp_path / "shape.yaml"
    shape.write_text("{layers: 12, hidden: 768, heads: 12, vocab: 50257, seq: 1024}")
    assert answered(str(shape))["parameters"] == 124_439_808
    assert answered("llama-3-8b")["parameters"] == 8_030_261_248


def test_a_person_reads_a_table() -> None:
    table = said(str(MIXTRAL))
    assert "46,702,792,704" in table
    assert "8, 2 for a token" in table
    assert "Not in the config, as transformers has it: tie_word_embeddings = false" in table


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("[1]", "must be an object"),
        ('{"model_type": "lama"}', "did you mean 'llama'"),
        ('{"layers": 3, "hidden": 10, "heads": 3, "seq": 8}', "heads: 3"),
        ("{", "FILE"),
    ],
)
def test_what_is_no_model_is_refused_by_name(text: str, why: str, tmp_path: Path) -> None:
    file = tmp_path / "model.json"
    file.write_text(text)
    with pytest.raises(InputError, match=why):
        said(str(file))


def test_a_misspelt_preset_is_named() -> None:
    with pytest.raises(InputError, match="did you mean 'llama-3-8b'"):
        said("llama-3-8")


def test_documents_of_other_commands_name_a_file() -> None:
    config = json.loads(QWEN.read_text())
    plan = parse(
        PlanRequest, with_model({**PLAN, "job": {**PLAN["job"], "model": str(QWEN)}}, "job", "model")
    )
    swap = parse(SwapRequest, with_model({"model": str(QWEN), "gpu": {"name": "a100-80g"}}, "model"))
    network = parse(
        NetworkRequest,
        with_model(
            {
                "gpus": 64,
                "hb_domain": 8,
                "switch_radix": 64,
                "gpu_type": "h100",
                "batch": 64,
                "model": str(QWEN),
            },
            "model",
        ),
    )
    for model in (plan.job.model, swap.model, network.model):
        assert isinstance(model, HuggingFaceModel)
        assert model.root == config
    assert network.shape is not None
    assert network.shape.parameters == 7_615_616_512
    assert with_model({"model": "tiny"}, "model") == {"model": "tiny"}, "a preset's name is no file"


def test_a_field_of_a_config_is_named_with_its_place() -> None:
    with pytest.raises(InputError) as error:
        parse(PlanRequest, {**PLAN, "job": {**PLAN["job"], "model": {"model_type": "gpt2", "n_layer": 0}}})
    assert error.value.field == "job.model.n_embd"
