"""Builds the parts of a rank that trains in a pipeline: first what it stands on, then what it trains."""

import os
from dataclasses import dataclass

from engine.job.backends import backend_of
from engine.job.event_writer import EventWriter
from engine.job.job import TrainJob
from engine.job.launch import LaunchSpec, RankAssignment
from engine.nn.device import Device, device_of
from engine.nn.model import Stage
from engine.nn.one_rank import ONE_RANK, OneRank
from engine.schedule.ir import Schedule
from engine.serve.in_rank import RankPrefill, prefill_of
from engine.train.adapt.follow import Follower
from engine.train.adapt.lead import Leader
from engine.train.direct import ENVIRONMENT
from engine.train.gradients import Gradients
from engine.train.mesh import Mesh
from engine.train.optimizer import Optimizer, adamw
from engine.train.recorder import Recorder
from engine.train.start import Die, Start
from engine.train.validation import Validation
from engine.train.zero import ShardedAdamW, ShardNorm, ShardSums, Sharing


@dataclass(frozen=True, slots=True, kw_only=True)
class Ground:
    """What a rank stands on: where it computes, how it reaches the others, and whom it tells.

    schedule : with which the run begins.  adapting : None in a job that does not adapt.
    """

    spec: LaunchSpec
    me: RankAssignment
    schedule: Schedule
    events: EventWriter
    device: Device
    mesh: Mesh
    tp: OneRank
    recorder: Recorder
    adapting: Follower | None

    @property
    def job(self) -> TrainJob:
        """What is trained."""
        return self.spec.job

    @property
    def is_first(self) -> bool:
        """Whether this is the run's first rank, which speaks for all."""
        return self.me.rank == self.spec.first_rank


@dataclass(frozen=True, slots=True, kw_only=True)
class Trained:
    """The part of the model that this rank trains."""

    stage: Stage
    gradients: Gradients
    optimizer: Optimizer


def ground_of(start: Start, die: Die) -> Ground:
    """Join this rank to the others. `die` ends the process; threads call it where they fail."""
    spec, me, job, schedule = start.spec, start.me, start.spec.job, start.schedule
    assert schedule is not None
    events = EventWriter(start.events_fd)

    def overrun(by_s: float) -> None:
        recorder.overrun(by_s)

    if job.cell.stages > 1 and backend_of(job, {me.dc}) == "nccl":
        for name, value in ENVIRONMENT.items():
            os.environ.setdefault(name, value)
    device = device_of(job.device.kind, me.gpu, ranks=job.device.ranks_per_gpu, overrun=overrun)
    mesh = Mesh(
        spec,
        me,
        schedule,
        device,
        port=start.port,
        listen_fd=start.listen_fd,
        also=start.kept.peers(me.rank) if start.kept else (),
        cuts=start.cuts,
    )
    adapting = _adapting(start, schedule, mesh, events)
    recorder = Recorder(me, events, die, adapting.report if adapting else None)
    return Ground(
        spec=spec,
        me=me,
        schedule=schedule,
        events=events,
        device=device,
        mesh=mesh,
        recorder=recorder,
        adapting=adapting,
        tp=_tp(me, job, mesh, device),
    )


def trained_on(ground: Ground) -> Trained:
    """Make this rank's part of the model, on its device."""
    job, me, tp = ground.job, ground.me, ground.tp
    stage = Stage(job, me.stage, ground.schedule.traversal)
    tp.cut(stage.layers)
    stage.to(ground.device.name)
    if job.cell.tp == 1:  # torch's DTensors cast for each microbatch
        stage.keep_cast()
    sharing = _sharing(ground.mesh, stage)
    scatters = sharing is not None and sharing.group is ground.mesh.replicas and not stage.tied
    gradients = Gradients(
        list(stage.chunks),
        group=ShardSums(sharing) if sharing and scatters else ground.mesh.replicas,
        replica=me.pipeline,
        replicas=job.cell.pipelines,
        eager=job.device.kind != "emulated",
        tp=ShardNorm(sharing) if sharing and scatters else tp,
        tied=stage.tied,
        ends=ground.mesh.ends,
        when_added=stage.when_added,
    )
    optimizer = adamw(stage.layers, job.optimizer, tp)
    if sharing:
        optimizer = ShardedAdamW(optimizer, sharing)
    return Trained(stage=stage, gradients=gradients, optimizer=optimizer)


def prefill_on(ground: Ground, ops: int) -> RankPrefill | None:
    """What sells the idle time between so many ops an iteration; None in a job without prefill."""
    return prefill_of(
        ground.spec,
        ground.me,
        ground.mesh.store,
        device=str(ground.device.name),
        ops=ops,
        span=ground.recorder.prefill,
    )


def validation_of(start: Start, ground: Ground, stage: Stage) -> Validation | None:
    """What takes the loss on text that is held out; None where none is."""
    held_out = start.corpus.held_out
    if held_out is None:
        return None
    return Validation(
        ground.job,
        ground.me,
        ground.schedule.traversal,
        stage,
        ground.mesh,
        held_out,
        ground.device,
        leads=ground.is_first,
        emit=ground.events.put,
        tp=ground.tp,
    )


def _sharing(mesh: Mesh, stage: Stage) -> Sharing | None:
    """How the replicas of a stage in this data centre share the optimizer's state; None where they do not."""
    if mesh.near_replicas is None:
        return None
    # As Gradients has them.
    parameters = [parameter for chunk in stage.chunks for parameter in chunk.parameters()][::-1]
    member = mesh.near.index(mesh.me.rank)
    return Sharing(mesh.near_replicas, member, len(mesh.near), parameters)


def _tp(me: RankAssignment, job: TrainJob, mesh: Mesh, device: Device) -> OneRank:
    if job.cell.tp == 1:
        return ONE_RANK
    from engine.nn.tensor_parallel import TpGroup  # its part of torch takes seconds to import

    return TpGroup(me, job.cell.tp, mesh.store, device)


def _adapting(start: Start, schedule: Schedule, mesh: Mesh, events: EventWriter) -> Follower | None:
    spec, me = start.spec, start.me
    if spec.job.failures.adapt is None:
        return None
    if me.rank != spec.first_rank:
        return Follower(mesh.store, rank=me.rank)
    reserve = start.kept.reserve if start.kept else None
    return Leader(mesh.store, spec=spec, schedule=schedule, emit=events.put, reserve=reserve)
