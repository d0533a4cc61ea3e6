"""A new schedule for the measured times, if one is better than the present one."""

from dataclasses import dataclass

from engine.errors import Infeasible
from engine.job.adapt.measured import Measured, planned, scenario_as_measured
from engine.job.job import TrainJob
from engine.job.planned import repeated
from engine.job.predict import predict
from engine.schedule import Schedule, Search, build
from engine.schedule.check import fault_of
from engine.schedule.registry import SEARCHING
from engine.schedule.scenario import Scenario

LEAST_GAIN = 0.01  # share by which an iteration must become shorter for another schedule to be taken


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplanResult:
    """The result of re-planning; seconds of an iteration on the measured times.

    schedule : the better one; None: the present one stays.
    policy : that was asked.
    planned_s : what the present schedule was expected to take so far.
    before_s, after_s : with the present schedule, and with the one that runs from now on.
    expected : milliseconds by quantity that this one counts on.
    """

    schedule: Schedule | None
    policy: str
    planned_s: float
    before_s: float
    after_s: float
    expected: Measured


def replan(
    job: TrainJob,
    present: Schedule,
    expected: Measured,
    measured: Measured,
    sums_s: tuple[float, ...] | None = None,
) -> ReplanResult:
    """Plan with what was measured instead of what was expected, both in milliseconds by quantity.

    The layers of a model stay where they are, and so do its connections: the new schedule has the traversal,
    the chunks and the sharing of the present one.

    sums_s : seconds in which the replicas of each stage sum over the measured links; None: as predicted.
    """
    assert job.failures.adapt is not None
    policy = (
        job.pipeline_strategy.policy if job.failures.adapt.policy == "same" else job.failures.adapt.policy
    )
    scenario = as_taken(job, present, measured)
    before_s = _iteration_s(job, present, scenario, sums_s)
    schedule = _built(job, present, scenario, policy)
    after_s = before_s if schedule is None else _iteration_s(job, schedule, scenario, sums_s)
    if after_s > before_s * (1 - LEAST_GAIN):
        schedule, after_s = None, before_s
    return ReplanResult(
        schedule=schedule,
        policy=policy,
        before_s=before_s,
        after_s=after_s,
        expected=planned(scenario, schedule or present),
        planned_s=_iteration_s(job, present, as_taken(job, present, expected)),
    )


def as_taken(job: TrainJob, present: Schedule, taken: Measured) -> Scenario:
    """The job's scenario where what `present` counts on takes the times of `taken`, in milliseconds."""
    counted = planned(job.scenario, present)
    factors = {name: ms / counted[name] for name, ms in taken.items() if name in counted}
    return scenario_as_measured(job, present.sharing, factors)


def _iteration_s(
    job: TrainJob, schedule: Schedule, scenario: Scenario, sums_s: tuple[float, ...] | None = None
) -> float:
    return predict(job, schedule=schedule, scenario=scenario, allreduce_s=sums_s).iteration_s


def _built(job: TrainJob, present: Schedule, scenario: Scenario, policy: str) -> Schedule | None:
    """The schedule of the policy that re-plans; None where it has none of the present one's shape."""
    changed: dict[str, object] = {"policy": policy, "microbatches": job.cell.microbatches}
    if policy in SEARCHING:
        changed |= {"traversal": present.traversal.name, "chunks": present.chunks}
        if policy != job.pipeline_strategy.policy:
            changed |= {"contention": None, "recompute_rule": None}
    one_pass = scenario.model_copy(update=changed)
    built = build(one_pass, Search(seconds=job.pipeline_strategy.time_limit_s, seed=one_pass.seed))
    if isinstance(built, Infeasible):
        return None
    schedule = built.schedule
    same = schedule.traversal == present.traversal and schedule.sharing == present.sharing
    if not same or fault_of(one_pass, schedule):
        return None
    return repeated(schedule, job.cell.accumulation)
