"""Runs one GPU's part of a Schedule: real forward, recompute and backward passes, in the Schedule's order.

An op starts when the GPU is free, its inputs have arrived and its gate is open; nothing here knows when the
simulator would start it. On the emulated device an op lasts as long as its own profile says, and no less.
"""

import time
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from engine.runtime.exchange import Incoming, Outgoing
from engine.runtime.gradients import Gradients
from engine.runtime.model import Stage, loss_of
from engine.runtime.recorder import Crossing, Recorder
from engine.schedule.ir import OpKind, Schedule


@dataclass(frozen=True, slots=True, kw_only=True)
class Work:
    """One op of the order with what the executor needs to know of it.

    keep : an F that keeps its graph, because no R of the microbatch follows.
    lasts_s : duration of an emulated op; None where it takes what it takes.
    """

    kind: OpKind
    microbatch: int
    keep: bool
    lasts_s: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Neighbour:
    """The way to and from one neighbouring stage.

    started : tell it that the B of a microbatch has started here (for its recompute gate), or None.
    wait_started : wait until the B of a microbatch has started there, or None where no gate asks for it.
    """

    incoming: Incoming
    outgoing: Outgoing
    crossing: Crossing  # of what is sent
    started: Callable[[int], None] | None = None
    post_started: Callable[[int], None] | None = None
    wait_started: Callable[[int], None] | None = None


def work_of(
    schedule: Schedule, pipeline: int, stage: int, lasts_s: Callable[[OpKind], float | None]
) -> tuple[Work, ...]:
    """Return one GPU's order with durations by kind of op."""
    order = schedule.order(pipeline, stage)
    recomputed = {op.microbatch for op in order if op.kind is OpKind.R}
    return tuple(
        Work(
            kind=op.kind,
            microbatch=op.microbatch,
            keep=op.microbatch not in recomputed,
            lasts_s=lasts_s(op.kind),
        )
        for op in order
    )


class Executor:
    """One stage of one pipeline.

    Parameters
    ----------
    batch : gives tokens and targets (int64, (microbatches · micro_batch, seq)) of a step; called on the
        first and the last stage only.
    shape : of a message, (micro_batch, seq, hidden).
    late : an R waits until the gradient of its microbatch is there.
    """

    def __init__(
        self, stage: Stage, work: tuple[Work, ...], *, shape: tuple[int, int, int], dtype: torch.dtype,
        microbatches: int, pipelines: int, upstream: Neighbour | None, downstream: Neighbour | None,
        batch: Callable[[int], tuple[Tensor, Tensor]], late: bool, gradients: Gradients, recorder: Recorder,
    ) -> None:  # fmt: skip
        self._stage, self._work, self._late = stage, work, late
        self._upstream, self._downstream = upstream, downstream
        self._batch, self._gradients, self._recorder = batch, gradients, recorder
        self._microbatches = microbatches
        self._scale = 1.0 / (microbatches * pipelines)
        buffers = [torch.empty(shape, dtype=dtype) for _ in range(microbatches * 2)]
        self._activations = buffers[:microbatches] if upstream else []
        self._gradients_in = buffers[microbatches:] if downstream else []
        self._tokens: tuple[Tensor, ...] = ()
        self._targets: tuple[Tensor, ...] = ()
        self._saved: dict[int, tuple[Tensor, Tensor]] = {}
        self._arrived: set[int] = set()
        self.loss = 0.0

    def run(self, iteration: int) -> None:
        """Run all ops of an iteration; gradients and the scaled `loss` are left behind."""
        self._begin(iteration)
        for work in self._work:
            _OPS[work.kind](self, work)

    def _begin(self, iteration: int) -> None:
        self.loss = 0.0
        self._arrived.clear()
        self._gradients.clear()
        for neighbour, buffers in (
            (self._upstream, self._activations),
            (self._downstream, self._gradients_in),
        ):
            if neighbour:
                neighbour.incoming.begin(iteration)
                neighbour.outgoing.begin(iteration)
                for microbatch, buffer in enumerate(buffers):
                    neighbour.incoming.post(microbatch, buffer)
        self._post_gates()
        if not (self._upstream and self._downstream):
            tokens, targets = self._batch(iteration)
            self._tokens = tokens.chunk(self._microbatches)
            self._targets = targets.chunk(self._microbatches)

    def _post_gates(self) -> None:
        if self._downstream and self._downstream.post_started:
            for work in self._work:
                if work.kind is OpKind.R:
                    self._downstream.post_started(work.microbatch)

    def _forward(self, work: Work) -> None:
        m = work.microbatch
        if self._upstream:
            self._upstream.incoming.wait(m)
        start = time.monotonic()
        output = self._compute(m, keep=work.keep)
        if not self._downstream:
            self.loss += output.item() * self._scale
        self._end("F", work, start)
        if self._downstream:
            self._send(self._downstream, m, output)

    def _recompute(self, work: Work) -> None:
        m = work.microbatch
        if self._late:
            self._await_gradient(m)
        elif self._downstream and self._downstream.wait_started:
            self._downstream.wait_started(m)
        start = time.monotonic()
        self._compute(m, keep=True)
        self._end("R", work, start)

    def _backward(self, work: Work) -> None:
        m = work.microbatch
        self._await_gradient(m)
        start = time.monotonic()
        if self._upstream and self._upstream.started:
            self._upstream.started(m)
        leaf, output = self._saved.pop(m)
        if self._downstream:
            torch.autograd.backward(output, self._gradients_in[m])
        else:
            (output * self._scale).backward()
        self._end("B", work, start)
        if self._upstream:
            assert leaf.grad is not None
            self._send(self._upstream, m, leaf.grad)

    def _compute(self, m: int, *, keep: bool) -> Tensor:
        """Forward pass of a microbatch; with `keep` its graph is saved for the backward pass."""
        with torch.set_grad_enabled(keep):
            # A leaf of its own on the received bytes: the gradient for the neighbour gathers in it.
            x = self._activations[m].detach().requires_grad_(keep) if self._upstream else self._tokens[m]
            output: Tensor = self._stage(x)
            if not self._downstream:
                output = loss_of(output, self._targets[m])
        if keep:
            self._saved[m] = (x, output)
        return output

    def _await_gradient(self, m: int) -> None:
        if self._downstream and m not in self._arrived:
            self._downstream.incoming.wait(m)
            self._arrived.add(m)

    def _send(self, neighbour: Neighbour, m: int, tensor: Tensor) -> None:
        sent = neighbour.outgoing.send(m, tensor.detach().contiguous())
        self._recorder.sent(neighbour.crossing, m, sent)

    def _end(self, op: str, work: Work, start: float) -> None:
        if work.lasts_s is not None:
            left = start + work.lasts_s - time.monotonic()
            if left > 0:
                time.sleep(left)
            else:
                self._recorder.overrun(-left)
        self._recorder.op(op, work.microbatch, start, time.monotonic())  # type: ignore[arg-type]


_OPS: dict[OpKind, Callable[[Executor, Work], None]] = {
    OpKind.F: Executor._forward,
    OpKind.R: Executor._recompute,
    OpKind.B: Executor._backward,
}
