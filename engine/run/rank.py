"""One rank: sets itself up, trains step after step, and says how it went."""

import logging
import os
import sys
import threading
import time
from typing import NoReturn

import torch

from engine.control.errors import PeerLost
from engine.errors import InputError
from engine.job.events.training import Rank, RankState, Result
from engine.job.launch import EXIT_FINAL, EXIT_PEER_LOST
from engine.job.losses import rate_of
from engine.run.building import ground_of, prefill_on, trained_on, validation_of
from engine.run.outcome import leave_last, result_of, share_measured
from engine.run.present import Present, ops_of
from engine.run.recalling import Recalling
from engine.run.reports import StepReports
from engine.train.boundary import Boundary
from engine.train.checkpoint.keeper import Keeper
from engine.train.log_lines import OTHER_RANKS_EVERY_S, ProgressLog, log_start, part_of, start_log
from engine.train.memory import give_back
from engine.train.start import Start
from engine.train.swap.worker import train
from engine.transport import LinkLost

log = logging.getLogger(__name__)
EXIT_FAILED = 1


def run(start: Start) -> NoReturn:
    """Run a rank to its end and leave the process; never returns."""
    start_log()
    try:
        if start.pulses is not None:
            start.pulses.beat(start.me.rank)
        torch.set_num_threads(1)
        if start.plan is not None:
            train(start, die)
        Training(start).run()
    except BaseException as error:
        die(error)
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(0)  # gloo's threads have nothing more to say


def die(error: BaseException) -> NoReturn:
    """Leave the process, the last line of its output saying why."""
    if _is_loss_of_peer(error):
        log.error("%s", error)
        os._exit(EXIT_PEER_LOST)
    if isinstance(error, InputError):
        log.error("%s", error)
        os._exit(EXIT_FINAL)
    log.error("The rank failed.", exc_info=error)
    os._exit(EXIT_FINAL if isinstance(error, FloatingPointError) else EXIT_FAILED)


def _is_loss_of_peer(error: BaseException) -> bool:
    """Whether `error` only says that another rank is gone, noticed while waiting or while sending."""
    gloo = type(error) is RuntimeError and "gloo" in str(error)  # torch has no type of its own for these
    return gloo or isinstance(error, PeerLost | LinkLost)


