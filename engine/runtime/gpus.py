"""Jobs on CUDA devices: what is refused, and whether a machine has the GPUs that its ranks take. No torch."""

import subprocess
import sys
from typing import TYPE_CHECKING

from engine.errors import InputError

if TYPE_CHECKING:
    from engine.runtime.job import TrainJob
    from engine.runtime.launch import LaunchSpec

CUDA = "cuda"
PATIENCE_S = 120.0  # a machine that is busy imports torch for many seconds
_NOT_BUILT = {
    "prefill": "not available on device cuda: a seat gives the GPU to prompts before its ops are done",
    "recovery": "not available on device cuda: ranks keep the last states of CPU memory only",
}


def check(job: "TrainJob") -> None:
    """Raise InputError for what a job cannot do on CUDA devices, by the name of the field."""
    if job.device != CUDA:
        return
    for name, allowed in _NOT_BUILT.items():
        given = getattr(job, name)
        if given is not None:
            raise InputError(name, given.model_dump(exclude_none=True), allowed)


def check_machine(spec: "LaunchSpec") -> None:
    """Raise InputError where this machine's ranks take GPUs that torch does not see, or the same one."""
    if spec.job.device != CUDA:
        return
    taken: dict[int, int] = {}
    for rank in sorted(spec.local):
        gpu = next(a.gpu for a in spec.ranks if a.rank == rank)
        if gpu in taken:
            allowed = f"a GPU for each rank: ranks {taken[gpu]} and {rank} are both to take GPU {gpu}"
            raise InputError("device", CUDA, allowed)
        taken[gpu] = rank
    _check_seen(taken, seen())


def _check_seen(taken: dict[int, int], count: int) -> None:
    """Raise InputError where one of the GPUs `taken` (rank by index) is none of the `count` there are."""
    if not count:
        raise InputError("device", CUDA, "torch sees no CUDA device on this machine; allowed: cpu, emulated")
    if taken and max(taken) >= count:
        gpu = max(taken)
        has = f"rank {taken[gpu]} is to take GPU {gpu}, but torch sees {count} on this machine"
        raise InputError("device", CUDA, has)


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
        raise InputError("device", CUDA, f"torch cannot say what GPUs this machine has: {error}") from None
