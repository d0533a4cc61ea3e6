"""A rank of the baseline: 1F1B of torch.distributed.pipelining over gloo, as it comes.

gloo keeps one TCP connection for each pair of ranks. Ops last as long as they do on our side: the module
sleeps, and its backward pass counts recomputation in.
"""

import os
from datetime import timedelta

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.pipelining import PipelineStage, Schedule1F1B

from benchmarks.wan_testbed.block import LOGITS, Block
from benchmarks.wan_testbed.case import HIDDEN, MICROBATCHES, PIPELINES, STAGES, Case
from benchmarks.wan_testbed.tun import DEVICE
from engine.job.launch import RankAssignment

_STORE_PORT = 29500
_TIMEOUT = timedelta(seconds=600)


class TorchRank:
    """One rank; built inside its namespace."""

    def __init__(self, case: Case, ranks: tuple[RankAssignment, ...], me: RankAssignment) -> None:
        os.environ["GLOO_SOCKET_IFNAME"] = DEVICE
        store = dist.TCPStore(
            ranks[0].host, _STORE_PORT, is_master=me.rank == 0, wait_for_workers=False, timeout=_TIMEOUT
        )
        dist.init_process_group("gloo", store=store, rank=me.rank, world_size=len(ranks), timeout=_TIMEOUT)
        pipelines = [[a.rank for a in ranks if a.pipeline == p] for p in range(PIPELINES)]
        replicas = [[a.rank for a in ranks if a.stage == s] for s in range(STAGES)]
        groups = {tuple(members): dist.new_group(members) for members in (*pipelines, *replicas)}
        self._replicas = groups[tuple(replicas[me.stage])]
        times, last = case.times, me.stage == STAGES - 1
        shape = (1, case.seq, HIDDEN)
        self._first, self._last = me.stage == 0, last
        self._block = Block(
            LOGITS if last else shape,
            forward_s=times.forward / 1e3,  # type: ignore[operator]
            backward_s=(times.recompute + times.backward) / 1e3,  # type: ignore[operator]
        )
        self._tokens = torch.zeros((MICROBATCHES, case.seq), dtype=torch.long)
        self._targets = torch.zeros((MICROBATCHES, 1), dtype=torch.long)
        stage = PipelineStage(
            self._block, me.stage, STAGES, torch.device("cpu"), group=groups[tuple(pipelines[me.pipeline])]
        )
        self._schedule = Schedule1F1B(stage, MICROBATCHES, loss_fn=_loss)

    def iterate(self, iteration: int) -> None:
        """Run one iteration, with the sum of the gradients over the replicas of the stage."""
        tokens = (self._tokens,) if self._first else ()
        target = self._targets if self._last else None
        self._schedule.step(*tokens, target=target, return_outputs=False)
        assert self._block.weight.grad is not None
        dist.all_reduce(self._block.weight.grad, group=self._replicas)
        self._block.weight.grad = None

    def close(self) -> None:
        """Nothing: gloo's sockets go with the process."""


def _loss(output: Tensor, target: Tensor) -> Tensor:
    return torch.nn.functional.cross_entropy(output.float().flatten(0, 1), target.flatten())
