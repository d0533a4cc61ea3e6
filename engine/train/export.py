"""A checkpoint as a model that Hugging Face's transformers loads: safetensors, config.json and a tokenizer.

A model of transformers goes back under its own names. Our GPT is GPT-2's block with exact GELU and a head of
its own weights (GPT2LMHeadModel with `activation_function: gelu`, `tie_word_embeddings: false`); our Llama is
LlamaForCausalLM. All map name by name, so logits are equal. Reads and writes layer by layer.
"""

import json
import os
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from numpy.typing import NDArray
from safetensors import numpy as safetensors

from engine.errors import InputError
from engine.job.checkpoint.manifest import Checkpoint, Manifest
from engine.job.model_document import ConfigModel, ModuleModel, TrainModel
from engine.nn.hugging_face import decoder_of
from engine.nn.names import GPT2_BLOCK, GPT2_ENDS, LLAMA_BLOCK, LLAMA_ENDS
from engine.train.text import byte_tokenizer

SHARD_BYTES = 2_000_000_000  # most of it is in memory at once
MOMENTS_AND_WEIGHTS = 3  # tensors of one size for every parameter of a checkpoint

# Of a folder with first weights: what goes with a model, and what goes with its tokenizer.
OF_GENERATION = ("generation_config.json", "chat_template.jinja")
OF_TOKENIZER = ("tokenizer_config.json", "special_tokens_map.json", "added_tokens.json")

