"""A pipelined run computes what one process computes: losses, gradient norms, weights, for every policy."""

from pathlib import Path

import numpy as np
import pytest
import torch

from engine.job.job import TrainJob
from engine.nn.model import DTYPES, PARAMETER_DTYPES, build_layer
from engine.train.corpus import corpus_of, open_corpus, samples_of
from tests.runtime.jobs import Run, job


def reference(of: TrainJob) -> tuple[list[float], list[float], torch.nn.Sequential]:
    """Plain training of the whole model: no stages, schedule or messages."""
    torch.set_num_threads(1)
    model = torch.nn.Sequential(
        *[build_layer(of.model, n, of.optimizer.seed) for n in range(of.model.layers + 2)]
    ).to(PARAMETER_DTYPES[of.device.dtype])
    optimizer = torch.optim.AdamW(groups_of(of, model), lr=of.optimizer.lr, **adamw_of(of))
    rate = torch.optim.lr_scheduler.LambdaLR(
        optimizer, lambda step: of.optimizer.lr_schedule.rate(1.0, step, of.optimizer.steps)
    )
    corpus = corpus_of(of)
    losses, norms = [], []
    for step in range(of.optimizer.steps):
        tokens, targets = corpus.batch(step, of.cell.global_batch, np.arange(of.cell.global_batch))
        optimizer.zero_grad()
        x = torch.from_numpy(tokens)
        for layer in model:  # each casts its weights to the type of its input
            x = layer(x).to(DTYPES[of.device.dtype])
        logits = x if of.device.dtype == "fp64" else x.float()
        loss = torch.nn.functional.cross_entropy(
            logits.reshape(-1, of.model.vocabulary), torch.from_numpy(targets).reshape(-1)
        )
        loss.backward()
        norms.append(float(torch.nn.utils.clip_grad_norm_(model.parameters(), of.optimizer.clip or 1e30)))
        optimizer.step()
        rate.step()
        losses.append(float(loss.detach()))
    return losses, norms, model


def groups_of(of: TrainJob, model: torch.nn.Module) -> list[dict]:
    """What has weight decay and what has none, by name."""
    matrices_alone = of.optimizer.weight_decay_on == "matrices"
    groups: dict[bool, list] = {True: [], False: []}
    for name, parameter in model.named_parameters():
        groups[not matrices_alone or not ("norm" in name or name.endswith("bias"))].append(parameter)
    rates = {True: of.optimizer.weight_decay, False: 0.0}
    return [{"params": group, "weight_decay": rates[decays]} for decays, group in groups.items() if group]


def adamw_of(of: TrainJob) -> dict:
    return {"betas": of.optimizer.betas, "eps": of.optimizer.eps}


MATRICES = {"weight_decay_on": "matrices", "weight_decay": 0.5, "betas": [0.8, 0.9], "eps": 1e-4}
CASES = [
    {"policy": "varuna", "clip": 0.5, **MATRICES},
    {"policy": "atlas"},
    {"policy": "zb-h1", "dtype": "bf16", "pipelines": 1},
]
OFF = {"fp64": 1e-9, "fp32": 1e-5, "bf16": 2e-3}  # bf16: whole batches against microbatches, in rounding
SIX = {"layers": 6, "hidden": 32, "heads": 4, "seq": 16}
THE_REST = [
    {"policy": "atlas", "dtype": "fp64", "clip": 1.0},
    {"policy": "crosspipe-wave", "sharing": "temporal", "dtype": "fp64", "clip": 1.0, "model": SIX},
    {"policy": "crosspipe-loop", "sharing": "temporal", "model": SIX},
    {"policy": "zb-v", "recompute": False, "model": {**SIX, "family": "llama", "kv_heads": 2}},
    {"policy": "1f1b", "devices": {"pipelines": [[0, 1, 4], [5, 2, 3]]}, "dc_of_stage": None},
    {"policy": "interleaved", "sharing": "spatial", "model": SIX},
    {"policy": "zb-h1", "sharing": "temporal", "accumulation": 2},
    {"policy": "crosspipe-udsub", "lr_schedule": {"warmup_steps": 2, "decay": "cosine"}, "model": SIX},
    {"policy": "auto", "time_limit_s": 2, "model": SIX},
    *(
        {"policy": policy, "sharing": sharing, "recompute": recompute}
        for policy in ("gpipe", "1f1b", "varuna", "atlas")
        for sharing in ("spatial", "temporal")
        for recompute in (True, False)
    ),
]


def check(changes: dict, folder: Path) -> None:
    of = job(**changes)
    losses, norms, _ = reference(of)
    result = Run(of, str(folder)).result()
    off = OFF[of.device.dtype]
    assert result["losses"] == pytest.approx(losses, rel=off, abs=off)
    assert result["grad_norms"] == pytest.approx(norms, rel=off, abs=off)


@pytest.mark.parametrize("changes", CASES, ids=lambda c: c["policy"])
def test_pipelined_losses_and_norms_equal_a_plain_loop(changes: dict, tmp_path: Path) -> None:
    check(changes, tmp_path)


@pytest.mark.long
@pytest.mark.parametrize("changes", THE_REST, ids=lambda c: "-".join(map(str, c.values())))
def test_every_policy_sharing_and_recompute(changes: dict, tmp_path: Path) -> None:
    check(changes, tmp_path)


@pytest.mark.long
def test_any_split_has_the_same_weights(tmp_path: Path) -> None:
    # One replica each, so that gradients are added in the same order: then not a bit may differ.
    same = {"pipelines": 1, "steps": 2, "policy": "gpipe", "recompute": False}
    split = Run(job(**same), str(tmp_path / "a")).result()
    whole = Run(job(**same, stages=1, dc_of_stage=[0]), str(tmp_path / "b")).result()
    assert split["losses"] == pytest.approx(whole["losses"], rel=1e-6)
    assert split["params_sha256"] == whole["params_sha256"]


def test_samples_depend_on_seed_and_global_batch_only() -> None:
    split = [samples_of(p, m, 3, 2) for p in range(2) for m in range(3)]
    assert np.concatenate(split).tolist() == list(range(12))
    corpus = open_corpus(None, seq=8, seed=1)
    whole, _ = corpus.batch(4, 12, np.arange(12))
    part, targets = corpus.batch(4, 12, split[4])
    assert (part == whole[8:10]).all()
    assert (targets[:, :-1] == part[:, 1:]).all()
    other, _ = open_corpus(None, seq=8, seed=2).batch(4, 12, np.arange(12))
    assert (other != whole).any()
