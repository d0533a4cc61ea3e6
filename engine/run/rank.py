"""One rank: sets itself up, trains step after step, and says how it went."""

import math
import os
import sys
import threading
import time
import traceback
from dataclasses import asdict
from typing import Any, NoReturn

import numpy as np
import torch

from engine.control.errors import PeerLost
from engine.errors import InputError
from engine.job.events import EventWriter
from engine.job.launch import EXIT_FINAL, EXIT_PEER_LOST
from engine.job.losses import Losses, rate_of, step_event
from engine.job.result import counted, measured_part, medians_of_stages
from engine.nn.device import device_of
from engine.nn.model import DTYPES, Stage, params_sha256
from engine.nn.one_rank import ONE_RANK, OneRank
from engine.schedule.ir import OpKind
from engine.schedule.timing import durations
from engine.serve.in_rank import prefill_of
from engine.train.adapt.follow import Follower, Leader
from engine.train.boundary import Boundary
from engine.train.checkpoint.keeper import Keeper
from engine.train.corpus import samples_of
from engine.train.executor import Executor, work_of
from engine.train.gradients import Gradients
from engine.train.memory import give_back
from engine.train.mesh import Mesh
from engine.train.recorder import Recorder
from engine.train.recovery.resume import UNTOLD, Kept, Steps
from engine.train.start import Start
from engine.train.swap.worker import train
from engine.train.totals import Background, Totals
from engine.train.validation import Validation
from engine.train.wiring import Wiring
from engine.transport import LinkLost

EXIT_FAILED = 1


def run(start: Start) -> NoReturn:
    """Run a rank to its end and leave the process; never returns."""
    try:
        if start.pulses is not None:
            start.pulses.beat(start.me.rank)
        torch.set_num_threads(1)
        if start.plan is not None:
            train(start, die)
        _Training(start).run()
    except BaseException as error:
        die(error)
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(0)  # gloo's threads have nothing more to say


def die(error: BaseException) -> NoReturn:
    """Leave the process, the last line of its output saying why."""
    if _is_loss_of_peer(error):
        print(error, file=sys.stderr, flush=True)  # noqa: T201  (the rank's own log)
        os._exit(EXIT_PEER_LOST)
    if isinstance(error, InputError):
        print(error, file=sys.stderr, flush=True)  # noqa: T201
        os._exit(EXIT_FINAL)
    traceback.print_exception(error)
    sys.stderr.flush()
    os._exit(EXIT_FINAL if isinstance(error, FloatingPointError) else EXIT_FAILED)


def _is_loss_of_peer(error: BaseException) -> bool:
    """Whether `error` only says that another rank is gone, noticed while waiting or while sending."""
    gloo = type(error) is RuntimeError and "gloo" in str(error)  # torch has no type of its own for these
    return gloo or isinstance(error, PeerLost | LinkLost)


