"""The schedule of a job: its policy's, or the one that the document gives as text."""

from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from engine.errors import Infeasible, InputError
from engine.job.job import TrainJob
from engine.job.sections.paths import path_of
from engine.schedule import Schedule, Search, build
from engine.schedule.check import fault_of
from engine.schedule.ir import NO_OP
from engine.schedule.registry import SEARCHING
from engine.schedule.scenario import BEST
from engine.schedule.search import Built
from engine.schedule.text import parse_schedule
from engine.schedule.timing import DeadlockError, time_ops
from engine.schedule.traversal import Traversal


def schedule_of(job: TrainJob) -> Schedule:
    """The schedule of one iteration of the job: `accumulation` passes, one after the other.

    Raises
    ------
    InputError
        The job's limits leave no schedule, what the job gives as text is none, or the model has too few
        layers or the data centres no link for it.
    """
    schedule = _given(job, job.pipeline_strategy.schedule) if job.pipeline_strategy.schedule else _built(job)
    _check(job, schedule)
    return repeated(schedule, job.cell.accumulation)


def wants_search(job: TrainJob) -> bool:
    """Whether the job's schedule is still to be searched for. With strategy swap there is none."""
    if job.swap_strategy:
        return False
    return job.pipeline_strategy.schedule is None and job.pipeline_strategy.policy in SEARCHING


def pinned(job: TrainJob, search: Search | None = None) -> TrainJob:
    """The job with its schedule as text, where a search made it: another search might end otherwise.

    Parameters
    ----------
    search : limits of the search and wires to it; by default the job's own limits.
    """
    if not wants_search(job):
        return job
    schedule = _built(job, search)
    _check(job, schedule)
    return job.with_fields("strategy", schedule=str(schedule))


def with_rule(job: TrainJob) -> TrainJob:
    """The job with the fastest rule of contention by its name, where it asks for the best one.

    None where its pipelines share no link, where a search tries the rules itself, or where orders are given.
    A job of strategy swap has no rule.

    Raises InputError as `schedule_of`.
    """
    if job.swap_strategy or job.pipeline_strategy.contention != BEST:
        return job
    rules = job.pipeline_strategy
    has_orders = rules.schedule is not None or rules.policy in SEARCHING
    return job.with_fields("strategy", contention=None if has_orders else _as_built(job).chosen.contention)


def repeated(schedule: Schedule, passes: int) -> Schedule:
    """`passes` times the schedule with ever new microbatches, each pass after the one before on every GPU."""
    if passes == 1:
        return schedule
    micro = schedule.microbatches
    total = micro * passes

    def numbered(codes: NDArray[np.int32], one_pass: int) -> NDArray[np.int32]:
        rest, microbatch = np.divmod(codes, micro)
        return rest * total + microbatch + one_pass * micro

    ops = [
        np.where(schedule.ops == NO_OP, NO_OP, numbered(schedule.ops >> 2, i) * 4 + (schedule.ops & 3))
        for i in range(passes)
    ]
    links = {
        link: np.concatenate([numbered(codes, i) for i in range(passes)]).astype(np.int32)
        for link, codes in schedule.link_order.items()
    }
    joined = _left_aligned(np.concatenate(ops, axis=2)).astype(np.int32)
    return replace(schedule, microbatches=total, ops=joined, link_order=links)


def _left_aligned(ops: NDArray[np.int32]) -> NDArray[np.int32]:
    """Every row's ops first, its padding last."""
    order = np.argsort(ops == NO_OP, axis=2, kind="stable")
    return np.take_along_axis(ops, order, axis=2)


def _built(job: TrainJob, search: Search | None = None) -> Schedule:
    return _as_built(job, search).schedule


def _as_built(job: TrainJob, search: Search | None = None) -> Built:
    try:
        built = build(job.pass_scenario, search)
    except InputError as error:  # of the scenario's field
        raise InputError(path_of(error.field), error.value, error.allowed) from None
    if isinstance(built, Infeasible):
        raise InputError("strategy.policy", job.pipeline_strategy.policy, f"infeasible: {built.reason}")
    return built


def _given(job: TrainJob, text: str) -> Schedule:
    try:
        schedule = parse_schedule(text)
    except ValueError as error:
        raise InputError("strategy.schedule", text, str(error)) from None
    scenario = job.pass_scenario
    if fault := fault_of(scenario, schedule):
        raise InputError("strategy.schedule", text, fault)
    try:
        time_ops(scenario, schedule)
    except DeadlockError as error:
        raise InputError("strategy.schedule", text, str(error)) from None
    return schedule


def _check(job: TrainJob, schedule: Schedule) -> None:
    error = job.chunk_without_layer(schedule.chunks)
    if error is not None:
        raise error
    if schedule.traversal.wraps:
        _check_ends(job, schedule.traversal, "a loop crosses from {} to {}, but no link joins them")
    elif job.model.shape.has.tied:
        shared = "stages in {} and {} share the embedding, whose gradients they sum, but no link joins them"
        _check_ends(job, schedule.traversal, shared)


def _check_ends(job: TrainJob, traversal: Traversal, allowed: str) -> None:
    """Refuse a job whose last and first position are in data centres without a link."""
    first, last = traversal.positions[0][0], traversal.positions[-1][0]
    for dcs in job.dcs_of_pipeline:
        if dcs[last] != dcs[first] and job.between(dcs[last], dcs[first]) is None:
            names = [job.datacenters[dc].name for dc in (dcs[last], dcs[first])]
            raise InputError("links", [link.between for link in job.links], allowed.format(*names))
