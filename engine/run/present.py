"""The schedule in force and the executor that runs this GPU's part of it; both may change between steps."""

import numpy as np
import torch

from engine.run.building import Ground, Trained
from engine.schedule.ir import OpKind, Schedule
from engine.schedule.timing import durations
from engine.serve.prefill_worker import PrefillWorker
from engine.train.corpus import Corpus, samples_of
from engine.train.executor import Executor, Part, Sizes, work_of
from engine.train.wiring import Wiring


def ops_of(schedule: Schedule, ground: Ground) -> int:
    """How many ops a schedule has for this GPU."""
    return len(schedule.order(ground.me.pipeline % ground.job.cell.cell_pipelines, ground.me.stage))


class Present:
    """What runs an iteration on this GPU.

    prefill_worker : has the GPU while no op runs; None in a job without prefill.

    Attributes
    ----------
    executor : of the schedule in force.
    """

    def __init__(
        self, ground: Ground, trained: Trained, corpus: Corpus, prefill_worker: PrefillWorker | None
    ) -> None:
        self._ground, self._trained, self._corpus = ground, trained, corpus
        self._prefill_worker = prefill_worker
        self._schedule, self._disturbed = ground.schedule, False
        job, me = ground.job, ground.me
        every = range(job.cell.microbatches_of_step)
        rows = [samples_of(me.pipeline, m, len(every), job.cell.micro_batch) for m in every]
        self._samples = np.concatenate(rows)
        self.executor = self._new_executor()

    def adjust(self, iteration: int) -> None:
        """Go over to what holds from `iteration` on: another schedule, or a disturbance that begins."""
        ground = self._ground
        schedule = ground.adapting.before(iteration) if ground.adapting else None
        disturbance = ground.spec.disturbance
        disturbs = not self._disturbed and disturbance.slows and iteration >= disturbance.since
        if disturbs:
            self._disturbed = True
            ground.mesh.disturb()
        if schedule is not None:
            self._schedule = schedule
            if self._prefill_worker:
                self._prefill_worker.reorder(since=iteration, ops=ops_of(schedule, ground))
        if disturbs or schedule is not None:
            self.executor = self._new_executor()

    def _new_executor(self) -> Executor:
        ground, trained, schedule = self._ground, self._trained, self._schedule
        job, me = ground.job, ground.me
        wiring = Wiring(job, schedule, me, ground.mesh, ground.device)
        part = Part(
            work=work_of(schedule, me.pipeline % job.cell.cell_pipelines, me.stage, self._lasts_s),
            positions=wiring.positions,
            links=wiring.links,
            late=schedule.recompute_gate == "late",
        )
        return Executor(
            trained.stage,
            part,
            Sizes.of(job),
            batch=self._batch,
            counted=lambda step: self._corpus.counted(step, job.cell.global_batch),
            gradients=trained.gradients,
            recorder=ground.recorder,
            prefill_worker=self._prefill_worker,
            device=ground.device,
            tp=ground.tp,
        )

    def _batch(self, iteration: int) -> tuple[torch.Tensor, torch.Tensor]:
        tokens, targets = self._corpus.batch(iteration, self._ground.job.cell.global_batch, self._samples)
        return torch.from_numpy(tokens), torch.from_numpy(targets)

    def _lasts_s(self, kind: OpKind) -> float | None:
        ground, schedule = self._ground, self._schedule
        if ground.job.device.kind != "emulated":
            return None
        pipeline, stage = ground.me.pipeline, ground.me.stage
        profile_ms = durations(ground.job.scenario, schedule.chunks, split=schedule.has(OpKind.W))
        slower = ground.spec.disturbance.of_op(pipeline, stage, kind.name) if self._disturbed else 1.0
        return float(profile_ms[kind, stage]) / 1e3 * slower
