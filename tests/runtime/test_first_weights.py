"""Weights that a run begins with come from a folder of transformers, and go back into one, to the bit."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import nn

from engine.errors import InputError
from engine.inputs import parse
from engine.job.checkpoint.manifest import find
from engine.job.job import TrainJob
from engine.job.model_document import ConfigModel
from engine.nn.hugging_face import Slice
from engine.nn.model import build_layer
from engine.nn.saved_weights import INDEX, SINGLE
from engine.train.corpus import corpus_of
from engine.train.export import export
from engine.train.text import byte_tokenizer
from tests.runtime.decoders import model_of
from tests.runtime.jobs import Run, document
from tests.runtime.test_export import checkpoint_of

GENERATION = {"temperature": 0.25, "do_sample": True}


def saved(family: str, folder: Path, *, shard: str = "50GB") -> Any:
    """Have transformers save a model with weights that are not those of any seed of ours."""
    from transformers import AutoConfig, AutoModelForCausalLM

    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_config(AutoConfig.for_model(**model_of(family)["config"])).eval()
    for parameter in model.parameters():
        parameter.data.normal_(0.0, 0.05)
    model.save_pretrained(folder, max_shard_size=shard)
    return model


def read(family: str, folder: Path, number: int) -> nn.Module:
    return build_layer(parse(ConfigModel, {**model_of(family), "init": str(folder)}), number, 1)


@pytest.mark.parametrize(
    ("family", "shard"), [("llama", "60KB"), ("qwen2", "60KB"), ("gpt2", "50GB"), ("opt", "50GB")]
)
def test_layers_hold_what_transformers_saved(family: str, shard: str, tmp_path: Path) -> None:
    model = saved(family, tmp_path, shard=shard)
    assert (tmp_path / INDEX).exists() == (shard == "60KB")
    weights = dict(model.named_parameters(remove_duplicate=False))
    x = tokens = torch.arange(32).view(2, 16)
    for number in range(8):
        layer = read(family, tmp_path, number)
        assert isinstance(layer, Slice)
        for name, weight in layer.named_parameters():
            assert torch.equal(weight, weights[layer.name_in_model(name)])
        x = layer(x)
    assert torch.equal(x, model(tokens).logits)


def test_a_base_model_that_was_saved_alone_is_read(tmp_path: Path) -> None:
    model = saved("gpt2", tmp_path)
    model.transformer.save_pretrained(tmp_path / "base")
    assert "wte.weight" in load_file(tmp_path / "base" / SINGLE)
    layer = read("gpt2", tmp_path / "base", 7)
    assert isinstance(layer, Slice)
    assert torch.equal(layer.get_parameter(str(layer.tied)), model.transformer.wte.weight)


def test_a_layer_opens_no_file_of_others(tmp_path: Path) -> None:
    saved("llama", tmp_path, shard="20KB")
    files = json.loads((tmp_path / INDEX).read_text())["weight_map"]
    own = {file for name, file in files.items() if name.startswith("model.layers.2.")}
    for file in set(files.values()) - own:
        (tmp_path / file).unlink()
    read("llama", tmp_path, 3)
    with pytest.raises(InputError, match="no such file"):
        read("llama", tmp_path, 6)


def damaged(folder: Path, change: Any) -> None:
    tensors = load_file(folder / SINGLE)
    change(tensors)
    save_file(tensors, folder / SINGLE)


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (lambda t: t.pop("model.layers.1.mlp.up_proj.weight"), "model.layers.1.mlp.up_proj.weight"),
        (lambda t: t.update({"model.layers.6.extra": torch.ones(1)}), r"not model\.layers\.6\.extra"),
        (
            lambda t: t.update({"model.layers.1.mlp.up_proj.weight": torch.ones(47, 32)}),
            r"tensor model\.layers\.1\.mlp\.up_proj\.weight: \[47, 32\]: config\.json makes it \[48, 32\]",
        ),
    ],
    ids=["missing", "surplus", "of another shape"],
)
def test_weights_that_do_not_fit_are_named(change: Any, says: str, tmp_path: Path) -> None:
    saved("llama", tmp_path)
    damaged(tmp_path, change)
    with pytest.raises(InputError, match=says):
        read("llama", tmp_path, 2)


def test_a_folder_without_weights_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"model\.init: .*has neither"):
        read("llama", tmp_path, 0)


@pytest.mark.parametrize("family", ["qwen2", "gemma3_text", "gpt_neox"])
def test_export_gives_the_folder_back_to_the_bit(family: str, tmp_path: Path) -> None:
    saved(family, tmp_path / "from", shard="60KB")
    (tmp_path / "from" / "generation_config.json").write_text(json.dumps(GENERATION))
    (tmp_path / "from" / "tokenizer_config.json").write_text(
        '{"tokenizer_class": "PreTrainedTokenizerFast", "x": 1}'
    )
    model = {**model_of(family), "init": str(tmp_path / "from")}
    tokenizer = byte_tokenizer().encode()
    checkpoint_of(tmp_path / "saves", model, "fp32", tokenizer=tokenizer, drawn=False)
    done = export(find(str(tmp_path / "saves")), tmp_path / "to")
    index = json.loads((tmp_path / "from" / INDEX).read_text())["weight_map"]
    before = {name: load_file(tmp_path / "from" / file)[name] for name, file in index.items()}
    after = load_file(tmp_path / "to" / SINGLE)
    assert after.keys() == before.keys()
    assert all(torch.equal(after[name], before[name]) for name in before)
    assert done.parameters == sum(tensor.numel() for tensor in before.values())
    assert json.loads((tmp_path / "to" / "generation_config.json").read_text()) == GENERATION
    assert json.loads((tmp_path / "to" / "tokenizer_config.json").read_text())["x"] == 1
    assert (tmp_path / "to" / "tokenizer.json").read_bytes() == tokenizer
    config = json.loads((tmp_path / "to" / "config.json").read_text())
    assert model["config"].items() <= config.items()
    assert config["architectures"] == [done.architecture]


@pytest.mark.long
def test_ranks_train_a_tied_model_over_the_wan_and_another_layout_goes_on(tmp_path: Path) -> None:
    """Losses, norms, the checkpoint and the export are those of transformers' model and torch's AdamW."""
    from transformers import AutoModelForCausalLM

    model = saved("qwen2", tmp_path / "from").double()
    saves = {"every": 2, "dir": str(tmp_path / "saves")}
    common: dict[str, Any] = {
        "model": {**model_of("qwen2"), "init": str(tmp_path / "from")},
        "dtype": "fp64",
        "clip": 0.5,
        "checkpoint": saves,
        "policy": "zb-h1",
        "recompute": False,
    }
    first = job(**common, steps=2, stages=2, dc_of_stage=[0, 1], pipelines=2, microbatches=2)
    second = job(**common, steps=4, stages=1, dc_of_stage=[0], pipelines=1, microbatches=4, resume=True)
    losses, norms = reference(second, model)
    results = [Run(of, str(tmp_path / "logs")).result() for of in (first, second)]
    # Rotary positions and norms are computed in fp32 by transformers.
    assert [*results[0]["losses"], *results[1]["losses"]] == pytest.approx(losses, rel=1e-6)
    assert [*results[0]["grad_norms"], *results[1]["grad_norms"]] == pytest.approx(norms, rel=1e-6)
    export(find(saves["dir"]), tmp_path / "to")  # type: ignore[arg-type]
    loaded = AutoModelForCausalLM.from_pretrained(tmp_path / "to", dtype=torch.float64).eval()
    tokens = torch.arange(32).view(2, 16)
    assert torch.allclose(loaded(tokens).logits, model(tokens).logits, rtol=0, atol=1e-6)
    assert loaded.lm_head.weight is loaded.model.embed_tokens.weight


def job(**changes: Any) -> TrainJob:
    return parse(TrainJob, document(**changes))


def reference(of: TrainJob, model: Any) -> tuple[list[float], list[float]]:
    """Losses and gradient norms of plain training."""
    optimizer = torch.optim.AdamW(model.parameters(), lr=of.optimizer.lr)
    corpus = corpus_of(of)
    losses, norms = [], []
    for step in range(of.optimizer.steps):
        for group in optimizer.param_groups:
            group["lr"] = of.optimizer.lr_schedule.rate(of.optimizer.lr, step, of.optimizer.steps)
        tokens, targets = corpus.batch(step, of.cell.global_batch, np.arange(of.cell.global_batch))
        optimizer.zero_grad()
        logits = model(torch.from_numpy(tokens), use_cache=False).logits
        loss = nn.functional.cross_entropy(logits.flatten(0, 1), torch.from_numpy(targets).flatten())
        loss.backward()
        norms.append(float(nn.utils.clip_grad_norm_(model.parameters(), of.optimizer.clip or 1e30)))
        optimizer.step()
        losses.append(float(loss.detach()))
    return losses, norms
