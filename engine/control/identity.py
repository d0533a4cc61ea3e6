"""Who a process of a run is to the others."""

from engine.control.handshake import Identity
from engine.job.launch import LaunchSpec


def identity_of(spec: LaunchSpec, rank: int, listeners: str = "") -> Identity:
    """Identity of `rank` in a run.

    listeners : which ones it talks to, or is one of, where a run has several kinds: a proof for one kind says
        nothing to another.
    """
    run = f"{listeners}/{spec.run}" if listeners else spec.run
    return Identity(rank=rank, run=run, generation=spec.generation, secret=spec.secret.encode())
