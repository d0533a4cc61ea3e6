"""Links between data centres as a run measured them, and the seconds of what crosses them.

A placement may lead each pipeline through other data centres: one hop of the schedule is several links then.
"""

from collections.abc import Mapping
from dataclasses import replace

from engine.job.adapt.measured import LATENCY, LINK, Measured, Quantity, wan_hops
from engine.job.all_reduce import stage_parameters
from engine.job.fields import JobFields
from engine.job.job import TrainJob
from engine.job.launch import LaunchSpec, RankAssignment
from engine.job.memory import MOMENTS_PER_PARAMETER
from engine.job.network import Between, HopNetwork
from engine.job.sections.device import BYTES_OF_PARAMETER

Pair = frozenset[int]  # of two data centres, by index
LAN_BYTES_PER_S = 1e9  # of a state inside a data centre, where nothing was measured


def of_pairs(
    spec: LaunchSpec, by_rank: Mapping[int, Measured]
) -> tuple[dict[Pair, float], dict[Pair, float]]:
    """What each rank measured of its own pipeline's links, by pair of data centres; of several the largest.

    For runs whose pipelines go through different data centres: they share no link in time.

    Returns
    -------
    transfer : how many times as long as the document says a message holds the link.
    latency_ms : one way.
    """
    job = spec.job
    transfer: dict[Pair, float] = {}
    latency_ms: dict[Pair, float] = {}
    for a in spec.ranks:
        dcs = job.dcs_of_pipeline[a.pipeline]
        for (what, *stages), ms in by_rank.get(a.rank, {}).items():
            if what not in (LINK, LATENCY):
                continue
            low, high = (dcs[stage] for stage in stages)
            network = job.between(low, high)
            if network is None:
                continue
            pair = frozenset((low, high))
            if what == LINK:
                transfer[pair] = max(transfer.get(pair, 0.0), ms / network.transfer_ms(job.wan_bytes))
            else:
                latency_ms[pair] = max(latency_ms.get(pair, 0.0), ms)
    return transfer, latency_ms


def as_measured(job: JobFields, transfer: Mapping[Pair, float], latency_ms: Mapping[Pair, float]) -> Between:
    """The network between two data centres by what was measured, and else by the job's document."""

    def between(a: int, b: int) -> HopNetwork | None:
        network, pair = job.between(a, b), frozenset((a, b))
        if network is None:
            return None
        return replace(
            network,
            latency_ms=latency_ms.get(pair, network.latency_ms),
            rate_bytes_per_s=network.rate_bytes_per_s / transfer.get(pair, 1.0),
        )

    return between


def hop_factors(job: TrainJob, between: Between) -> dict[Quantity, float]:
    """How many times as long as the job's scenario says the transfer and the latency of each WAN hop take.

    A schedule knows one network for all pipelines, so the slowest pipeline counts, before and now.
    """
    factors: dict[Quantity, float] = {}
    for hop, ends in wan_hops(job.scenario).items():
        crossed = [
            network
            for dcs in dict.fromkeys(job.dcs_of_pipeline)
            if (network := between(dcs[ends[0]], dcs[ends[1]])) is not None
        ]
        link = job.scenario.hop_links[hop]
        held_ms = max((network.transfer_ms(job.wan_bytes) for network in crossed), default=link.transfer)
        latency_ms = max((network.latency_ms for network in crossed), default=link.latency)
        factors[(LINK, *ends)] = held_ms / link.transfer if link.transfer > 0 else 1.0
        factors[(LATENCY, *ends)] = latency_ms / link.latency if link.latency > 0 else 1.0
    return factors


def move_s(before: LaunchSpec, ranks: tuple[RankAssignment, ...], between: Between) -> float:
    """Seconds until each of `ranks` has the state of its stage, where that is another than in `before`.

    The state comes from the nearest rank that has the stage before, of those that keep it where there are
    any, as in a recovery (engine.job.recovery.plan). What one rank gives away leaves it one by one.
    """
    had = {a.rank: a.stage for a in before.ranks}
    stays = {a.rank for a in ranks if had.get(a.rank) == a.stage}
    given_s: dict[int, float] = {}
    for taker in ranks:
        if taker.rank in stays:
            continue
        holders = [a for a in before.ranks if a.stage == taker.stage]
        givers = [a for a in holders if a.rank in stays] or holders
        nbytes = stage_state_bytes(before.job, taker.stage)
        costs = [(_sent_s(nbytes, giver.dc, taker.dc, between), giver.rank) for giver in givers]
        seconds, giver = min((given_s.get(giver, 0.0) + cost, giver) for cost, giver in costs)
        given_s[giver] = seconds
    return max(given_s.values(), default=0.0)


def stage_state_bytes(job: JobFields, stage: int) -> int:
    """Weights and optimizer moments of one stage, in bytes."""
    numbers = 1 + MOMENTS_PER_PARAMETER
    return stage_parameters(job, stage) * numbers * BYTES_OF_PARAMETER[job.device.dtype]


def _sent_s(nbytes: float, a: int, b: int, between: Between) -> float:
    """Seconds in which so many bytes go from one data centre to another; along no link, infinite."""
    if a == b:
        return nbytes / LAN_BYTES_PER_S
    network = between(a, b)
    return float("inf") if network is None else network.latency_ms / 1e3 + nbytes / network.rate_bytes_per_s
