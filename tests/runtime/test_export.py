"""An exported checkpoint is the same model in transformers: equal logits, and text in and out."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from click.testing import CliRunner
from torch import nn

from engine.commands.export import command
from engine.errors import InputError
from engine.job.checkpoint.manifest import DataPosition, LayerFile, Manifest, RandomState, SavedFile, find
from engine.job.checkpoint.place import MANIFEST, open_place
from engine.nn.model import PARAMETER_DTYPES, build_layer
from engine.train import export as exporting
from engine.train.checkpoint.layers import copy_of, to_bytes
from tests.runtime.jobs import job

SHAPES = [
    {"layers": 3, "hidden": 32, "heads": 4, "seq": 24},
    {"layers": 2, "hidden": 32, "heads": 2, "seq": 16, "ffn": 48},
    {"family": "llama", "layers": 2, "hidden": 32, "heads": 4, "kv_heads": 2, "seq": 24, "ffn": 80},
    {"family": "llama", "layers": 1, "hidden": 24, "heads": 2, "seq": 8},
]


def checkpoint_of(
    folder: Path,
    shape: dict[str, Any],
    dtype: str,
    *,
    tokenizer: bytes | None = None,
    drawn: bool = True,
) -> nn.Sequential:
    """Write a checkpoint of a model and return the model.

    drawn : its weights are random (biases and norms too); else they are those that it begins with.
    """
    of = job(model=shape, dtype=dtype, stages=1, dc_of_stage=[0], policy="gpipe", recompute=False)
    generator = torch.Generator().manual_seed(5)
    model = nn.Sequential(*[build_layer(of.model, n, of.optimizer.seed) for n in range(of.model.layers + 2)])
    model.to(PARAMETER_DTYPES[dtype])
    optimizer = torch.optim.AdamW(model.parameters())
    place, files = open_place(str(folder)), []
    for parameter in model.parameters():
        if drawn:
            parameter.data.normal_(0.0, 0.3, generator=generator)
        parameter.grad = torch.zeros_like(parameter)
    optimizer.param_groups[0]["lr"] = 0.0
    optimizer.step()
    for number, layer in enumerate(model):
        tensors = copy_of(layer, optimizer)
        data, file = to_bytes(tensors), f"layer-{number:05d}.safetensors"
        place.write("step-000000001-a", file, data)
        shapes = {name: list(tensor.shape) for name, tensor in tensors.items()}
        files.append(LayerFile.of(file, data, number=number, shapes=shapes))
    if tokenizer:
        place.write("step-000000001-a", "tokenizer.json", tokenizer)
    manifest = Manifest(
        version="0",
        saved_at=1.0,
        step=1,
        model=of.model.model_dump(mode="json", exclude_none=True),
        dtype=dtype,
        seed=7,
        global_batch=1,
        data=DataPosition(fingerprint="aa", sequences=1),
        rng=RandomState(key=[7, 1]),
        layers=files,
        tokenizer=SavedFile.of("tokenizer.json", tokenizer) if tokenizer else None,
    )
    place.write("step-000000001-a", MANIFEST, manifest.to_bytes())
    place.publish("step-000000001-a")
    return model.eval()


CASES = [(shape, dtype) for shape in SHAPES for dtype in ("fp32", "fp64")]


@pytest.mark.parametrize(
    ("shape", "dtype"),
    [
        pytest.param(shape, dtype, marks=[] if case in (1, 4) else pytest.mark.long)
        for case, (shape, dtype) in enumerate(CASES)
    ],
)
def test_transformers_has_the_same_logits(shape: dict, dtype: str, tmp_path: Path) -> None:
    from transformers import AutoModelForCausalLM

    model = checkpoint_of(tmp_path / "c", shape, dtype)
    done = exporting.export(find(str(tmp_path / "c")), tmp_path / "out")
    theirs, info = AutoModelForCausalLM.from_pretrained(tmp_path / "out", output_loading_info=True)
    assert not info["missing_keys"]
    assert not info["unexpected_keys"]
    assert type(theirs).__name__ == done.architecture
    assert sum(p.numel() for p in model.parameters()) == done.parameters
    tokens = torch.randint(0, 256, (2, shape["seq"]), generator=torch.Generator().manual_seed(1))
    with torch.no_grad():
        ours, others = model(tokens), theirs.eval()(tokens).logits
    assert others.dtype == ours.dtype
    tolerance = {"fp32": 2e-5, "fp64": 1e-6 if shape.get("family") == "llama" else 1e-12}[dtype]
    torch.testing.assert_close(ours, others, rtol=tolerance, atol=tolerance)


def test_text_goes_in_and_comes_out_as_bytes(tmp_path: Path) -> None:
    from transformers import AutoTokenizer

    checkpoint_of(tmp_path / "c", SHAPES[0], "fp32")
    exporting.export(find(str(tmp_path / "c")), tmp_path / "out")
    tokenizer = AutoTokenizer.from_pretrained(tmp_path / "out")
    for text in ("def f(x):\n\treturn 1  # naïve\n", "Ünïcödé 漢字 🙂\x00\x7f", "a  b", " lead"):
        assert tokenizer(text)["input_ids"] == list(text.encode())
        assert tokenizer.decode(list(text.encode())) == text


def test_the_tokenizer_of_the_run_goes_with_it(tmp_path: Path) -> None:
    checkpoint_of(tmp_path / "c", SHAPES[3], "fp32", tokenizer=b'{"a": "tokenizer"}')
    exporting.export(find(str(tmp_path / "c")), tmp_path / "out")
    assert (tmp_path / "out" / "tokenizer.json").read_bytes() == b'{"a": "tokenizer"}'
    (Path(find(str(tmp_path / "c")).where) / "tokenizer.json").write_bytes(b'{"b": "tokenizer"}')
    with pytest.raises(InputError, match=r"tokenizer.json is corrupt"):
        exporting.export(find(str(tmp_path / "c")), tmp_path / "other")
    assert not (tmp_path / "other").exists()


@pytest.mark.long
def test_large_models_are_written_in_several_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from transformers import AutoModelForCausalLM

    model = checkpoint_of(tmp_path / "c", SHAPES[0], "fp32")
    monkeypatch.setattr(exporting, "SHARD_BYTES", 60_000)
    done = exporting.export(find(str(tmp_path / "c")), tmp_path / "out")
    assert "model.safetensors.index.json" in done.files
    assert sum(name.startswith("model-") for name in done.files) > 1
    theirs = AutoModelForCausalLM.from_pretrained(tmp_path / "out")
    assert torch.equal(theirs.lm_head.weight, model[-1].project.weight)
    assert torch.equal(theirs.transformer.wte.weight, model[0].token.weight)


def test_command(tmp_path: Path) -> None:
    def answer(*arguments: str) -> Any:
        return CliRunner().invoke(command, list(arguments), standalone_mode=False)

    checkpoint_of(tmp_path / "c", SHAPES[0], "fp32")
    done = answer(str(tmp_path / "c"), "--out", str(tmp_path / "out"), "--json")
    assert json.loads(done.stdout)["architecture"] == "GPT2LMHeadModel"
    again = answer(str(tmp_path / "c"), "--out", str(tmp_path / "out"))
    assert isinstance(again.exception, InputError)
    assert "empty folder" in str(again.exception)
    nothing = answer(str(tmp_path), "--out", str(tmp_path / "other"))
    assert "CHECKPOINT" in str(nothing.exception)
    assert not (tmp_path / "other").exists()
