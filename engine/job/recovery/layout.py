"""The role of each rank after a start: as at launch, or on fewer nodes because one did not return."""

from dataclasses import dataclass, replace
from typing import Any

from engine.job.events.incidents import Cut, SmallerLayout
from engine.job.job import TrainJob
from engine.job.launch import LaunchSpec, RankAssignment
from engine.job.predict import predict

NOT_NEEDED = "the run continues with fewer GPUs, without this one"


@dataclass(frozen=True, slots=True, kw_only=True)
class Layout:
    """The job as it is cut now, and its ranks.

    A rank is a GPU of the launch and keeps its number; its pipeline and stage may be others than then.
    """

    job: TrainJob
    ranks: tuple[RankAssignment, ...]

    def applied(self, spec: LaunchSpec) -> LaunchSpec:
        """The launch spec of a machine, `spec`, in this layout: none of its ranks may be in it any more."""
        within = {a.rank for a in self.ranks}
        local = tuple(rank for rank in spec.local if rank in within)
        return replace(spec, job=self.job, ranks=self.ranks, local=local)


def change(before: LaunchSpec, now: LaunchSpec, why: str) -> dict[str, Any]:
    """The fields of a `recovery` event about a change to a smaller layout: `left` and `layout`."""
    has = {a.rank for a in now.ranks}
    layout = SmallerLayout(
        why=why,
        **_cut(now),
        before=Cut(**_cut(before)),
        job=now.job.to_document(),
        position_of_rank={str(a.rank): (a.pipeline, a.stage) for a in now.ranks},
        dcs_of_rank={str(a.rank): tuple(now.job.dcs_of_pipeline[a.pipeline]) for a in now.ranks},
    )
    return {"left": tuple(a.rank for a in before.ranks if a.rank not in has), "layout": layout}


def _cut(spec: LaunchSpec) -> dict[str, Any]:
    return {
        "pipelines": spec.job.cell.pipelines,
        "stages": spec.job.cell.stages,
        "microbatches": spec.job.cell.microbatches_of_step,
        "gpus": len(spec.ranks),
        "iteration_s": predict(spec.job).iteration_s,
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
