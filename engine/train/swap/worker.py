"""One worker of a swap run: executes the tracker's messages one by one.

take    compute these mini-batches: a round of ATOM's schedule
sum     all-reduce what was computed; it counts once all have it (commit), or not at all (abort)
commit  step, and say so
admit   take over, or give, weights and moments: somebody joins
leave, end   say what was measured, and go once that is kept

To a new tracker it says what it has, after all that the one before told it.
"""

import contextlib
import os
import sys
import threading
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from statistics import median
from typing import Any, NoReturn

import numpy as np
import torch
from torch import Tensor

from engine.job.event_writer import EventWriter
from engine.job.events.training import Rank, RankState
from engine.job.losses import Losses, rate_of
from engine.nn.device import CpuDevice, CudaDevice, Device, EmulatedDevice
from engine.train.log_lines import FIRST_RANK_EVERY_S, OTHER_RANKS_EVERY_S, ProgressLog, log_start
from engine.train.memory import give_back
from engine.train.recorder import Recorder
from engine.train.start import Start
from engine.train.swap.client import Client, Returned
from engine.train.swap.group import Groups
from engine.train.swap.host_model import HostModel
from engine.train.swap.keeping import SwapKeeper
from engine.train.swap.memory import DeviceMemory
from engine.train.swap.messages import (
    Abort,
    Admit,
    Admitted,
    Bye,
    Commit,
    Done,
    End,
    Failed,
    Hello,
    Leave,
    Ready,
    Stats,
    Sum,
    Take,
    Voted,
)
from engine.train.swap.rounds import Batch, Rounds
from engine.train.swap.swapper import Swapper

LATEST_ROUNDS = 1_000  # over which medians are taken


@dataclass(frozen=True, slots=True, kw_only=True)
class Summed:
    """A sum has ended, as the thread that took it tells; `why` it failed, or empty."""

    attempt: int
    epoch: int
    why: str
    total: Tensor
    gradients: bool