class Training:
    """A rank that trains in a pipeline, step after step."""

    def __init__(self, start: Start) -> None:
        self._began = time.monotonic()
        ground = ground_of(start, die)
        self._start, self._ground = start, ground
        self._trained = trained_on(ground)
        self._prefill = prefill_on(ground, ops_of(ground.schedule, ground))
        prefill_worker = self._prefill.prefill_worker if self._prefill else None
        self._present = Present(ground, self._trained, start.corpus, prefill_worker)
        self._boundary = Boundary(
            ground.mesh.store,
            rank=ground.me.rank,
            stop_flag=start.stop_flag,
            leads=ground.is_first,
            emit=ground.events.put,
        )
        stage, start_kept = self._trained.stage, start.kept
        self._keeper = Keeper(
            ground.spec,
            ground.me,
            ground.mesh.store,
            start.corpus,
            optimizer=self._trained.optimizer,
            layers=dict(zip(stage.numbers, stage.layers, strict=True)),
            emit=ground.events.put,
            tp=ground.tp,
        )
        self._reports = StepReports(
            ground,
            self._trained.gradients,
            start.corpus,
            die=die,
            sound=self._keeper.sound,
            board=start_kept.board if start_kept else None,
            first=self._keeper.first_step,
        )
        every_s = None if ground.is_first else OTHER_RANKS_EVERY_S  # the first rank says it with the loss
        self._progress = ProgressLog(ground.job, every_s=every_s) if every_s else None
        self._validation = validation_of(start, ground, stage)
        self._recalling = (
            Recalling(start_kept, ground, self._trained, self._keeper, self._reports, self._validation)
            if start_kept
            else None
        )
        self._first, self._resumed_from = self._keeper.first_step, self._keeper.resumed_from

    def run(self) -> None:
        """Train from the first step to the last, and say how it went."""
        ground = self._ground
        self._same_text()
        if self._recalling:
            self._recall(self._recalling)
        self._trained.stage.cast_again()  # a checkpoint or the last attempt may have changed the weights
        stage = self._trained.stage
        log_start(
            ground.spec,
            ground.me,
            part=part_of(ground.job, ground.me),
            layers=stage.numbers,
            parameters=sum(parameter.numel() for parameter in stage.parameters()),
            peers=ground.mesh.peers(),
            device=ground.device,
        )
        self._emit_state(RankState.READY)
        ground.mesh.barrier("ready")
        self._emit_state(RankState.RUNNING)
        startup_s = time.time() - self._start.began
        if ground.adapting:
            ground.adapting.started(time.monotonic() - self._began, self._keeper.took_s)
        if self._resumed_from:
            log.info("Training continues after iteration %s.", f"{self._resumed_from:,}")
        if self._recalling:
            self._recalling.make_up(self._first)
        for iteration in range(self._first, ground.job.optimizer.steps):
            if self._boundary.passed(iteration):
                self._keeper.end(iteration)
                log.info("Training stops after iteration %s, as asked.", f"{iteration:,}")
                break
            self._present.adjust(iteration)
            self._iterate(iteration)
            if self._validation:
                self._validation.after(iteration + 1)
        if self._prefill:
            self._prefill.close()
        ground.recorder.drain()
        self._reports.close()
        self._report(startup_s)
        ground.mesh.close()
        ground.events.close()

    def _same_text(self) -> None:
        """Where data centres have files of their own, every rank must have the same text in them."""
        ground = self._ground
        data, store = ground.job.data.path, ground.mesh.store
        if not isinstance(data, dict):
            return
        mine = self._start.corpus.fingerprint()
        if ground.is_first:
            store.set("data", mine)
        elif store.get("data").decode() != mine:
            name = ground.me.dc_name
            first = next(a.dc_name for a in ground.spec.ranks if a.rank == ground.spec.first_rank)
            field = ground.job.data.path_field
            raise InputError(f"{field}.{name}", data[name], f"is not the same text as that in {first}")

    def _recall(self, recalling: Recalling) -> None:
        header = recalling.begin()
        if header is not None:
            self._first, self._resumed_from = header.step, header.resumed_from

    def _iterate(self, iteration: int) -> None:
        recorder, gradients = self._ground.recorder, self._trained.gradients
        executor = self._present.executor
        recorder.begin(iteration)
        executor.run(iteration)
        loss, start, end = gradients.all_reduce(executor.loss, recorder.clock.unix)
        if self._ground.job.sums_gradients:
            recorder.op("all_reduce", None, start, end)
        square_sum = gradients.square_sum()
        self._reports.add(iteration, square_sum, loss)
        start, end = self._optimize(iteration)
        recorder.op("optimizer", None, start, end)
        moves = self._ground.adapting is not None and self._ground.adapting.saves(iteration + 1)
        checkpoint = self._keeper.after(iteration + 1, wanted=moves)
        if self._recalling:
            self._recalling.keep(iteration + 1, self._resumed_from, square_sum, loss)
        if checkpoint or self._recalling:
            start, end = end, time.monotonic()
            recorder.op("checkpoint", None, start, end)
        recorder.finish(end)
        if self._progress:
            self._progress.add(iteration)
        give_back(iteration)

    def _optimize(self, iteration: int) -> tuple[float, float]:
        """Step the optimizer; returns its start and end (time.monotonic())."""
        start = time.monotonic()
        optimizer = self._trained.optimizer
        for group in optimizer.param_groups:
            group["lr"] = rate_of(self._ground.job, iteration)
        optimizer.step()
        self._trained.stage.cast_again()
        self._ground.device.settle()
        return start, time.monotonic()

    def _emit_state(self, state: RankState) -> None:
        event = Rank(rank=self._ground.me.rank, state=state, pid=os.getpid(), t=time.time())
        self._ground.events.put(event)

    def _report(self, startup_s: float) -> None:
        """The first rank gathers what all measured and sends the result; the others wait until it has."""
        ground, saved = self._ground, self._keeper.close()
        share_measured(ground, self._trained.stage, self._prefill)
        ground.mesh.barrier("stats")
        if ground.is_first:
            own = {
                "validation": self._validation.results if self._validation else [],
                "resumed_from": self._resumed_from,
                "checkpoints": saved,
                "startup_s": round(startup_s, 3),
            }
            ground.events.put(Result(**result_of(ground, self._reports.losses, own)))
        ground.mesh.barrier("end")
        leave_last(ground)


def leave_with(life_fd: int) -> None:
    """End this process as soon as the host is gone: its end of the pipe `life_fd` closes with it."""

    def watch() -> None:
        os.read(life_fd, 1)
        os._exit(EXIT_FAILED)

    threading.Thread(target=watch, name="life", daemon=True).start()