Tensors = dict[str, NDArray[Any]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Export:
    """The files written; `files` by name in `out`, `parameters` as the model counts them."""

    out: str
    architecture: str
    step: int
    parameters: int
    files: tuple[str, ...]

    def as_dict(self) -> dict[str, Any]:
        """The export as JSON values."""
        return {
            "out": self.out,
            "architecture": self.architecture,
            "step": self.step,
            "parameters": self.parameters,
            "files": list(self.files),
        }


def export(checkpoint: Checkpoint, out: Path) -> Export:
    """Write the model of a checkpoint into the folder `out`, which must not exist or be empty.

    Raises
    ------
    InputError
        The folder holds files or cannot be written, or the checkpoint is corrupt.
    """
    if isinstance(shape := checkpoint.manifest.shape, ModuleModel):
        allowed = "a model that transformers knows: read the checkpoint's layers, which are safetensors files"
        raise InputError("CHECKPOINT", f"model.module {shape.module}", allowed)
    if out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise InputError("--out", str(out), "must be a new or empty folder")
    partial = out.parent / f".{out.name}-{os.getpid()}"
    try:
        partial.mkdir(parents=True)
        try:
            parameters = _write_weights(checkpoint, partial)
            _write_config(checkpoint.manifest, partial)
            _write_tokenizer(checkpoint, partial)
            _copy_from_init(checkpoint.manifest, partial)
            partial.replace(out)
        except BaseException:
            shutil.rmtree(partial, ignore_errors=True)
            raise
    except OSError as error:
        raise InputError("--out", str(out), f"cannot be written ({error.strerror})") from None
    return Export(
        out=str(out),
        architecture=_architecture(checkpoint.manifest.shape),
        step=checkpoint.manifest.step,
        parameters=parameters,
        files=tuple(sorted(path.name for path in out.iterdir())),
    )


def _write_weights(checkpoint: Checkpoint, folder: Path) -> int:
    """Write all layers in as few files as their size allows; returns how many parameters there are."""
    shards = list(_shards(checkpoint.manifest))
    place_of: dict[str, str] = {}
    parameters = total = 0
    for index, numbers in enumerate(shards, start=1):
        whole = len(shards) == 1
        file = "model.safetensors" if whole else f"model-{index:05d}-of-{len(shards):05d}.safetensors"
        tensors: Tensors = {}
        for number in numbers:
            tensors.update(theirs(checkpoint.manifest.shape, number, _weights(checkpoint, number)))
        safetensors.save_file(tensors, folder / file, metadata={"format": "pt"})
        place_of.update(dict.fromkeys(tensors, file))
        parameters += sum(tensor.size for tensor in tensors.values())
        total += sum(tensor.nbytes for tensor in tensors.values())
    if len(shards) > 1:
        index_of = {"metadata": {"total_size": total}, "weight_map": place_of}
        (folder / "model.safetensors.index.json").write_text(json.dumps(index_of, indent=1))
    return parameters


def _shards(manifest: Manifest) -> Iterator[list[int]]:
    numbers: list[int] = []
    size = 0.0
    for layer in manifest.layers:
        weights = layer.bytes / MOMENTS_AND_WEIGHTS
        if numbers and size + weights > SHARD_BYTES:
            yield numbers
            numbers, size = [], 0.0
        numbers.append(layer.number)
        size += weights
    yield numbers


def _weights(checkpoint: Checkpoint, number: int) -> Tensors:
    tensors = safetensors.load(checkpoint.layer(number))
    return {
        name.removeprefix("weights."): tensor
        for name, tensor in tensors.items()
        if name.startswith("weights.")
    }


def theirs(shape: TrainModel | ConfigModel, number: int, weights: Tensors) -> Tensors:
    """One layer's weights under the names, and in the orientation, that transformers knows."""
    if isinstance(shape, ConfigModel):
        decoder = decoder_of(shape)
        layer = decoder.on_meta(number)
        return {decoder.saved_name(layer, name): tensor for name, tensor in weights.items()}
    llama = shape.family == "llama"
    is_block = 0 < number <= shape.layers
    tensors = {}
    for name, tensor in weights.items():
        module, _, kind = name.rpartition(".")
        if is_block:
            inner = (LLAMA_BLOCK if llama else GPT2_BLOCK)[module]
            blocks = "model.layers" if llama else "transformer.h"
            turned = not llama and tensor.ndim == 2
            tensors[f"{blocks}.{number - 1}.{inner}.{kind}"] = tensor.T.copy() if turned else tensor
        elif module == "project":
            tensors["lm_head.weight"] = tensor
        else:
            tensors[f"{(LLAMA_ENDS if llama else GPT2_ENDS)[module]}.{kind}"] = tensor
    return tensors


def _write_config(manifest: Manifest, folder: Path) -> None:
    shape = manifest.shape
    dtype = "float64" if manifest.dtype == "fp64" else "float32"
    if isinstance(shape, ConfigModel):
        own = {**shape.config, "architectures": [_architecture(shape)], "dtype": dtype}
        own.pop("torch_dtype", None)  # the older name of dtype
        (folder / "config.json").write_text(json.dumps(own, indent=2))
        return
    embedding = manifest.layers[0].shapes["weights.token.weight"]
    block = manifest.layers[1].shapes
    config = {
        "architectures": [_architecture(shape)],
        "dtype": dtype,
        "vocab_size": embedding[0],
        "tie_word_embeddings": False,
        "bos_token_id": None,
        "eos_token_id": None,
        **(llama_config(shape, block) if shape.family == "llama" else _gpt2(shape, block)),
    }
    (folder / "config.json").write_text(json.dumps(config, indent=2))


def _gpt2(shape: TrainModel, block: dict[str, list[int]]) -> dict[str, Any]:
    return {
        "model_type": "gpt2",
        "n_positions": shape.seq,
        "n_embd": shape.hidden,
        "n_layer": shape.layers,
        "n_head": shape.heads,
        "n_inner": block["weights.widen.weight"][0],
        "activation_function": "gelu",
        "layer_norm_epsilon": 1e-5,
        "embd_pdrop": 0.0,
        "attn_pdrop": 0.0,
        "resid_pdrop": 0.0,
    }


def llama_config(shape: TrainModel, block: dict[str, list[int]]) -> dict[str, Any]:
    """What config.json says of a Llama's shape; `block` has the shapes of its first block's weights."""
    head_size = shape.hidden // shape.heads
    return {
        "model_type": "llama",
        "max_position_embeddings": shape.seq,
        "hidden_size": shape.hidden,
        "num_hidden_layers": shape.layers,
        "num_attention_heads": shape.heads,
        "head_dim": head_size,
        "num_key_value_heads": block["weights.key.weight"][0] // head_size,
        "intermediate_size": block["weights.widen.weight"][0],
        "hidden_act": "silu",
        "rms_norm_eps": 1e-5,
        "rope_parameters": {"rope_type": "default", "rope_theta": 10_000.0},
        "attention_bias": False,
        "mlp_bias": False,
    }


def _architecture(shape: TrainModel | ConfigModel) -> str:
    if isinstance(shape, ConfigModel):
        return type(decoder_of(shape).model).__name__
    return "LlamaForCausalLM" if shape.family == "llama" else "GPT2LMHeadModel"


def _write_tokenizer(checkpoint: Checkpoint, folder: Path) -> None:
    own = checkpoint.manifest.tokenizer
    (folder / "tokenizer.json").write_bytes(checkpoint.read(own) if own else byte_tokenizer().encode())
    named = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "model_max_length": checkpoint.manifest.shape.seq,
        "clean_up_tokenization_spaces": False,
    }
    (folder / "tokenizer_config.json").write_text(json.dumps(named, indent=2))


def _copy_from_init(manifest: Manifest, folder: Path) -> None:
    """Copy what the folder of the first weights says of generation, and of the tokenizer where it is its own.

    Nothing where the model began without such a folder, or it is gone.
    """
    shape = manifest.shape
    if not isinstance(shape, ConfigModel) or shape.init is None:
        return
    for name in (*OF_GENERATION, *(OF_TOKENIZER if manifest.tokenizer else ())):
        if (Path(shape.init) / name).is_file():
            shutil.copyfile(Path(shape.init) / name, folder / name)