class Training:
    """The worker that `start` assigns; `die` ends the process with what a thread raised."""

    def __init__(self, start: Start, die: Callable[[BaseException], NoReturn]) -> None:
        assert start.plan is not None
        self._start, self._spec, self._me, self._job = start, start.spec, start.me, start.spec.job
        self._plan, self._die = start.plan, die
        self._events = EventWriter(start.events_fd)
        self._recorder = Recorder(self._me, self._events, die)
        device = self._new_device()
        self._memory = DeviceMemory(self._plan.result.capacity_bytes)
        self._model = HostModel(self._job, self._plan.subs, device)
        self._swapper = Swapper(self._model, self._plan, device, self._memory, self._recorder)
        units = self._job.cell.global_batch // self._job.cell.micro_batch
        dtype = torch.float64 if self._job.device.dtype == "fp64" else torch.float32
        self._rounds = Rounds(
            self._model,
            self._plan,
            self._swapper,
            device,
            self._recorder,
            scale=torch.tensor(1.0 / units, dtype=dtype),
            counted=self._counted,
            batch=self._batch,
        )
        self._keeper = SwapKeeper(self._spec, self._me, start.corpus, self._model, emit=self._events.put)
        self._losses = Losses(self._job.optimizer.spike or None)
        self._groups = Groups(self._spec, self._me)
        self._step = self._keeper.resumed_from or 0
        self._begun: int | None = None  # the step whose record is open
        self._loss = 0.0
        self._brought: list[int] = []  # mini-batches of this step in the gradients
        self._epoch = 0  # of the last sum
        self._stepped: tuple[float, float] | None = None  # loss and norm of the step before
        self._has_weights = self._me.rank < self._job.cell.pipelines  # of `_step`
        self._let_go = False
        self._whole: deque[tuple[float, float]] = deque(maxlen=LATEST_ROUNDS)  # seconds, of them busy
        self._attempt = 0  # counts sums: what an older one brings is dropped
        self._summed: Tensor | None = None
        self._sum_began = 0.0
        self._startup_s = 0.0
        self._tracker = Client(self._spec, self._me.rank, start.port, self._hello(), die)
        every_s = FIRST_RANK_EVERY_S if self._me.rank == self._spec.first_rank else OTHER_RANKS_EVERY_S
        self._progress = ProgressLog(self._job, every_s=every_s)
        layers = range(self._job.model.layers + 2)  # with the embedding and the head
        log_start(
            self._spec,
            self._me,
            part=f"swap worker, {len(self._plan.subs)} sub-models",
            peers=(),
            layers=list(layers),
            parameters=self._model.flat.numel(),
            device=device,
        )
        self._state(RankState.READY)

    def run(self) -> None:
        """Serve the tracker until it says that this worker is done."""
        while not isinstance(message := self._tracker.inbox.get(), Leave | End):
            self._handle(message)
        self._let_go = isinstance(message, Leave)
        saved = self._keeper.close()
        self._recorder.drain()
        if self._begun is not None:
            self._hand_in(Stats(stats={**self._stats(), "checkpoints": saved}))
        self._groups.close()
        self._events.close()

    def _hand_in(self, stats: Stats) -> None:
        """Say what was measured until a tracker has kept it."""
        self._tracker.send(stats)
        while not isinstance(message := self._tracker.inbox.get(), Bye):
            match message:
                case Returned():
                    self._tracker.greet(self._hello())
                case Leave() | End():
                    self._tracker.send(stats)

    # What the tracker says.

    def _handle(self, message: object) -> None:
        match message:
            case Take():
                self._on_take(message)
            case Sum():
                self._on_sum(message)
            case Admit():
                self._on_admit(message)
            case Abort():
                self._on_abort()
            case Summed():
                self._on_summed(message)
            case Admitted():
                self._on_admitted(message)
            case Commit():
                self._on_commit(message)
            case Returned():
                self._tracker.greet(self._hello())

    def _on_take(self, message: Take) -> None:
        self._open(message.step)
        start, busy_s = time.monotonic(), self._rounds.busy_s
        units = message.units
        self._loss += self._rounds.run(units)
        if len(units) == self._job.cell.microbatches:
            self._whole.append((time.monotonic() - start, self._rounds.busy_s - busy_s))
        self._brought += units
        self._tracker.send(Done(units=units))

    def _on_sum(self, message: Sum) -> None:
        self._swapper.settle()
        total = torch.cat((self._model.flat, torch.tensor([self._loss], dtype=self._model.flat.dtype)))
        self._collect(message, total)

    def _on_admit(self, message: Admit) -> None:
        state = self._model.state()
        if message.source != self._me.rank:
            state.zero_()
        self._collect(message, state)

    def _on_abort(self) -> None:
        self._attempt += 1
        self._summed = None
        self._groups.drop()

    def _on_summed(self, message: Summed) -> None:
        """From this worker's own thread: a sum has ended."""
        if message.attempt != self._attempt:
            return
        if message.why:
            self._groups.drop()
            self._tracker.send(Failed(epoch=message.epoch, why=message.why))
            return
        self._summed = message.total
        if message.gradients:
            self._recorder.op("all_reduce", None, self._sum_began, time.monotonic())
        self._tracker.send(Voted(epoch=message.epoch))

    def _on_admitted(self, message: Admitted) -> None:
        assert self._summed is not None
        if not self._has_weights:  # it joins
            self._step, self._has_weights = message.step, True
            self._model.restore(self._summed, self._step)
        self._summed = None
        self._tracker.send(Ready())

    def _on_commit(self, message: Commit) -> None:
        assert self._summed is not None
        self._open(message.step)
        self._model.flat.copy_(self._summed[:-1])
        loss, norm = float(self._summed[-1]), float(torch.dot(self._model.flat, self._model.flat)) ** 0.5
        self._summed = None
        self._losses.add(self._step, loss, norm)
        self._progress.add(self._step, loss, norm)
        start = time.monotonic()
        self._update(norm)
        end = time.monotonic()
        self._recorder.op("optimizer", None, start, end)
        self._save(message)
        self._swapper.refresh()
        self._recorder.finish(time.monotonic())
        give_back(self._step)
        self._step += 1
        self._loss = 0.0
        self._brought.clear()
        self._stepped = loss, norm
        self._tracker.send(Ready(loss=loss, grad_norm=norm))

    # The parts of a step.

    def _hello(self) -> Hello:
        loss, norm = self._stepped or (None, None)
        return Hello(
            step=self._step if self._has_weights else None,
            address=self._groups.address,
            units=tuple(self._brought),
            epoch=self._epoch,
            holds=self._summed is not None,
            loss=loss,
            grad_norm=norm,
            going=self._let_go,
        )

    def _open(self, step: int) -> None:
        if self._begun == step:
            return
        if self._begun is None:
            self._startup_s = time.time() - self._start.began
            self._state(RankState.RUNNING)
        self._begun = self._step = step
        self._recorder.begin(step)

    def _update(self, norm: float) -> None:
        if self._job.optimizer.clip is not None:
            self._model.flat.mul_(min(1.0, self._job.optimizer.clip / (norm + 1e-6)))
        rate = rate_of(self._job, self._step)
        for group in self._model.optimizer.param_groups:
            group["lr"] = rate
        self._model.optimizer.step()
        self._model.flat.zero_()

    def _save(self, message: Commit) -> None:
        if message.saver != self._me.rank:
            return
        start = time.monotonic()
        if self._keeper.after(self._step + 1, ends=message.last):
            self._recorder.op("checkpoint", None, start, time.monotonic())

    def _collect(self, message: Sum | Admit, total: Tensor) -> None:
        """Sum in a thread of its own: if another worker is lost, some sums never end."""
        self._attempt += 1
        self._epoch = message.epoch
        attempt, epoch, members = self._attempt, message.epoch, message.members
        gradients = isinstance(message, Sum) and len(members) > 1
        self._sum_began = time.monotonic()

        def work() -> None:
            why = ""
            try:
                self._groups.sum(epoch, members, total)
            except Exception as error:  # of gloo's, the store's, the transport's: the tracker judges
                why = str(error).splitlines()[0] if str(error) else type(error).__name__
            self._tracker.inbox.put(
                Summed(attempt=attempt, epoch=epoch, why=why, total=total, gradients=gradients)
            )

        threading.Thread(target=work, name="sum", daemon=True).start()

    def _counted(self) -> int | None:
        return self._start.corpus.counted(self._step, self._job.cell.global_batch)

    def _batch(self, unit: int) -> Batch:
        size = self._job.cell.micro_batch
        samples = np.arange(unit * size, (unit + 1) * size)
        tokens, targets = self._start.corpus.batch(self._step, self._job.cell.global_batch, samples)
        return torch.from_numpy(tokens), torch.from_numpy(targets)

    def _new_device(self) -> Device:
        if self._job.device.kind == "cuda":
            return CudaDevice(self._me.gpu, self._job.device.ranks_per_gpu)
        if self._job.device.kind == "cpu":
            return CpuDevice()
        return EmulatedDevice(self._recorder.overrun, self._plan.result.host_bytes_per_s)

    def _stats(self) -> dict[str, Any]:
        return {
            **self._recorder.stats(),
            "rank": self._me.rank,
            **self._groups.sent(),
            "digests": self._model.digests(),
            "last_step": self._step,
            "round_s": median(took for took, _ in self._whole) if self._whole else None,
            "round_busy_s": median(busy for _, busy in self._whole) if self._whole else None,
            "peak_device_bytes": self._memory.peak_bytes,
            "resumed_from": self._keeper.resumed_from,
            "startup_s": round(self._startup_s, 3),
        }

    def _state(self, state: RankState) -> None:
        self._events.put(Rank(rank=self._me.rank, state=state, pid=os.getpid(), t=time.time()))


def train(start: Start, die: Callable[[BaseException], NoReturn]) -> NoReturn:
    """Run a worker to its end and leave the process; never returns."""
    Training(start, die).run()
    with contextlib.suppress(OSError):
        sys.stdout.flush()
        sys.stderr.flush()
    os._exit(0)  # threads of sums that never end have nothing more to say
