"""The role of each rank after a start: as at launch, or on fewer nodes because one did not return."""

from dataclasses import dataclass, replace
from typing import Any

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
    """The part of a `recovery` event about a change to a smaller layout.

    left : ranks that are in it no more. iteration_s : of an iteration as predicted, with it and before.
    job : its document. seats : pipeline and stage of each rank that is in it.
    dcs_of_rank : by rank that is in it, the data centre of each stage of its pipeline.
    """
    has = {a.rank for a in now.ranks}
    return {
        "left": [a.rank for a in before.ranks if a.rank not in has],
        "layout": {
            "why": why, "pipelines": now.job.pipelines, "stages": now.job.stages,
            "microbatches": now.job.microbatches_of_step, "gpus": len(now.ranks),
            "iteration_s": predict(now.job).iteration_s,
            "job": now.job.model_dump(mode="json", exclude_none=True),
            "seats": {str(a.rank): [a.pipeline, a.stage] for a in now.ranks},
            "dcs_of_rank": {str(a.rank): list(now.job.dcs_of_pipeline[a.pipeline]) for a in now.ranks},
            "before": {
                "pipelines": before.job.pipelines, "stages": before.job.stages,
                "microbatches": before.job.microbatches_of_step, "gpus": len(before.ranks),
                "iteration_s": predict(before.job).iteration_s,
            },
        },
    }  # fmt: skip


def roles(spec: LaunchSpec) -> dict[int, tuple[int, int]]:
    """By rank, its part of the model: its stage, and the number of stages.

    Its saved state is of that part only.
    """
    return {a.rank: (a.stage, spec.job.stages) for a in spec.ranks}
