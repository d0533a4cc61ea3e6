"""The validation loss of a saved model, computed in one piece."""

from pathlib import Path

import numpy as np
import torch
from safetensors import torch as safetensors

from engine.job.checkpoint.manifest import find
from engine.job.job import TrainJob
from engine.nn.model import build_layer
from engine.train.corpus import corpus_of


def held_out_loss(of: TrainJob, folder: Path) -> float:
    """The loss of the latest checkpoint in `folder` on what the job holds out: no stages, no messages."""
    checkpoint = find(str(folder))
    model = torch.nn.Sequential(
        *[build_layer(of.model, n, of.optimizer.seed) for n in range(of.model.layers + 2)]
    )
    for number, layer in enumerate(model):
        saved = safetensors.load(checkpoint.layer(number))
        weights = {k.removeprefix("weights."): v for k, v in saved.items() if k.startswith("weights.")}
        layer.load_state_dict(weights)
    held_out = corpus_of(of).held_out
    assert of.data.validation is not None
    assert held_out is not None
    count = of.data.validation.sequences
    tokens, targets = held_out.batch(0, count, np.arange(count))
    with torch.no_grad():
        logits = model(torch.from_numpy(tokens)).flatten(0, 1)
        return float(torch.nn.functional.cross_entropy(logits, torch.from_numpy(targets).flatten()))
