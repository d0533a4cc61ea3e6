"""Comparisons of a swap plan: pipelines over several GPUs, and the naive order of swaps.

In ATOM's metric (§V-A): GPU seconds per mini-batch, wall time × GPUs / mini-batches, without all-reduce and
optimizer. A pipeline's stages are cut for the shortest beat of stage and hop, then for least bytes on the
cuts. GPipe flushes after `microbatches`. PipeDream never does, so its beat in the steady state counts.
"""

from dataclasses import dataclass

from engine.plan.swap.events import Step
from engine.plan.swap.layers import SubModel, sub_models
from engine.plan.swap.partition import Chain
from engine.plan.swap.pipeline_events import gpipe_wall_s, pipedream_wall_s
from engine.plan.swap.stage_cuts import StageCuts

# Multiples of the network's own rate for which cuts are tried.
OTHER_NETWORKS = (0.125, 0.25, 0.5, 1.0, 2.0, 4.0, 8.0)
# policy of a `Comparison` → its display name.
NAMES = {"gpipe": "GPipe", "pipedream": "PipeDream", "zero-offload": "Naive swapping (as ZeRO-Offload)"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Network:
    """Between the GPUs of a pipeline; `shared`: one for all hops and directions, not one per hop."""

    name: str
    bytes_per_s: float
    shared: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """Another method of training, compared with the swap plan.

    speedup : its GPU time per mini-batch over the plan's.
    stages : first and last layers.
    """

    policy: str
    link: str | None
    seconds_per_minibatch_gpu: float
    utilization: float
    speedup: float
    stages: tuple[tuple[int, int], ...] = ()


def naive(step: Step, ours: Step) -> Comparison:
    """The naive order, which has neither links nor stages."""
    return Comparison(
        policy="zero-offload",
        link=None,
        seconds_per_minibatch_gpu=step.seconds_per_minibatch,
        utilization=step.utilization,
        speedup=step.seconds_per_minibatch / ours.seconds_per_minibatch,
    )


def pipelines(chain: Chain, network: Network, stages: int, microbatches: int, ours: Step) -> list[Comparison]:
    """GPipe and PipeDream of `stages` GPUs on one network, each on its best cuts.

    The shortest beat ignores fill and drain, so cuts for slower and faster networks are tried too: no network
    makes a pipeline slower than a slower one would.
    """
    stage_cuts = StageCuts(chain, stages)
    cuts = {stage_cuts.firsts(network.bytes_per_s * factor) for factor in OTHER_NETWORKS}
    rows = []
    for policy in ("gpipe", "pipedream"):
        wall_s, parts = min(
            (_wall_on(chain, firsts, policy, network, microbatches) for firsts in sorted(cuts)),
            key=lambda choice: choice[0],
        )
        seconds = wall_s * stages
        busy = sum(part.forward_s + part.backward_s for part in parts)
        rows.append(
            Comparison(
                policy=policy,
                link=network.name,
                seconds_per_minibatch_gpu=seconds,
                utilization=min(1.0, busy / seconds),
                speedup=seconds / ours.seconds_per_minibatch,
                stages=tuple((part.first, part.last) for part in parts),
            )
        )
    return rows


def _wall_on(
    chain: Chain, firsts: tuple[int, ...], policy: str, network: Network, microbatches: int
) -> tuple[float, tuple[SubModel, ...]]:
    """Wall seconds per mini-batch, and the stages."""
    parts = sub_models(chain.layers, firsts)
    hops_s = [chain.layers[part.last].cut_bytes / network.bytes_per_s for part in parts[:-1]]
    if policy == "gpipe":
        return gpipe_wall_s(parts, hops_s, microbatches, shared=network.shared), parts
    return pipedream_wall_s(parts, hops_s, shared=network.shared), parts
