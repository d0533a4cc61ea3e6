"""The role of each rank after a start: as at launch, or in another layout.

A run changes its layout because a node did not return (engine.job.recovery.smaller), or because another one
is faster (engine.job.adapt.layouts).
"""

from dataclasses import dataclass, replace
from typing import Any

from engine.inputs import parse
from engine.job.events.incidents import Cut, GpuOfRun, LayoutChanged, NewLayout
from engine.job.job import TrainJob
from engine.job.launch import LaunchSpec, RankAssignment
from engine.job.predict import predict

NOT_NEEDED = "the run continues with fewer GPUs, without this one"


@dataclass(frozen=True, slots=True, kw_only=True)
class Layout:
    """The job as it is cut now, and its ranks.

    A rank is a GPU of the launch and keeps its number; its pipeline and stage may be others than then.

    times : what ops and transfers take in it by what was measured before, as rows
        (engine.job.adapt.measured); empty: as the job says.
    conditions : of all GPUs and links that were measured so far, as rows (engine.job.adapt.layouts).
    """

    job: TrainJob
    ranks: tuple[RankAssignment, ...]
    times: tuple[tuple[Any, ...], ...] = ()
    conditions: tuple[tuple[Any, ...], ...] = ()

    def applied(self, spec: LaunchSpec) -> LaunchSpec:
        """The launch spec of a machine, `spec`, in this layout: none of its ranks may be in it any more."""
        within = {a.rank for a in self.ranks}
        local = tuple(rank for rank in spec.local if rank in within)
        return replace(
            spec,
            job=self.job,
            ranks=self.ranks,
            reserve=(),  # the leading host knows it (engine.job.recovery.reserve)
            local=local,
            times=self.times,
            conditions=self.conditions,
        )

    @classmethod
    def of_event(cls, spec: LaunchSpec, event: LayoutChanged) -> "Layout":
        """The layout to which a run moves, on GPUs of `spec`. Raises InputError where it is none."""
        positions = event.layout.position_of_rank or {}
        ranks = tuple(
            replace(a, pipeline=at[0], stage=at[1])
            for a in spec.gpus
            if (at := positions.get(str(a.rank))) is not None
        )
        job = parse(TrainJob, event.layout.job)
        return cls(job=job, ranks=ranks, times=event.times or (), conditions=event.conditions or ())


def change(
    before: LaunchSpec, now: LaunchSpec, why: str, iteration_s: tuple[float, float] | None = None
) -> dict[str, Any]:
    """The fields of a `recovery` or `layout_changed` event about a change of the layout: `left` (of GPUs that
    were in it), `joined` (that were not), and `layout`.

    iteration_s : what an iteration takes before and now; by default as the jobs predict it.
    """
    before_s, now_s = iteration_s or (predict(before.job).iteration_s, predict(now.job).iteration_s)
    had, has = {a.rank for a in before.ranks}, {a.rank for a in now.ranks}
    layout = NewLayout(
        why=why,
        **_cut(now, now_s),
        before=Cut(**_cut(before, before_s)),
        job=now.job.to_document(),
        position_of_rank={str(a.rank): (a.pipeline, a.stage) for a in now.ranks},
        dcs_of_rank={str(a.rank): tuple(now.job.dcs_of_pipeline[a.pipeline]) for a in now.ranks},
    )
    joined = tuple(
        GpuOfRun(rank=a.rank, dc=a.dc_name, node=a.node, gpu=a.gpu) for a in now.ranks if a.rank not in had
    )
    return {
        "left": tuple(a.rank for a in before.ranks if a.rank not in has),
        "joined": joined or None,
        "layout": layout,
    }


def _cut(spec: LaunchSpec, iteration_s: float) -> dict[str, Any]:
    return {
        "pipelines": spec.job.cell.pipelines,
        "stages": spec.job.cell.stages,
        "microbatches": spec.job.cell.microbatches_of_step,
        "gpus": len(spec.ranks),
        "iteration_s": iteration_s,
    }


def roles(spec: LaunchSpec) -> dict[int, tuple[int, ...]]:
    """By rank, its part of the model: its stage, and the number of stages.

    Its saved state is of that part only. With ZeRO-1 also which of how many replicas that share it.
    """
    return {a.rank: (a.stage, spec.job.cell.stages, *_shard(spec, a)) for a in spec.ranks}


def _shard(spec: LaunchSpec, a: RankAssignment) -> tuple[int, ...]:
    if not spec.job.cell.zero:
        return ()
    near = sorted(b.pipeline for b in spec.ranks if (b.stage, b.dc) == (a.stage, a.dc))
    return near.index(a.pipeline), len(near)