class _Training:
    def __init__(self, start: Start) -> None:
        assert start.schedule is not None
        self._start, self._spec, self._me, self._job = start, start.spec, start.me, start.spec.job
        self._schedule = start.schedule
        self._events = EventWriter(start.events_fd)
        self._device = device_of(
            self._job.device, self._me.gpu, ranks=self._job.ranks_per_gpu, overrun=self._overrun
        )
        self._mesh = Mesh(
            self._spec, self._me, start.schedule, self._device, port=start.port, listen_fd=start.listen_fd,
            also=start.kept.peers(self._me.rank) if start.kept else (), cuts=start.cuts,
        )  # fmt: skip
        self._adapting = self._new_adapting()
        report = self._adapting.report if self._adapting else None
        self._recorder = Recorder(self._me, self._events, die, report)
        job, me, mesh = self._job, self._me, self._mesh
        self._tp = self._new_tp()
        self._stage = Stage(job, me.stage, start.schedule.traversal)
        self._tp.cut(self._stage.layers)
        self._stage.to(self._device.name)
        if job.tp == 1:  # torch's DTensors cast for each microbatch
            self._stage.keep_cast()
        self._gradients = Gradients(
            list(self._stage.chunks), group=mesh.replicas, replica=me.pipeline, replicas=job.pipelines,
            eager=job.device != "emulated", tp=self._tp, leaf_of=self._stage.leaf_of,
        )  # fmt: skip
        self._optimizer = torch.optim.AdamW(
            self._tp.groups(list(self._stage.parameters())), lr=job.lr, weight_decay=job.weight_decay,
            fused=True,
        )  # fmt: skip
        self._prefill = prefill_of(
            self._spec, me, mesh.store, device=str(self._device.name), ops=self._ops,
            span=self._recorder.prefill,
        )  # fmt: skip
        self._disturbed = False
        self._executor = self._new_executor()
        # Replicas hold the same sums, so one pipeline is enough to report them; a clip needs them everywhere.
        totals = Totals(mesh.endpoint, above=mesh.above(), below=mesh.below()) if me.leads else None
        self._totals = totals
        reports = job.clip is None and me.pipeline == 0
        self._background = Background(totals, self._step, die) if reports and totals else None
        self._boundary = Boundary(
            mesh.store, rank=me.rank, asked=start.asked, leads=me.rank == self._spec.first_rank,
            say=self._events.put,
        )  # fmt: skip
        self._keeper = Keeper(
            self._spec, me, mesh.store, start.corpus, optimizer=self._optimizer, say=self._events.put,
            layers=dict(zip(self._stage.numbers, self._stage.layers, strict=True)), tp=self._tp,
        )  # fmt: skip
        self._losses = Losses(job.spike or None)
        self._validation = self._new_validation()
        self._first, self._resumed_from = self._keeper.first_step, self._keeper.resumed_from
        self._told = threading.Condition()
        self._told_steps = self._first
        self._steps = (
            Steps(start.kept, me.rank, list(self._stage.parameters()), self._optimizer, self._device)
            if start.kept
            else None
        )
        self._startup_s = 0.0
        self._saved: dict[str, Any] | None = None
        self._samples = np.concatenate(
            [
                samples_of(me.pipeline, m, job.microbatches_of_step, job.micro_batch)
                for m in range(job.microbatches_of_step)
            ]
        )

    @property
    def _ops(self) -> int:
        """How many ops the present schedule has for this GPU."""
        return len(self._schedule.order(self._me.pipeline % self._job.cell_pipelines, self._me.stage))

    def _new_executor(self) -> Executor:
        """What runs this GPU's part of the present schedule."""
        job, me, schedule = self._job, self._me, self._schedule
        wiring = Wiring(job, schedule, me, self._mesh, self._device)
        return Executor(
            self._stage, work_of(schedule, me.pipeline % job.cell_pipelines, me.stage, self._lasts_s),
            seat=self._prefill.seat if self._prefill else None,
            places=wiring.places, links=wiring.links, dtype=DTYPES[job.dtype],
            shape=(job.micro_batch, job.model.seq, job.model.hidden),
            microbatches=job.microbatches_of_step, pipelines=job.pipelines, batch=self._batch,
            late=schedule.recompute_gate == "late", gradients=self._gradients, recorder=self._recorder,
            device=self._device, tp=self._tp,
        )  # fmt: skip

    def _new_tp(self) -> OneRank:
        if self._job.tp == 1:
            return ONE_RANK
        from engine.nn.tensor_parallel import TpGroup  # its part of torch takes seconds to import

        return TpGroup(self._me, self._job.tp, self._mesh.store, self._device)

    def _overrun(self, by_s: float) -> None:
        self._recorder.overrun(by_s)

    def _new_adapting(self) -> Follower | None:
        if self._job.adapt is None:
            return None
        store, rank = self._mesh.store, self._me.rank
        if rank != self._spec.first_rank:
            return Follower(store, rank=rank)
        return Leader(
            store, rank=rank, ranks=[a.rank for a in self._spec.ranks], job=self._job,
            schedule=self._schedule, say=self._events.put,
        )  # fmt: skip

    def _adjust(self, iteration: int) -> None:
        """Go over to what holds from `iteration` on: another schedule, or a disturbance that begins."""
        schedule = self._adapting.before(iteration) if self._adapting else None
        disturbance = self._spec.disturbance
        disturbs = not self._disturbed and disturbance.slows and iteration >= disturbance.since
        if disturbs:
            self._disturbed = True
            self._mesh.disturb()
        if schedule is not None:
            self._schedule = schedule
            if self._prefill:
                self._prefill.seat.reorder(since=iteration, ops=self._ops)
        if disturbs or schedule is not None:
            self._executor = self._new_executor()

    def _new_validation(self) -> Validation | None:
        held_out = self._start.corpus.held_out
        if held_out is None:
            return None
        return Validation(
            self._job, self._me, self._schedule.traversal, self._stage, self._mesh, held_out, self._device,
            leads=self._me.rank == self._spec.first_rank, say=self._events.put, tp=self._tp,
        )  # fmt: skip

    def _same_text(self) -> None:
        """Where data centres have files of their own, every rank must have the same text in them."""
        if not isinstance(self._job.data, dict):
            return
        mine, store = self._start.corpus.fingerprint(), self._mesh.store
        if self._me.rank == self._spec.first_rank:
            store.set("data", mine)
        elif store.get("data").decode() != mine:
            name = self._me.dc_name
            first = next(a.dc_name for a in self._spec.ranks if a.rank == self._spec.first_rank)
            raise InputError(f"data.{name}", self._job.data[name], f"is not the same text as that in {first}")

    def run(self) -> None:
        self._same_text()
        if self._steps:
            self._recall(self._steps)
        self._stage.cast_again()  # a checkpoint or the last life may have changed the weights
        self._state("ready")
        self._mesh.barrier("ready")
        self._state("running")
        self._startup_s = time.time() - self._start.began
        if self._steps:
            self._make_up(self._steps.kept)
        for iteration in range(self._first, self._job.steps):
            if self._boundary.passed(iteration):
                self._keeper.end(iteration)
                break
            self._adjust(iteration)
            self._iterate(iteration)
            if self._validation:
                self._validation.after(iteration + 1)
        if self._prefill:
            self._prefill.close()
        self._recorder.drain()
        if self._background:
            self._background.close()
        self._saved = self._keeper.close()
        self._report()
        self._mesh.close()
        self._events.close()

    def _recall(self, steps: Steps) -> None:
        """Begin where the last life of the run's ranks has come to."""
        header, kept = steps.recalled(self._mesh.endpoint), steps.kept
        for told in kept.told:
            self._losses.add(*told)
        if self._validation:
            self._validation.results.extend(kept.validation)
        if header is None:
            if self._first:  # from a checkpoint: what it leads to is kept as the state after any step is
                steps.keep(self._first, self._resumed_from, *UNTOLD)
            return
        self._first, self._resumed_from = header.step, header.resumed_from
        retell = kept.life.retell and not math.isnan(header.loss)
        self._told_steps = header.step - retell
        self._keeper.sound(self._told_steps)
        if retell and self._background:
            self._background.contribute(header.step - 1, header.square_sum, header.loss)

    def _make_up(self, kept: Kept) -> None:
        """Do what the last life left undone after the step with which this one begins."""
        if not kept.in_memory or not self._first:
            return
        if kept.life.saved_step < self._first:
            self._keeper.after(self._first)
        if self._validation and kept.life.validated_step < self._first:
            self._validation.after(self._first)

    def _keep(self, steps: Steps, step: int, square_sum: float, loss: float) -> None:
        """Keep the state after `step` steps; what rides with it may only be what is lost with one more."""
        if self._background and self._me.rank == self._spec.first_rank:
            with self._told:
                self._told.wait_for(lambda: self._told_steps >= step - 1)
        steps.keep(step, self._resumed_from, square_sum, loss)

    def _iterate(self, iteration: int) -> None:
        recorder, gradients = self._recorder, self._gradients
        recorder.begin(iteration)
        self._executor.run(iteration)
        loss, start, end = gradients.all_reduce(self._executor.loss, recorder.clock.unix)
        if self._job.pipelines > 1:
            recorder.op("all_reduce", None, start, end)
        square_sum = gradients.square_sum()
        self._clip_or_report(iteration, square_sum, loss)
        start = time.monotonic()
        self._set_rate(iteration)
        self._optimizer.step()
        self._stage.cast_again()
        self._device.settle()
        end = time.monotonic()
        recorder.op("optimizer", None, start, end)
        kept = self._keeper.after(iteration + 1)
        if self._steps:
            self._keep(self._steps, iteration + 1, square_sum, loss)
        if kept or self._steps:
            start, end = end, time.monotonic()
            recorder.op("checkpoint", None, start, end)
        recorder.finish(end)
        give_back(iteration)

    def _set_rate(self, iteration: int) -> None:
        for group in self._optimizer.param_groups:
            group["lr"] = rate_of(self._job, iteration)

    def _clip_or_report(self, iteration: int, square_sum: float, loss: float) -> None:
        clip = self._job.clip
        if clip is None:
            if self._background:
                self._background.contribute(iteration, square_sum, loss)
            return
        if self._totals:
            square_sum, loss = self._totals.agree(iteration, square_sum, loss)
        square_sum, loss = self._tp.agreed(square_sum, loss)
        self._gradients.scale(min(1.0, clip / (square_sum**0.5 + 1e-6)))
        if self._me.pipeline == 0:
            self._step(iteration, square_sum, loss)

    def _step(self, iteration: int, square_sum: float, loss: float) -> None:
        if self._me.rank != self._spec.first_rank:
            return
        norm, now = square_sum**0.5, time.time()
        self._losses.add(iteration, loss, norm)
        self._keeper.sound(iteration + 1)
        if self._steps:
            self._steps.kept.board.note(iteration, loss, norm, now)
        with self._told:
            self._told_steps = iteration + 1
            self._told.notify_all()
        self._events.put(step_event(self._job, iteration, loss, norm, now))

    def _batch(self, iteration: int) -> tuple[torch.Tensor, torch.Tensor]:
        tokens, targets = self._start.corpus.batch(iteration, self._job.global_batch, self._samples)
        return torch.from_numpy(tokens), torch.from_numpy(targets)

    def _lasts_s(self, kind: OpKind) -> float | None:
        if self._job.device != "emulated":
            return None
        schedule, stage = self._schedule, self._me.stage
        profile_ms = durations(self._job.scenario, schedule.chunks, split=schedule.has(OpKind.W))
        slower = self._spec.disturbance.of_op(self._me.pipeline, stage, kind.name) if self._disturbed else 1.0
        return float(profile_ms[kind, stage]) / 1e3 * slower

    def _state(self, state: str) -> None:
        self._events.put(
            {
                "kind": "rank",
                "rank": self._me.rank,
                "state": state,
                "detail": "",
                "exit_code": None,
                "pid": os.getpid(),
                "t": time.time(),
            }
        )

    def _report(self) -> None:
        """The first rank gathers what all measured and sends the result; the others wait until it has."""
        digests = self._stage.digests(self._tp)
        mine = {**self._recorder.stats(), "egress": self._mesh.egress(), "digests": digests}
        if self._device.apart:
            mine["peak_gpu_bytes"] = self._device.peak_bytes()
        if self._prefill:
            mine["prefill"] = asdict(self._prefill.seat.waits)
        self._mesh.share("stats", mine)
        self._mesh.barrier("stats")
        if self._me.rank == self._spec.first_rank:
            self._events.put({"kind": "result", **self._result(self._mesh.shared("stats"))})
        self._mesh.barrier("end")
        if self._me.rank == self._spec.first_rank:
            # The store lives in this process: leave last, so that nobody's answer is cut off.
            deadline = time.monotonic() + 5.0
            while self._mesh.store.add("left", 0) < len(self._spec.ranks) - 1 and time.monotonic() < deadline:
                time.sleep(0.01)
        else:
            self._mesh.store.add("left", 1)

    def _result(self, stats: list[dict[str, Any]]) -> dict[str, Any]:
        digests = {
            int(n): sha for rank in stats for n, sha in rank["digests"].items() if rank["pipeline"] == 0
        }
        return {
            "steps": len(self._losses.losses),
            "losses": list(self._losses.losses),
            "grad_norms": list(self._losses.norms),
            "validation": self._validation.results if self._validation else [],
            "params_sha256": params_sha256(digests),
            **measured_part(self._job, stats),
            "resumed_from": self._resumed_from,
            "checkpoints": self._saved,
            "startup_s": round(self._startup_s, 3),
            **({"adaptations": self._adapting.told} if self._adapting else {}),
            "median_s_of_stage": medians_of_stages(self._job, stats),
            "counted": counted(stats),
        }


def leave_with(life_fd: int) -> None:
    """End this process as soon as the host is gone: its end of the pipe `life_fd` closes with it."""

    def watch() -> None:
        os.read(life_fd, 1)
        os._exit(EXIT_FAILED)

    threading.Thread(target=watch, name="life", daemon=True).start()
