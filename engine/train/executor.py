"""Runs one GPU's part of a Schedule: real forward, recompute and backward passes, in the Schedule's order.

An op starts when the GPU is free, its inputs have arrived and its gate is open; nothing here knows when the
simulator would start it. On the emulated device an op lasts as long as its own profile says, and no less.

A microbatch's path through the model is a row of positions (engine.schedule.traversal), of which this GPU
has one per model chunk. What the next position needs is sent, or, where it is on this GPU too, handed on free
of charge. Whatever an iteration needs of others is posted at its start, in the order in which it is needed.
"""

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Protocol

import torch
from torch import Tensor
from torch.autograd.graph import GradientEdge, get_gradient_edge

from engine.job.job import TrainJob
from engine.nn.device import CpuDevice, Device, Moment, Side
from engine.nn.model import DTYPES, Chunk, Stage, Taped, loss_of
from engine.nn.one_rank import ONE_RANK, OneRank
from engine.schedule.ir import OpKind, Schedule
from engine.train.exchange import Incoming, Key, Outgoing
from engine.train.gradients import Gradients
from engine.train.recorder import HopDirection, Recorder


class GpuBorrower(Protocol):
    """What has the GPU while no op of training does: the prefill worker."""

    def begin(self, iteration: int) -> None:
        """An iteration begins: the GPU is free until its first op."""

    def take(self) -> float:
        """An op is due: returns once it may have the GPU, with the end of what had it (time.monotonic())."""

    def give(self, start: float, end: float) -> None:
        """An op is over."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Work:
    """One op of the order with what the executor needs to know of it.

    keep : an F that keeps its graph, because no R of the microbatch follows.
    final : the last op of the iteration that adds to the gradients of its chunk.
    lasts_s : duration of an emulated op; None where it takes what it takes.
    """

    kind: OpKind
    microbatch: int
    chunk: int
    keep: bool
    final: bool
    lasts_s: float | None

    @property
    def key(self) -> Key:
        return self.chunk, self.microbatch


@dataclass(frozen=True, slots=True, kw_only=True)
class Port:
    """The connection of a chunk here with the next (or previous) position, which is on another GPU.

    takes : chunk at that position, by which what comes from there is known.
    post_started, wait_started : word that the B of a microbatch has started there, and since when it is here;
        None where no gate asks.
    tell_started : says there that the B of a microbatch has started here; None where no gate asks.
    """

    incoming: Incoming
    outgoing: Outgoing
    takes: int
    hop: HopDirection  # of what is sent
    tell_started: Callable[[int], None] | None = None
    post_started: Callable[[int], None] | None = None
    wait_started: Callable[[int], float] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Position:
    """A chunk's position: what is before and after it forward.

    A Port to another GPU, the number of a chunk on this one, or None where the model begins or ends.
    """

    before: Port | int | None
    after: Port | int | None


@dataclass(slots=True, kw_only=True)
class _SavedGraph:
    """What the backward pass of a microbatch needs: its input where that takes a gradient, and its graph.

    tape, gradients : where B is split, modules with weights and, after B, the gradients of their outputs.
    """

    leaf: Tensor | None
    output: GradientEdge
    tape: list[Taped]
    gradients: Sequence[Tensor] = ()


def work_of(
    schedule: Schedule, pipeline: int, stage: int, lasts_s: Callable[[OpKind], float | None]
) -> tuple[Work, ...]:
    """Return one GPU's order with durations by kind of op."""
    order = schedule.order(pipeline, stage)
    recomputed = {(op.chunk, op.microbatch) for op in order if op.kind is OpKind.R}
    adds = OpKind.W if schedule.has(OpKind.W) else OpKind.B
    last = {op.chunk: i for i, op in enumerate(order) if op.kind is adds}
    return tuple(
        Work(
            kind=op.kind,
            microbatch=op.microbatch,
            chunk=op.chunk,
            final=last[op.chunk] == i,
            keep=(op.chunk, op.microbatch) not in recomputed,
            lasts_s=lasts_s(op.kind),
        )
        for i, op in enumerate(order)
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """One GPU's part of a schedule.

    work : its ops in order.
    positions : of the stage's chunks, in order.
    links : all ends of links that the positions' ports use, each once.
    late : an R waits until the gradient of its microbatch is there.
    """

    work: tuple[Work, ...]
    positions: Sequence[Position]
    links: Sequence[Incoming | Outgoing]
    late: bool


_Batch = tuple[Tensor, Tensor, int | None]  # tokens, targets, and how many of the step's targets count


@dataclass(frozen=True, slots=True, kw_only=True)
class Sizes:
    """Of what an executor computes in an iteration.

    shape, dtype : of a message, (micro_batch, seq, hidden).
    microbatches : of a pipeline; `pipelines` share a step.
    """

    shape: tuple[int, int, int]
    dtype: torch.dtype
    microbatches: int
    pipelines: int

    @classmethod
    def of(cls, job: TrainJob) -> "Sizes":
        """Those of a job."""
        return cls(
            shape=(job.cell.micro_batch, job.model.seq, job.model.hidden),
            dtype=DTYPES[job.device.dtype],
            microbatches=job.cell.microbatches_of_step,
            pipelines=job.cell.pipelines,
        )


class Executor:
    """One stage of one pipeline.

    Parameters
    ----------
    batch : gives tokens and targets (int64, (microbatches · micro_batch, seq)) of a step; called only where
        the model begins or ends.
    counted : how many targets of a step's global batch count, or None where all do; called only where the
        model ends.
    prefill_worker : has the GPU while no op runs; None in a job without prefill.
    device : where the stage's chunks are. The batch is in host memory. So is what comes from neighbours,
        unless it stays on GPUs (engine.train.direct).
    tp : how the stage is shared with other ranks, which follow the same `work`; the lead sends and receives.
    """

    def __init__(
        self,
        stage: Stage,
        part: Part,
        sizes: Sizes,
        *,
        batch: Callable[[int], tuple[Tensor, Tensor]],
        counted: Callable[[int], int | None] = lambda step: None,
        gradients: Gradients,
        recorder: Recorder,
        prefill_worker: GpuBorrower | None = None,
        device: Device | None = None,
        tp: OneRank = ONE_RANK,
    ) -> None:
        self._device, self._tp = device or CpuDevice(), tp
        self._chunks: list[Chunk] = list(stage.chunks)  # type: ignore[arg-type]
        self._part, self._sizes, self._positions = part, sizes, part.positions
        self._batch, self._counted, self._gradients, self._recorder = batch, counted, gradients, recorder
        self._prefill_worker = prefill_worker
        self._message_bytes = math.prod(sizes.shape) * sizes.dtype.itemsize
        scale = torch.tensor(1.0 / (sizes.microbatches * sizes.pipelines), dtype=_loss_dtype(sizes.dtype))
        self._mean = scale.to(self._device.name), scale.item()  # of a microbatch's mean in the step's
        self._sum = torch.ones_like(self._mean[0]), 1.0  # of a loss that is a part of the step's already
        self._scale, self._share = self._mean
        self._count: int | None = None  # targets of the step that count; None: all
        self._splits = any(work.kind is OpKind.W for work in part.work)
        self._needs_batch = any(
            position.before is None or position.after is None for position in part.positions
        )
        self._tokens: tuple[Tensor, ...] = ()
        self._targets: tuple[Tensor, ...] = ()
        self._next: tuple[int, _Batch] | None = None  # a step and its batch, loaded ahead
        # By chunk and microbatch: what ops take in, from the neighbours or from another chunk here.
        self._inputs: dict[Key, Tensor] = {}
        self._gradients_in: dict[Key, Tensor] = {}
        self._awaited: set[Key] = set()  # whose gradient has not been waited for
        self._since = 0.0  # time.monotonic(): all that was waited for is there since
        self._saved: dict[Key, _SavedGraph] = {}
        self._losses: list[Tensor] = []
        self.loss = 0.0

    def run(self, iteration: int) -> None:
        """Run all ops of an iteration; gradients and the scaled `loss` are left behind."""
        self._begin(iteration)
        for work in self._part.work:
            _OPS[work.kind](self, work)
        if self._needs_batch and self._device.apart:
            self._next = iteration + 1, self._loaded(iteration + 1)  # while the device is at the ops
        self._device.settle()
        if self._losses:  # fetched together: each copy from a GPU is a wait of its own
            for loss in torch.stack(self._losses).tolist():
                self.loss += loss * self._share

    def _begin(self, iteration: int) -> None:
        self.loss = 0.0
        self._losses.clear()
        self._gradients.clear()
        for link in self._part.links:
            link.begin(iteration)
        if self._prefill_worker is not None:
            self._prefill_worker.begin(iteration)
        for work in self._part.work:
            self._post(work)
        if self._needs_batch:
            ahead, self._next = self._next, None
            batch = ahead[1] if ahead and ahead[0] == iteration else self._loaded(iteration)
            tokens, targets, self._count = batch
            self._scale, self._share = self._mean if self._count is None else self._sum
            self._tokens = tokens.chunk(self._sizes.microbatches)
            self._targets = targets.chunk(self._sizes.microbatches)
        self._since = time.monotonic()

    def _loaded(self, iteration: int) -> _Batch:
        """Tokens and targets of a step, on the device, and how many targets count in all."""
        ends = any(position.after is None for position in self._positions)
        count = self._counted(iteration) if ends else None
        tokens, targets = (
            self._device.load(self._device.host_buffer(tuple(part.shape), part.dtype).copy_(part), "previous")
            for part in self._batch(iteration)
        )
        return tokens, targets, count

    def _post(self, work: Work) -> None:
        position, m = self._positions[work.chunk], work.microbatch
        if work.kind is OpKind.F and isinstance(position.before, Port):
            position.before.incoming.post((position.before.takes, m), self._message_bytes)
        elif work.kind is OpKind.B and isinstance(position.after, Port):
            self._awaited.add(work.key)
            position.after.incoming.post((position.after.takes, m), self._message_bytes)
        elif work.kind is OpKind.R and isinstance(position.after, Port) and position.after.post_started:
            position.after.post_started(m)

    def _forward(self, work: Work) -> None:
        position, m = self._positions[work.chunk], work.microbatch
        if isinstance(position.before, Port):
            self._inputs[work.key] = self._received(position.before, m, "previous")
        start = self._start()
        output = self._compute(work, keep=work.keep)
        if position.after is None:
            self._losses.append(output.detach())
        end = self._end(work, start)
        if isinstance(position.after, Port):
            self._send(position.after, m, output, end)
        elif position.after is not None:
            self._inputs[position.after, m] = output.detach()

    def _recompute(self, work: Work) -> None:
        after = self._positions[work.chunk].after
        if self._part.late:
            self._await_gradient(work)
        elif isinstance(after, Port) and after.wait_started:
            self._since = max(self._since, after.wait_started(work.microbatch))
        start = self._start()
        self._compute(work, keep=True)
        self._end(work, start)

    def _backward(self, work: Work) -> None:
        position, m = self._positions[work.chunk], work.microbatch
        self._await_gradient(work)
        start = self._start()
        if isinstance(position.before, Port) and position.before.tell_started:
            position.before.tell_started(m)
        saved = self._saved[work.key]
        gradient = self._scale if position.after is None else self._gradients_in[work.key]
        if self._splits:
            with self._chunks[work.chunk].parts.only("inputs"):
                upstream = self._split(saved, gradient)
            end = self._end(work, start)
        else:
            self._add(work, lambda: torch.autograd.backward((saved.output,), (gradient,)))
            upstream = saved.leaf.grad if saved.leaf is not None else None
            self._let_go(work)
            end = self._end(work, start)
            self._finished(work)
        if isinstance(position.before, Port):
            assert upstream is not None
            self._send(position.before, m, upstream, end)
        elif position.before is not None:
            assert upstream is not None
            self._gradients_in[position.before, m] = upstream

    def _split(self, saved: _SavedGraph, gradient: Tensor) -> Tensor | None:
        """The input part of a backward pass; what the weight part needs is kept."""
        wanted = [edge for edge, _ in saved.tape]
        if saved.leaf is not None:
            wanted.append(get_gradient_edge(saved.leaf))
        gradients = torch.autograd.grad((saved.output,), wanted, (gradient,), retain_graph=True)
        saved.gradients = gradients[: len(saved.tape)]
        return gradients[-1] if saved.leaf is not None else None

    def _weight(self, work: Work) -> None:
        start = self._start()
        saved = self._saved[work.key]
        with self._chunks[work.chunk].parts.only("weights"):
            self._add(work, lambda: _weight_gradients(saved))
        self._let_go(work)
        self._end(work, start)
        self._finished(work)

    def _add(self, work: Work, backward: Callable[[], None]) -> None:
        """Run what adds to the gradients of a chunk."""
        if work.final:
            self._gradients.finishing(work.chunk)
        backward()

    def _finished(self, work: Work) -> None:
        if work.final:
            self._gradients.finished(work.chunk)

    def _let_go(self, work: Work) -> None:
        """Free what was held of a microbatch."""
        for tensors in (self._saved, self._inputs, self._gradients_in):
            tensors.pop(work.key, None)

    def _compute(self, work: Work, *, keep: bool) -> Tensor:
        """Forward pass of a microbatch; with `keep` its graph is kept for the backward pass."""
        position, chunk, m = self._positions[work.chunk], self._chunks[work.chunk], work.microbatch
        tape: list[Taped] = []
        chunk.tape = tape if keep and self._splits else None
        with torch.set_grad_enabled(keep):
            leaf = None
            if position.before is None:
                x = self._tokens[m]
            else:
                # A leaf of its own on the received bytes: the gradient for the neighbour gathers in it.
                x = leaf = self._inputs[work.key].detach().requires_grad_(keep)
            output: Tensor = chunk(x)
            if position.after is None:
                output = loss_of(output, self._targets[m], self._count)
        chunk.tape = None
        if keep:
            self._saved[work.key] = _SavedGraph(leaf=leaf, output=get_gradient_edge(output), tape=tape)
            self._inputs.pop(work.key, None)
        return output

    def _await_gradient(self, work: Work) -> None:
        after = self._positions[work.chunk].after
        if isinstance(after, Port) and work.key in self._awaited:
            self._gradients_in[work.key] = self._received(after, work.microbatch, "next")
            self._awaited.discard(work.key)

    def _received(self, port: Port, m: int, side: Side) -> Tensor:
        message = port.incoming.wait((port.takes, m))
        self._since = max(self._since, message.arrived)
        shaped = message.tensor.view(self._sizes.dtype).view(self._sizes.shape)
        return self._tp.take(shaped, lambda received: self._device.load(received, side))

    def _send(self, port: Port, m: int, tensor: Tensor, ready: Moment) -> None:
        if not self._tp.leads:
            return
        sent = port.outgoing.send((port.hop.chunk, m), tensor.detach().contiguous(), ready)
        self._recorder.sent(port.hop, m, sent)

    def _start(self) -> Moment:
        if self._prefill_worker is not None:
            self._device.settle()  # an op is due, and prompts give way, once its inputs are there
            self._since = max(self._since, self._prefill_worker.take())
        return self._device.begin(self._since)

    def _end(self, work: Work, start: Moment) -> Moment:
        end = self._device.end(start, work.lasts_s)
        self._device.tell(start, end, partial(self._note, work))
        if self._prefill_worker is not None:
            self._device.settle()  # the GPU is free for prompts once the op is done, not once it is queued
        return end

    def _note(self, work: Work, start: float, end: float) -> None:
        self._recorder.op(work.kind.name, work.microbatch, start, end, chunk=work.chunk)  # type: ignore[arg-type]
        if self._prefill_worker is not None:
            self._prefill_worker.give(start, end)


def _weight_gradients(saved: _SavedGraph) -> None:
    """The weight part of a backward pass, module by module from the last one on."""
    for (edge, weights), gradient in zip(reversed(saved.tape), reversed(saved.gradients), strict=True):
        torch.autograd.backward((edge,), (gradient,), inputs=weights)


def _loss_dtype(dtype: torch.dtype) -> torch.dtype:
    return torch.float32 if dtype is torch.bfloat16 else dtype


_OPS: dict[OpKind, Callable[[Executor, Work], None]] = {
    OpKind.F: Executor._forward,
    OpKind.R: Executor._recompute,
    OpKind.B: Executor._backward,
    OpKind.W: Executor._weight,
}
