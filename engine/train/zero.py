"""ZeRO-1: the replicas of a stage in one data centre share the optimizer's state (Rajbhandari et al. 2020,
§5.1).

The weights of a stage lie in one flat buffer, in the order of its gradients. Each bucket of it is cut into as
many shards as there are replicas, and each replica owns one of them. The owner alone gets the sum of a
shard's gradients, keeps AdamW's moments of it and steps its weights, which it then sends to the others. A
reduce to each owner and a broadcast from each are a reduce-scatter and an all-gather, for shards of unequal
sizes and in place.

Where replicas are in several data centres, all of them sum all gradients, and those of one data centre share
the state among themselves. So it is with a matrix that both ends of the model share: the ends sum it whole.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed import BroadcastOptions, ReduceOptions

from engine.job.all_reduce import BUCKET_BYTES
from engine.nn.one_rank import OneRank
from engine.train.exchange import finish
from engine.train.optimizer import MOMENTS, AdamW, Optimizer

WHO = "a replica of this stage"


@dataclass(frozen=True, slots=True)
class Shard:
    """Numbers `start` to `stop` of a flat buffer, which a member of the group owns."""

    owner: int
    start: int
    stop: int

    def within(self, start: int, stop: int) -> "Shard":
        """The part of it that lies in another range; where nothing does, its `stop` is not past its start."""
        return Shard(self.owner, max(self.start, start), min(self.stop, stop))

    def __bool__(self) -> bool:
        return self.stop > self.start


def shards(numbers: int, members: int, bucket: int) -> list[Shard]:
    """A flat buffer of so many numbers, cut: each bucket into one shard for each member, equal within one."""
    cut = []
    for first in range(0, numbers, bucket):
        size = min(bucket, numbers - first)
        ends = [first + size * i // members for i in range(members + 1)]
        cut += [Shard(owner, ends[owner], ends[owner + 1]) for owner in range(members)]
    return cut


class Sharing:
    """How one rank shares the optimizer's state of a stage with the replicas near it.

    Parameters
    ----------
    group : reduces and broadcasts over those replicas (torch's ProcessGroup, or engine.train.staging).
    member, members : the number of this rank among them, and how many they are.
    parameters : of the stage, in the order of its gradients.
    """

    def __init__(self, group: Any, member: int, members: int, parameters: Sequence[nn.Parameter]) -> None:
        self.group, self.member = group, member
        self.parameters = list(parameters)
        self._ends = torch.tensor([0, *(p.numel() for p in self.parameters)]).cumsum(0).tolist()
        self.shards = shards(self._ends[-1], members, BUCKET_BYTES // self.parameters[0].element_size())

    def flatten(self) -> Tensor:
        """Move the weights into one flat buffer, which they are views of from then on.

        One after the other, so that no more than one is held twice.
        """
        first = self.parameters[0]
        flat = torch.empty(self._ends[-1], dtype=first.dtype, device=first.device)
        for i, parameter in enumerate(self.parameters):
            place = flat[self._ends[i] : self._ends[i + 1]].view(parameter.shape)
            place.copy_(parameter.detach())
            parameter.data = place
        return flat

    def of_parameter(self, index: int) -> list[Shard]:
        """The shards of a parameter, counted from its own first number."""
        start, stop = self._ends[index], self._ends[index + 1]
        parts = (shard.within(start, stop) for shard in self.shards)
        return [Shard(part.owner, part.start - start, part.stop - start) for part in parts if part]

    def start_of(self, index: int) -> int:
        """Where a parameter begins in the flat buffer."""
        start: int = self._ends[index]
        return start

    def of_range(self, start: int, stop: int) -> list[Shard]:
        """The shards within a part of the flat buffer."""
        return [part for shard in self.shards if (part := shard.within(start, stop))]

    def broadcast(self, flat: Tensor, parts: Sequence[Shard]) -> None:
        """Send each part of `flat` from its owner to all others, and wait for it."""
        works = [_broadcast(self.group, flat[part.start : part.stop], part.owner) for part in parts]
        for work in works:
            finish(work, WHO)


class ShardSums:
    """Sums over replicas of which each needs its own shards alone: in place of a group that sums everything.

    What lies behind the gradients in the flat buffer (`Gradients`) is summed for all.
    """

    def __init__(self, sharing: Sharing) -> None:
        self._sharing = sharing
        self._numbers = sum(p.numel() for p in sharing.parameters)

    def allreduce(self, tensors: list[Tensor]) -> "_Works":
        """Begin to sum a bucket of the flat gradients in place: own shards, and what is behind them all."""
        (bucket,) = tensors
        first = int(bucket.storage_offset())
        group = self._sharing.group
        works = [
            _reduce(group, bucket[part.start - first : part.stop - first], part.owner)
            for part in self._sharing.of_range(first, first + bucket.numel())
        ]
        riders = bucket[max(0, self._numbers - first) :]
        if riders.numel():
            works.append(group.allreduce([riders]))
        return _Works(works)


class ShardNorm(OneRank):
    """One rank of a stage whose gradients are summed in shards: each replica adds the squares of its own."""

    def __init__(self, sharing: Sharing) -> None:
        self._sharing = sharing

    def square_sum(self, flat: Tensor, parameters: Sequence[nn.Parameter]) -> float:
        own = [flat[s.start : s.stop] for s in self._sharing.shards if s.owner == self._sharing.member]
        total = torch.stack([torch.dot(part, part) for part in own]).double().sum().view(1)
        finish(self._sharing.group.allreduce([total]), WHO)
        return float(total)


class ShardedAdamW(AdamW):
    """AdamW of this rank's shards alone; its parameters are the parts of the weights that this rank owns.

    whole : AdamW of the whole parameters, which has not stepped; its groups are taken over. Their gradients
        are there already.
    """

    def __init__(self, whole: Optimizer, sharing: Sharing) -> None:
        self.sharing = sharing
        self._flat = sharing.flatten()
        self._index = {id(parameter): i for i, parameter in enumerate(sharing.parameters)}
        self._pieces = [list(self._owned(i)) for i in range(len(sharing.parameters))]
        super().__init__([{**group, "params": self._of_group(group)} for group in whole.param_groups])

    def _owned(self, index: int) -> Iterator[tuple[Shard, nn.Parameter]]:
        """The parts of a parameter that this rank steps, with their gradients."""
        whole = self.sharing.parameters[index]
        assert whole.grad is not None
        assert whole.grad.storage_offset() == self.sharing.start_of(index), "gradients lie as weights do"
        weights, gradients = whole.detach().view(-1), whole.grad.view(-1)
        for shard in self.sharing.of_parameter(index):
            if shard.owner == self.sharing.member:
                piece = nn.Parameter(weights[shard.start : shard.stop])
                piece.grad = gradients[shard.start : shard.stop]
                yield shard, piece

    def _of_group(self, group: dict[str, Any]) -> list[nn.Parameter]:
        return [piece for whole in group["params"] for _, piece in self._pieces[self._index[id(whole)]]]

    def step(self) -> None:
        """Step this rank's shards, and bring those of the others."""
        super().step()
        self.sharing.broadcast(self._flat, self.sharing.shards)

    @torch.no_grad()
    def whole_moments(self, parameter: nn.Parameter) -> dict[str, Tensor]:
        """The moments of a parameter as one process has them; all replicas that share it call this."""
        index = self._index[id(parameter)]
        whole = {name: torch.empty_like(parameter) for name in MOMENTS}
        for name, moment in whole.items():
            flat = moment.view(-1)
            for shard, piece in self._pieces[index]:
                flat[shard.start : shard.stop] = self.state[piece][name]
            self.sharing.broadcast(flat, self.sharing.of_parameter(index))
        return whole

    def put_moments(self, parameter: nn.Parameter, step: Tensor, moments: dict[str, Tensor]) -> None:
        """Take this rank's shards of a parameter's moments after so many steps."""
        for shard, piece in self._pieces[self._index[id(parameter)]]:
            parts = {name: whole.view(-1)[shard.start : shard.stop] for name, whole in moments.items()}
            own = {name: part.to(piece.device, copy=True) for name, part in parts.items()}
            self.state[piece] = {"step": step.clone(), **own}


class _Works:
    """Several operations of a group as one."""

    def __init__(self, works: Sequence[Any]) -> None:
        self._works = works

    def wait(self) -> None:
        for work in self._works:
            work.wait()


def _broadcast(group: Any, tensor: Tensor, root: int) -> Any:
    options = BroadcastOptions()
    options.rootRank = root
    return group.broadcast([tensor], options)


def _reduce(group: Any, tensor: Tensor, root: int) -> Any:
    options = ReduceOptions()
    options.rootRank = root
    return group.reduce([tensor], options)
