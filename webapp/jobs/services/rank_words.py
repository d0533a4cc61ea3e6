"""A rank in words, and what its end says."""

from engine.job.launch import EXIT_PEER_LOST
from webapp.jobs.models import RankState, RankStatus, Status


def place(rank: RankState) -> str:
    """A rank as people know it: pipeline and stage, or worker, from 1; GPU and node."""
    return f"{rank.lane} (GPU {rank.gpu} of {rank.node.name})"


def is_cause(rank: RankState) -> bool:
    """Whether `rank` failed by itself, and not because it lost another rank, which will be heard of.

    A worker that swaps and has not ended failed because its machine cannot reach most of the others.
    """
    if rank.state != RankStatus.FAILED or rank.exit_code == EXIT_PEER_LOST:
        return False
    return rank.exit_code is not None or rank.run.status != Status.RUNNING or not rank.run.job.swaps


def rank_failure(rank: RankState) -> str:
    """Why a run failed whose `rank` died: that rank's own last line."""
    line = rank.detail or rank.last_line
    code = f" (exit {rank.exit_code})" if rank.exit_code is not None else ""
    return f"{place(rank)} failed{code}: {line}" if line else f"{place(rank)} failed{code} without a message."
