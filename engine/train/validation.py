"""The loss on text that is held out: a forward pass of all pipelines between two iterations.

The sequences are the same each time and in every layout; microbatches of them are dealt out to the pipelines.
Each position takes all of its microbatches in turn, so that the stages work side by side.
"""

import logging
import time
from collections.abc import Iterator
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor

from engine.control.silence import WAIT_S
from engine.job.events import training
from engine.job.events.base import Emit
from engine.job.job import TrainJob
from engine.job.launch import RankAssignment
from engine.job.losses import bits_per_byte
from engine.nn.device import Device
from engine.nn.model import DTYPES, Stage, loss_of
from engine.nn.one_rank import ONE_RANK, OneRank
from engine.schedule.traversal import Traversal
from engine.train.agreement import ForgettingStore, taken
from engine.train.corpus import Corpus
from engine.train.exchange import VALIDATION, lost_is_peer_lost, raw
from engine.transport import Endpoint
from engine.transport.handles import Send

POLL_S = 0.005


log = logging.getLogger(__name__)


class Fabric(Protocol):
    """The connections of this rank."""

    endpoint: Endpoint | None

    @property
    def store(self) -> ForgettingStore: ...
    def at(self, pipeline: int, stage: int) -> RankAssignment: ...


class Validation:
    """One rank's part; `held_out` is the corpus of what is never trained on, `device` where the stage is.

    Parameters
    ----------
    leads : whether this rank, the run's first, reports the loss.
    emit : takes the `validation` events.
    tp : how the stage is shared with other ranks; the lead sends and receives.
    """

    def __init__(
        self,
        job: TrainJob,
        me: RankAssignment,
        traversal: Traversal,
        stage: Stage,
        fabric: Fabric,
        held_out: Corpus,
        device: Device,
        *,
        leads: bool,
        emit: Emit,
        tp: OneRank = ONE_RANK,
    ) -> None:
        assert job.data.validation is not None
        self._job, self._me, self._fabric, self._stage = job, me, fabric, stage
        self._settings, self._leads, self._emit = job.data.validation, leads, emit
        self._traversal, self._tp = traversal, tp
        count, size = self._settings.sequences, job.cell.micro_batch
        parts = [np.arange(first, min(count, first + size)) for first in range(0, count, size)]
        self._parts = parts[me.pipeline :: job.cell.pipelines]
        tokens, targets = held_out.batch(0, count, np.arange(count))
        self._counted = held_out.counted(0, count)  # targets that count; None: all
        self._tokens_per_byte = held_out.tokens_per_byte(0, count) if leads else None
        self._device = device.name
        self._tokens = torch.from_numpy(tokens).to(self._device)
        self._targets = torch.from_numpy(targets).to(self._device)
        self._handed: dict[int, Tensor] = {}  # by part, from one chunk here to the next
        self._under_way: list[tuple[Send, Tensor]] = []  # a tensor is kept until it has left
        self.results: list[dict[str, Any]] = []

    def after(self, step: int) -> None:
        """Take the loss if one is due after `step` steps."""
        if step % self._settings.every and step != self._job.optimizer.steps:
            return
        total = self._pass(step)
        if total is not None and self._tp.leads:
            self._fabric.store.set(f"validation/{step}/{self._me.pipeline}", repr(total))
        if self._leads:
            loss = sum(self._losses(step)) / (1 if self._counted is not None else self._settings.sequences)
            bits = bits_per_byte(loss, self._tokens_per_byte)
            self.results.append({"step": step, "loss": loss, "bits_per_byte": bits})
            log.info("Validation after iteration %s: loss %.4f.", f"{step:,}", loss)
            rank, now = self._me.rank, time.time()
            self._emit(training.Validation(rank=rank, step=step, loss=loss, bits_per_byte=bits, t=now))

    @torch.no_grad()
    def _pass(self, step: int) -> float | None:
        """This pipeline's part of the loss, on the rank where the model ends; else None.

        It is a sum over its sequences or, where not all targets count, a part of the mean over those that do.
        """
        total = 0.0 if self._ends_here() else None
        self._under_way.clear()
        for position, (stage, chunk) in enumerate(self._traversal.positions):
            if stage == self._me.stage:
                for part in range(len(self._parts)):
                    output = self._stage.chunks[chunk](self._input(step, position, part))
                    loss = self._pass_on(step, position, part, output)
                    total = total + loss if total is not None and loss is not None else total
        for sent, _ in self._under_way:
            lost_is_peer_lost(lambda sent=sent: sent.wait(timeout_s=WAIT_S))
        return total

    def _input(self, step: int, position: int, part: int) -> Tensor:
        if position == 0:
            return self._tokens[self._parts[part]]
        before = self._traversal.positions[position - 1][0]
        if before == self._me.stage:
            return self._handed.pop(part)
        return self._received(before, (step, position, part), len(self._parts[part]))

    def _pass_on(self, step: int, position: int, part: int, output: Tensor) -> float | None:
        """Hand the output to the next position; at the end of the model return the sum of the losses."""
        if position + 1 == len(self._traversal.positions):
            samples = self._parts[part]
            sequences = 1 if self._counted is not None else len(samples)
            return loss_of(output, self._targets[samples], self._counted).item() * sequences
        after = self._traversal.positions[position + 1][0]
        if after == self._me.stage:
            self._handed[part] = output
        elif self._tp.leads:
            self._send(after, (step, position + 1, part), output)
        return None

    def _ends_here(self) -> bool:
        return self._traversal.positions[-1][0] == self._me.stage

    def _send(self, stage: int, tag: tuple[int, ...], output: Tensor) -> None:
        assert self._fabric.endpoint is not None
        data = output.cpu().contiguous()
        to = self._fabric.at(self._me.pipeline, stage).rank
        self._under_way.append((self._fabric.endpoint.send(to, (VALIDATION, *tag), raw(data)), data))

    def _received(self, stage: int, tag: tuple[int, ...], sequences: int) -> Tensor:
        shape = (sequences, self._job.model.seq, self._job.model.hidden)
        into = torch.empty(shape, dtype=DTYPES[self._job.device.dtype])
        if self._tp.leads:
            self._receive(stage, tag, into)
        return self._tp.take(into, lambda received: received.to(self._device))

    def _receive(self, stage: int, tag: tuple[int, ...], into: Tensor) -> None:
        assert self._fabric.endpoint is not None
        source = self._fabric.at(self._me.pipeline, stage).rank
        receive = self._fabric.endpoint.post_receive(source, (VALIDATION, *tag), raw(into))
        lost_is_peer_lost(lambda: receive.wait(timeout_s=WAIT_S))

    def _losses(self, step: int) -> Iterator[float]:
        """The sums of all pipelines, in their order: the same sum every time."""
        store = self._fabric.store
        for pipeline in range(self._job.cell.pipelines):
            yield float(taken(store, f"validation/{step}/{pipeline}", poll_s=POLL_S))
