"""The GPUs of a run that prefill together: those of a data centre, and those that hold one model."""

from dataclasses import dataclass

from engine.job.launch import LaunchSpec, RankAssignment


@dataclass(frozen=True, slots=True, kw_only=True)
class AdjacentStages:
    """Stage `stage` of `stages`; the ranks of the stages `before` and `behind` it, None at an end."""

    stage: int
    stages: int
    before: int | None
    behind: int | None


def adjacent_stages(spec: LaunchSpec, me: RankAssignment) -> AdjacentStages:
    """The ranks that hold one model together with rank `me` (BubbleTea §5.1).

    They have the same position in adjacent cells, in one data centre. Raises ValueError in a job without
    prefill.
    """
    if spec.job.prefill is None:
        raise ValueError("the job has no prefill")
    stages, apart = spec.job.prefill.pp_degree, spec.job.cell.cell_pipelines
    stage = me.pipeline // apart % stages
    rank_at = {(other.pipeline, other.stage): other.rank for other in spec.ranks}
    return AdjacentStages(
        stage=stage,
        stages=stages,
        before=rank_at[me.pipeline - apart, me.stage] if stage else None,
        behind=rank_at[me.pipeline + apart, me.stage] if stage + 1 < stages else None,
    )


def gpus_of(spec: LaunchSpec, dc: int) -> tuple[RankAssignment, ...]:
    """The GPUs of data centre number `dc`, by pipeline, then stage.

    Its prefill coordinator runs on the host of the first.
    """
    here = [me for me in spec.ranks if me.dc == dc]
    return tuple(sorted(here, key=lambda me: (me.pipeline, me.stage)))
