"""Gradients are summed bucket by bucket as they become final, in one order on all replicas."""

from typing import Any

import pytest
import torch
from torch import nn

from engine.train import gradients as module
from engine.train.gradients import Gradients


class _Group:
    """Doubles what it is given, as two replicas with equal gradients would, and notes when."""

    def __init__(self) -> None:
        self.summed: list[int] = []

    def allreduce(self, tensors: list[torch.Tensor]) -> Any:
        (tensor,) = tensors
        self.summed.append(tensor.numel())
        tensor.mul_(2)
        return self

    def wait(self) -> None: ...


def chunks() -> list[nn.Module]:
    torch.manual_seed(0)
    return [nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4)) for _ in range(2)]


@pytest.mark.parametrize("eager", [True, False])
def test_buckets_are_summed_once_they_are_final(eager: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "BUCKET_BYTES", 20 * 4)  # a layer's: 16 weights and 4 biases
    first, last = chunks()
    plain = Gradients([first, last], group=None, replica=0, replicas=1)
    x = torch.randn(3, 4)
    last(first(x)).sum().backward()
    alone = [p.grad.clone() for p in (*first.parameters(), *last.parameters())]  # type: ignore[union-attr]
    assert plain.square_sum() == pytest.approx(sum(float(g.square().sum()) for g in alone))

    group = _Group()
    first, last = chunks()
    both = Gradients([first, last], group=group, replica=0, replicas=2, eager=eager)
    for _ in range(2):  # a second iteration starts afresh
        both.clear()
        group.summed.clear()
        middle = first(x)
        handed = middle.detach().requires_grad_()
        both.finishing(1)
        last(handed).sum().backward()
        assert len(group.summed) == (2 if eager else 0)
        both.finished(1)
        assert len(group.summed) == 2  # the buckets of the last chunk, while the first has still to run
        both.finishing(0)
        middle.backward(handed.grad)
        both.finished(0)
        assert len(group.summed) == 4
        loss, start, end = both.all_reduce(0.5, unix=lambda t: t)
        assert (loss, sum(group.summed)) == (1.0, 80 + 1 + 4)  # the loss and two moments ride along
        assert start <= end
    summed = [p.grad for p in (*first.parameters(), *last.parameters())]
    assert all(torch.allclose(s, 2 * a) for s, a in zip(summed, alone, strict=True))  # type: ignore[operator]


def test_a_chunk_that_ends_out_of_order_waits_for_its_turn(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "BUCKET_BYTES", 20 * 4)
    group = _Group()
    both = Gradients(chunks(), group=group, replica=0, replicas=2)
    both.finishing(0)
    both.finished(0)
    assert group.summed == []
    both.finishing(1)
    both.finished(1)
    assert len(group.summed) == 4
