"""Compares data and pipeline parallelism over the WAN by CrossPipe's performance model.

Data parallel: every pipeline lies in one data centre and all gradients cross the WAN once an iteration.
Pipeline parallel: every pipeline crosses it, with the activations and gradients of each microbatch, and
replicas of a stage lie in one data centre. What both do inside a data centre (tensor parallelism, gradients
of replicas) is left out here; `cross_dc_compare` adds it.

Source: the CrossPipe slides (USENIX ATC 2025), "Cross-DC DP vs. Cross-DC PP".
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from engine.errors import Infeasible
from engine.schedule.scenario import Link, Scenario, Sends, Times
from engine.schedule.traversal import Traversal
from engine.simulate import SimulationResult, simulate


@dataclass(frozen=True, slots=True, kw_only=True)
class CrossDcJob:
    """One training job over `dcs` equal data centres.

    times : of one microbatch on each stage, in seconds; a policy that does not split runs B for backward +
        weight.
    gradient_bytes : of the whole model.  activation_bytes : of one microbatch, between two stages.
    replicas : pipelines in total (n_DP).
    sends : whether a send lets its GPU go on at once, or holds it until the message has arrived.
    memory, full : most microbatches that a stage holds in flight, and of them with all activations: one
        number for all stages, or one per stage.
    """

    stages: int
    replicas: int
    microbatches: int
    times: Times
    gradient_bytes: float
    activation_bytes: float
    dcs: int = 2
    memory: int | tuple[int, ...] | None = None
    full: int | tuple[int, ...] | None = None
    sends: Sends = "overlapped"


@dataclass(frozen=True, slots=True, kw_only=True)
class Boundary:
    """The WAN between two adjacent data centres: its full bandwidth, per direction."""

    bytes_per_s: float
    latency_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Choice:
    """The time of an iteration, its schedule's policy, and what crosses the WAN.

    busy_s : of an average GPU, in ops.
    wan_bytes : over all boundaries, both directions.
    """

    seconds: float
    policy: str
    busy_s: float
    wan_bytes: float


def data_parallel(job: CrossDcJob, wan: Boundary, policies: Sequence[str] = ("zb-v",)) -> Choice | Infeasible:
    """The iteration with gradients over the WAN: one pipeline in a data centre, then a ring over the centres.

    The ring reduces and gathers: 2·(n − 1)/n of the gradients cross each boundary in each direction, in
    2·(n − 1) steps. On a row of data centres the ring goes out over every second one and back over the
    others, so a step of more than two passes at most two boundaries.
    """
    result = _best(job, policies, [0] * job.stages, Link())
    if isinstance(result, Infeasible):
        return result
    steps = 2 * (job.dcs - 1)
    crossing_bytes = steps / job.dcs * job.gradient_bytes
    step_latency_s = min(job.dcs - 1, 2) * wan.latency_s
    return _choice(
        result,
        wan_s=crossing_bytes / wan.bytes_per_s + steps * step_latency_s,
        wan_bytes=2 * (job.dcs - 1) * crossing_bytes,
    )


def pipeline_parallel(
    job: CrossDcJob, wan: Boundary, policies: Sequence[str] = ("crosspipe-ud", "crosspipe-wave")
) -> Choice | Infeasible:
    """The iteration with pipelines over the WAN, under the best of `policies`.

    Every pipeline has its own share of the boundary, so a transfer takes replicas · bytes / rate.
    """
    transfer_s = job.replicas * job.activation_bytes / wan.bytes_per_s
    dc_of_stage = [stage * job.dcs // job.stages for stage in range(job.stages)]
    result = _best(job, policies, dc_of_stage, Link(latency=wan.latency_s, transfer=transfer_s))
    if isinstance(result, Infeasible):
        return result
    crossings = 2 * job.microbatches * job.replicas * _crossings(result.traversal, dc_of_stage)
    return _choice(result, wan_s=0.0, wan_bytes=crossings * job.activation_bytes)


def _choice(result: SimulationResult, *, wan_s: float, wan_bytes: float) -> Choice:
    """`wan_s` follows the schedule."""
    timeline = result.timeline
    assert timeline is not None
    return Choice(
        seconds=timeline.makespan + wan_s,
        policy=result.scenario.policy,
        busy_s=timeline.makespan * timeline.utilization(),
        wan_bytes=wan_bytes,
    )


def _crossings(path: Traversal, dc_of_stage: Sequence[int]) -> int:
    """How many boundaries a microbatch crosses on its way forward."""
    return int(np.abs(np.diff(np.array(dc_of_stage)[path.stage_of])).sum())


def _best(
    job: CrossDcJob, policies: Sequence[str], dc_of_stage: list[int], wan: Link
) -> SimulationResult | Infeasible:
    """The fastest policy's result; where none fits, why the last does not."""
    results = [simulate(_scenario(job, policy, dc_of_stage, wan)) for policy in policies]
    feasible = [result for result in results if result.makespan is not None]
    if not feasible:
        return Infeasible(reason=results[-1].reason or "no policy fits")
    return min(feasible, key=lambda result: result.makespan or 0.0)


def _scenario(job: CrossDcJob, policy: str, dc_of_stage: list[int], wan: Link) -> Scenario:
    return Scenario(
        stages=job.stages,
        dc_of_stage=dc_of_stage,
        microbatches=job.microbatches,
        policy=policy,
        wan=wan,
        times=job.times,
        memory_limit=list(job.memory) if isinstance(job.memory, tuple) else job.memory,
        full_limit=list(job.full) if isinstance(job.full, tuple) else job.full,
        sends=job.sends,
        spans=False,
    )
