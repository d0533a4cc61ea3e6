"""A tiny Llama over bytes to serve in demos: trained for some seconds on the default text, or left random."""

import json
import os
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from safetensors import numpy as safetensors
from torch import Tensor, nn

from engine.errors import InputError
from engine.job.model_document import TrainModel
from engine.nn.model import build_layer, loss_of
from engine.nn.saved_weights import SINGLE
from engine.train.corpus import open_corpus
from engine.train.export import llama_config, theirs
from engine.train.text import byte_tokenizer

SHAPE = TrainModel(family="llama", layers=2, hidden=64, heads=4, kv_heads=2, seq=128)
CONTEXT = 2048
STEPS = 400
BATCH = 16
LR = 3e-3
README = """A tiny Llama over bytes: {parameters:,} parameters, seed {seed}.
{how}
It only shows that prefill and decoding work; its text has no meaning.
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Tiny:
    """What was written: parameters, and the loss (nats per byte) that training ended with; None: random."""

    out: str
    parameters: int
    loss: float | None


def write_tiny(
    out: Path,
    *,
    steps: int = STEPS,
    seed: int = 0,
    report: Callable[[int, float], None] | None = None,
    shape: TrainModel = SHAPE,
) -> Tiny:
    """Write config.json, weights, tokenizer.json and README into the folder `out`, new or empty.

    It is there when all of it is: the files are written next to it and the folder is renamed.

    Parameters
    ----------
    steps : of training; 0 leaves the weights as drawn from `seed`.
    report : told of the steps done and the loss, now and then.
    shape : of a llama over bytes.

    Raises
    ------
    InputError
        The folder holds files, or cannot be written.
    """
    if out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise InputError("DIR", str(out), "must be a new or empty folder")
    layers = nn.ModuleList(build_layer(shape, number, seed) for number in range(shape.layers + 2))
    loss = _trained(layers, shape, steps, seed, report) if steps else None
    weights = dict(_weights(layers, shape))
    parameters = sum(tensor.size for tensor in weights.values())
    how = (
        "Its weights are random."
        if loss is None
        else (f"Trained for {steps} steps on the text of Python's standard library: {loss:.2f} nats a byte.")
    )
    try:
        out.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix=f".{out.name}.", dir=out.parent) as beside:
            whole = Path(beside) / "whole"
            whole.mkdir()
            safetensors.save_file(weights, whole / SINGLE, metadata={"format": "pt"})
            (whole / "config.json").write_text(json.dumps(_config(layers, shape), indent=2))
            (whole / "tokenizer.json").write_text(byte_tokenizer())
            (whole / "README").write_text(README.format(parameters=parameters, seed=seed, how=how))
            os.replace(whole, out)  # an empty folder gives way
    except OSError as error:
        raise InputError("DIR", str(out), f"cannot be written ({error.strerror})") from None
    return Tiny(out=str(out), parameters=parameters, loss=loss)


def _trained(
    layers: nn.ModuleList,
    shape: TrainModel,
    steps: int,
    seed: int,
    report: Callable[[int, float], None] | None,
) -> float:
    corpus = open_corpus(None, seq=shape.seq, seed=seed)
    optimizer = torch.optim.AdamW(layers.parameters(), lr=LR)
    samples, losses = np.arange(BATCH), []
    for step in range(steps):
        tokens, targets = corpus.batch(step, BATCH, samples)
        loss = loss_of(_through(layers, torch.from_numpy(tokens)), torch.from_numpy(targets))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
        if report is not None and (step + 1) % 100 == 0:
            report(step + 1, losses[-1])
    return float(np.mean(losses[-20:]))


def _through(layers: nn.ModuleList, x: Tensor) -> Tensor:
    for layer in layers:
        x = layer(x)
    return x


def _weights(layers: nn.ModuleList, shape: TrainModel) -> Iterator[tuple[str, np.ndarray]]:
    for number, layer in enumerate(layers):
        own = {name: tensor.detach().numpy() for name, tensor in layer.named_parameters()}
        yield from theirs(shape, number, own).items()


def _config(layers: nn.ModuleList, shape: TrainModel) -> dict[str, object]:
    block = {f"weights.{name}": list(tensor.shape) for name, tensor in layers[1].named_parameters()}
    return {
        "architectures": ["LlamaForCausalLM"],
        "dtype": "float32",
        "vocab_size": shape.vocabulary,
        "tie_word_embeddings": False,
        "bos_token_id": None,
        "eos_token_id": None,
        **llama_config(shape, block),
        "max_position_embeddings": CONTEXT,
    }
