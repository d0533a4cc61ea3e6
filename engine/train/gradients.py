"""The gradients of a stage in one flat buffer, and their sum over the stage's replicas.

They lie in the order in which a backward pass finishes them, cut into buckets. During the last ops of an
iteration every bucket is summed over the replicas as soon as nothing more is added to it, while the backward
pass goes on. Behind the gradients ride a few numbers that the same sum brings together: the loss, and for
each replica the moment at which it was ready, so that waiting for it is not taken for communication.
"""

import math
import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from engine.job.all_reduce import BUCKET_BYTES
from engine.nn.model import Tied
from engine.nn.one_rank import ONE_RANK, OneRank
from engine.train.exchange import finish

_WRAP_S = 4096  # whole seconds are sent modulo this, exact in fp32


class Gradients:
    """Flat gradients of a stage's `chunks`; `replica` is this rank's place among its `replicas`.

    eager : a bucket may be summed in the middle of an op. Not on the emulated device, whose ops are computed
        at their start and last longer.
    tp : how the stage is shared with other ranks, each of which sums its part with its own replicas.
    tied : what is here of a matrix that both ends of the model share.
    ends : sums that matrix with the other end of the model, where that is elsewhere.
    when_added : has somebody told of each gradient that is added to a parameter (`Stage.when_added`).
    """

    def __init__(
        self,
        chunks: Sequence[nn.Module],
        *,
        group: Any | None,
        replica: int,
        replicas: int,
        eager: bool = True,
        tp: OneRank = ONE_RANK,
        tied: Sequence[Tied] = (),
        ends: Any | None = None,
        when_added: Callable[[nn.Parameter, Callable[[], None]], None] | None = None,
    ) -> None:
        # All replicas sum the buckets in this order: that in which most schedules finish them.
        first_to_last = [(i, parameter) for i, chunk in enumerate(chunks) for parameter in chunk.parameters()]
        self._chunk_of = [chunk for chunk, _ in reversed(first_to_last)]
        self.parameters = [parameter for _, parameter in reversed(first_to_last)]
        self._group, self._replica, self._replicas, self._eager = group, replica, replicas, eager
        self._tp, self._tied, self._ends_group = tp, tied, ends
        parts = [tp.local(parameter) for parameter in self.parameters]
        self._ends = torch.tensor([part.numel() for part in parts]).cumsum(0).tolist()
        dtype = self.parameters[0].dtype
        device = self.parameters[0].device
        self._flat = torch.zeros(self._ends[-1] + 1 + 2 * replicas, dtype=dtype, device=device)
        self._own = self._flat[: self._ends[-1]]
        self._riders = self._flat[self._ends[-1] :]
        self._buckets = self._flat.split(BUCKET_BYTES // self._flat.element_size())
        self._final: set[int] = set()  # chunks whose last op of the iteration has begun
        self._ready: list[bool] = []
        self._prefix = 0  # of the parameters, how many are ready, counted from the first
        self._under_way: list[Any] = []
        for i, parameter in enumerate(self.parameters):
            # Autograd adds into an existing .grad in place, so all gradients gather in the flat buffer.
            part = parts[i]
            local = self._own[self._ends[i] - part.numel() : self._ends[i]].view_as(part)
            parameter.grad = tp.gradient(parameter, local)
            if group is not None:
                (when_added or _when_added)(parameter, partial(self._added, i))
        self.clear()

    def clear(self) -> None:
        """Set all gradients to zero: an iteration begins."""
        self._flat.zero_()
        self._final.clear()
        self._ready = [False] * len(self.parameters)
        self._prefix = 0
        self._under_way.clear()

    def finishing(self, chunk: int) -> None:
        """The last op that adds to the gradients of `chunk` begins."""
        self._final.add(chunk)

    def finished(self, chunk: int) -> None:
        """The last op that adds to the gradients of `chunk` has ended."""
        if self._group is not None:
            for i, of in enumerate(self._chunk_of):
                self._ready[i] |= of == chunk
            self._launch()

    def all_reduce(self, loss: float, unix: Callable[[float], float]) -> tuple[float, float, float]:
        """Sum what is not summed yet of gradients and loss over the replicas, and wait for all of it.

        Then the two ends of the model sum the gradients of a matrix that they share.

        Returns
        -------
        loss : the summed loss.
        start, end : of time.monotonic(); the start is when the last replica was ready.
        """
        loss, start, end = self._over_replicas(loss, unix)
        if not self._tied:
            return loss, start, end
        self._sum_ends([tied.parameter.grad.view(-1) for tied in self._tied])  # type: ignore[union-attr]
        return loss, start, time.monotonic()

    def _sum_ends(self, gradients: list[Tensor]) -> None:
        if len(gradients) == 1:
            assert self._ends_group is not None
            finish(self._ends_group.allreduce(gradients), "the other end of the model")
            return
        first, last = gradients
        last.copy_(first.add_(last))

    def _over_replicas(self, loss: float, unix: Callable[[float], float]) -> tuple[float, float, float]:
        ready = time.monotonic()
        if self._group is None:
            return loss, ready, ready
        self._riders[0] = loss
        seconds = unix(ready)
        self._riders[1 + 2 * self._replica] = math.floor(seconds) % _WRAP_S
        self._riders[2 + 2 * self._replica] = seconds % 1.0
        for bucket in self._buckets[len(self._under_way) :]:
            self._sum(bucket)
        for work in self._under_way:
            finish(work, "a replica of this stage")
        loss = float(self._riders[0])  # a GPU may have to come to it: NCCL waits on its stream, not here
        end = time.monotonic()
        latest = max(self._after(seconds, replica) for replica in range(self._replicas))
        return loss, min(end, ready + max(0.0, latest)), end

    def square_sum(self) -> float:
        """Sum of the squares of all gradients of the stage; a matrix of both ends counts at the first one."""
        copies = [tied.parameter for tied in self._tied if tied.is_copy]
        if not copies:
            return self._tp.square_sum(self._own, self.parameters)
        at = next(i for i, parameter in enumerate(self.parameters) if parameter is copies[0])
        end, numbers = self._ends[at], self.parameters[at].numel()
        before = self._tp.square_sum(self._own[: end - numbers], self.parameters[:at])
        return before + self._tp.square_sum(self._own[end:], self.parameters[at + 1 :])

    def scale(self, factor: float) -> None:
        """Multiply all gradients."""
        self._own.mul_(factor)

    def _added(self, index: int) -> None:
        if self._eager and self._chunk_of[index] in self._final:
            self._ready[index] = True
            self._launch()

    def _launch(self) -> None:
        """Sum the buckets that are ready; the last one waits for the numbers that ride in it."""
        while self._prefix < len(self._ready) and self._ready[self._prefix]:
            self._prefix += 1
        summable = self._ends[self._prefix - 1] if self._prefix else 0
        most = self._buckets[0].numel()
        while len(self._under_way) + 1 < len(self._buckets) and (len(self._under_way) + 1) * most <= summable:
            self._sum(self._buckets[len(self._under_way)])

    def _sum(self, bucket: Tensor) -> None:
        assert self._group is not None
        self._under_way.append(self._group.allreduce([bucket]))

    def _after(self, mine: float, replica: int) -> float:
        """Seconds by which a replica was ready after this one."""
        whole, part = self._riders[1 + 2 * replica : 3 + 2 * replica].tolist()
        ahead = whole + part - (math.floor(mine) % _WRAP_S + mine % 1.0)
        return (ahead + _WRAP_S / 2) % _WRAP_S - _WRAP_S / 2


def _when_added(parameter: nn.Parameter, tell: Callable[[], None]) -> None:
    parameter.register_post_accumulate_grad_hook(lambda _: tell())
