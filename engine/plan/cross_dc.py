"""Compares data and pipeline parallelism over the WAN by CrossPipe's performance model.

Data parallel: every pipeline lies in one data centre and all gradients cross the WAN once an iteration.
Pipeline parallel: every pipeline crosses it, with the activations and gradients of each microbatch, and
replicas of a stage lie in one data centre. Both have the same costs inside a data centre (tensor parallelism,
gradients of replicas), which are left out.

Source: the CrossPipe slides (USENIX ATC 2025), "Cross-DC DP vs. Cross-DC PP".
"""

from dataclasses import dataclass

from engine.schedule.scenario import Link, Scenario, Times
from engine.simulate import simulate


@dataclass(frozen=True, slots=True, kw_only=True)
class CrossDcJob:
    """One training job over `dcs` equal data centres.

    forward_s : of one microbatch on one stage; the input and weight parts of its backward take as long each.
    gradient_bytes : of the whole model.  activation_bytes : of one microbatch, between two stages.
    replicas : pipelines in total (n_DP).  memory : most microbatches in flight that a stage holds.
    """

    stages: int
    replicas: int
    microbatches: int
    forward_s: float
    gradient_bytes: float
    activation_bytes: float
    dcs: int = 2
    memory: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Boundary:
    """The WAN between two adjacent data centres: its full bandwidth, per direction."""

    bytes_per_s: float
    latency_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Choice:
    """The time of an iteration and its schedule's policy."""

    seconds: float
    policy: str


def data_parallel(job: CrossDcJob, wan: Boundary, policy: str = "zb-v") -> Choice | None:
    """The iteration with gradients over the WAN: one pipeline in a data centre, then a ring over the centres.

    The ring reduces and gathers: 2·(n − 1)/n of the gradients cross each boundary in each direction, in
    2·(n − 1) steps.
    """
    scenario = _scenario(job, policy, dc_of_stage=[0] * job.stages, wan=Link())
    makespan = simulate(scenario).makespan
    if makespan is None:
        return None
    steps = 2 * (job.dcs - 1)
    transfer_s = steps / job.dcs * job.gradient_bytes / wan.bytes_per_s + steps * wan.latency_s
    return Choice(seconds=makespan + transfer_s, policy=policy)


def pipeline_parallel(
    job: CrossDcJob, wan: Boundary, policies: tuple[str, ...] = ("crosspipe-ud", "crosspipe-wave")
) -> Choice | None:
    """The iteration with pipelines over the WAN, under the best of `policies`.

    Every pipeline has its own share of the boundary, so a transfer takes replicas · bytes / rate.
    """
    transfer_s = job.replicas * job.activation_bytes / wan.bytes_per_s
    dc_of_stage = [stage * job.dcs // job.stages for stage in range(job.stages)]
    link = Link(latency=wan.latency_s, transfer=transfer_s)
    choices = [
        Choice(seconds=makespan, policy=policy)
        for policy in policies
        if (makespan := simulate(_scenario(job, policy, dc_of_stage, link)).makespan) is not None
    ]
    return min(choices, key=lambda choice: choice.seconds, default=None)


def _scenario(job: CrossDcJob, policy: str, dc_of_stage: list[int], wan: Link) -> Scenario:
    part = job.forward_s
    return Scenario(
        stages=job.stages,
        dc_of_stage=dc_of_stage,
        microbatches=job.microbatches,
        policy=policy,
        wan=wan,
        times=Times(forward=part, backward=part, weight=part),
        memory_limit=job.memory,
        spans=False,
    )
