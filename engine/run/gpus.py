"""Whether a machine has the GPUs and the memory that its ranks take, and their model's package. No torch.

Several ranks share a GPU where a job says so (`ranks_per_gpu`): for a machine with one card. NCCL refuses two
ranks on one card, so they sum over gloo.
"""

import subprocess
import sys
from importlib.util import find_spec

from engine.errors import InputError
from engine.job.devices import CUDA
from engine.job.launch import NOWHERE, LaunchSpec
from engine.job.memory import machine_bytes, state_bytes
from engine.job.model_document import ConfigModel, ModuleModel
from engine.job.module_access import require_open

PATIENCE_S = 120.0  # a machine that is busy imports torch for many seconds


def check_machine(spec: LaunchSpec) -> None:
    """Raise InputError where this machine's ranks take GPUs that torch does not see, or too many take one.

    Or where their model is one of transformers, which is not installed, or of a module that this machine does
    not import; or where this machine's memory, which they share without GPUs, is less than their weights,
    gradients and optimizer states.
    """
    model = spec.job.model
    if isinstance(model, ConfigModel) and find_spec("transformers") is None:
        allowed = (
            "a model of transformers, which is not installed on this machine: pip install meridian[decode]"
        )
        raise InputError("model.config", model.config["model_type"], allowed)
    if isinstance(model, ModuleModel):
        require_open(model.module)
    if spec.job.device.kind != CUDA:
        _check_memory(spec)
        return
    most = spec.job.device.ranks_per_gpu
    ranks_of: dict[int, list[int]] = {}
    for rank in sorted(spec.local):
        gpu = next(a.gpu for a in spec.gpus if a.rank == rank)
        ranks_of.setdefault(gpu, []).append(rank)
    for gpu, ranks in ranks_of.items():
        if len(ranks) > most:
            named = ", ".join(map(str, ranks))
            allowed = f"at least {len(ranks)}, as ranks {named} take GPU {gpu}; or a GPU for each rank"
            raise InputError("device.ranks_per_gpu", most, allowed)
    _check_seen({gpu: ranks[0] for gpu, ranks in ranks_of.items()}, seen())


def _check_memory(spec: LaunchSpec) -> None:
    """Raise InputError where what the local ranks hold at least is more than this machine's memory."""
    if spec.job.swap_strategy is not None:
        return  # it swaps because its model is larger than a GPU
    stages = state_bytes(spec.job)
    here = [one for one in spec.gpus if one.rank in spec.local]
    needed = sum(max(stages) if one.stage == NOWHERE else stages[one.stage] for one in here)
    size = machine_bytes()
    if needed > size:
        model = spec.job.model
        allowed = (
            f"fewer: the weights, gradients and optimizer states of {len(spec.local)} ranks are"
            f" {needed / 1e9:,.1f} GB, and this machine has {size / 1e9:,.1f} GB of memory"
        )
        raise InputError("model", f"{model.shape.parameters:,} parameters", allowed)


def _check_seen(taken: dict[int, int], count: int) -> None:
    """Raise InputError where one of the GPUs `taken` (rank by index) is none of the `count` there are."""
    if not count:
        raise InputError(
            "device.kind", CUDA, "torch sees no CUDA device on this machine; allowed: cpu, emulated"
        )
    if taken and max(taken) >= count:
        gpu = max(taken)
        has = f"rank {taken[gpu]} is assigned GPU {gpu}, but torch sees {count} on this machine"
        raise InputError("device.kind", CUDA, has)


def seen() -> int:
    """CUDA devices that torch sees on this machine.

    Another process asks: one that has asked itself can fork no rank that uses them. Raises InputError where
    torch cannot say.
    """
    ask = [sys.executable, "-c", "import torch; print(torch.cuda.device_count())"]
    try:
        done = subprocess.run(
            ask, capture_output=True, text=True, timeout=PATIENCE_S, check=True, stdin=subprocess.DEVNULL
        )
        return int(done.stdout)
    except (OSError, ValueError, subprocess.SubprocessError) as error:
        raise InputError(
            "device.kind", CUDA, f"torch cannot list the GPUs of this machine: {error}"
        ) from None
