"""A step of ATOM's schedule: every sub-model forward, then backward, each for all mini-batches at hand.

The order of visits is the planner's (engine.plan.swap.events.atom_order): the last sub-model stays after the
forward pass and the first after the backward pass; the next visit's sub-model begins to load when a visit
starts. Inputs of sub-models wait on the host between the two passes, everything else is computed again.
"""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor
from torch.func import functional_call

from engine.job.swap.planned import SwapPlan
from engine.nn.device import Device
from engine.nn.model import loss_of
from engine.plan.swap.events import atom_order
from engine.simulate.spans import SpanOp
from engine.train.recorder import Recorder
from engine.train.swap.host_model import HostModel
from engine.train.swap.swapper import Resident, Swapper

Batch = tuple[Tensor, Tensor]  # tokens, targets of one mini-batch


@dataclass(slots=True, kw_only=True)
class _Flight:
    """The mini-batches of a round: inputs of sub-models forward, gradients of their outputs backward."""

    batches: dict[int, Batch]
    counted: int | None  # targets of the step that count; None: all
    scale: Tensor  # of a mini-batch's loss in the step's
    inputs: dict[tuple[int, int], Tensor] = field(default_factory=dict)
    gradients: dict[int, Tensor] = field(default_factory=dict)
    loss: float = 0.0


class Rounds:
    """Runs rounds of one worker; gradients gather in the host model, times `scale`."""

    def __init__(
        self,
        model: HostModel,
        plan: SwapPlan,
        swapper: Swapper,
        device: Device,
        recorder: Recorder,
        *,
        scale: Tensor,
        batch: Callable[[int], Batch],
        counted: Callable[[], int | None] = lambda: None,
    ) -> None:
        self._model, self._plan, self._swapper, self._device = model, plan, swapper, device
        self._recorder, self._scale, self._batch, self._counted = recorder, scale, batch, counted
        self._order = atom_order(len(plan.subs))
        self._last = len(plan.subs) - 1
        self.busy_s = 0.0  # in ops, all rounds together

    def run(self, units: Sequence[int]) -> float:
        """Forward and backward of some mini-batches; returns their share of the global batch's loss."""
        counted = self._counted()
        flight = _Flight(
            batches={unit: self._batch(unit) for unit in units},
            counted=counted,
            scale=self._scale if counted is None else torch.ones_like(self._scale),
        )
        for i, visit in enumerate(self._order):
            following = self._order[(i + 1) % len(self._order)]
            resident = self._swapper.arrive(visit.sub)
            if visit.op == "B":
                self._swapper.bind_gradients(visit.sub)
            if following.loads:
                self._swapper.prefetch(following.sub)
            run = self._forward if visit.op == "F" else self._backward
            for unit in units:
                run(flight, visit.sub, resident, unit)
            self._swapper.leave(visit.sub, backward=visit.op == "B", stays=following.sub == visit.sub)
        return flight.loss

    def _forward(self, flight: _Flight, sub: int, resident: Resident, unit: int) -> None:
        start = time.monotonic()
        with torch.no_grad():
            output = self._call(flight, sub, resident, unit, self._input(flight, sub, unit))
        if sub == self._last:
            flight.loss += output.item() * flight.scale.item()
        else:
            flight.inputs[sub + 1, unit] = output.cpu()
        self._end("F", unit, sub, start)

    def _backward(self, flight: _Flight, sub: int, resident: Resident, unit: int) -> None:
        start = time.monotonic()
        activation = self._input(flight, sub, unit)
        if sub:
            activation = activation.requires_grad_()
        output = self._call(flight, sub, resident, unit, activation)
        start = self._end("R", unit, sub, start)
        gradient = flight.scale if sub == self._last else flight.gradients.pop(unit)
        torch.autograd.backward((output,), (gradient.to(output.device),))
        if sub:
            assert activation.grad is not None
            flight.gradients[unit] = activation.grad.cpu()
            del flight.inputs[sub, unit]
        del output
        self._end("B", unit, sub, start)

    def _input(self, flight: _Flight, sub: int, unit: int) -> Tensor:
        activation = flight.inputs[sub, unit] if sub else flight.batches[unit][0]
        return activation.to(self._device.name).detach()

    def _call(self, flight: _Flight, sub: int, resident: Resident, unit: int, activation: Tensor) -> Tensor:
        output: Tensor = functional_call(self._model.chunks[sub], resident.leaves, (activation,))
        if sub == self._last:
            targets = flight.batches[unit][1].to(self._device.name)
            return loss_of(output, targets, flight.counted)
        return output

    def _end(self, op: SpanOp, unit: int, sub: int, start: float) -> float:
        self._device.end(start, self._plan.times_s[sub][op])
        self._device.settle()
        end = time.monotonic()
        self._recorder.op(op, unit, start, end, chunk=sub)
        self.busy_s += end - start
        return end
