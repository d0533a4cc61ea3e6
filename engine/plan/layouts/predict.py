"""The iteration time and memory of a layout, from measured layers; nothing is fitted to whole runs.

Each pipeline runs 1F1B with its own stages' times; the slowest decides. Then the replicas of each stage sum
their gradients and update, and the stage that takes longest decides. An activation or gradient goes to the
next node at the bandwidth between nodes; each GPU of a stage sends its own copy over its own share, as
Megatron-DeepSpeed does.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from itertools import pairwise
from typing import Any

from engine.cluster.collectives import Rates, hierarchical_s
from engine.documents import read_json
from engine.errors import InputError
from engine.model.layer_profiles import (
    FRAMEWORK_BYTES,
    GRADIENT_BYTES,
    PARAMETER_BYTES,
    LayerProfiles,
    LayerSizes,
    StageSeconds,
    read_profiles,
    read_sizes,
)
from engine.plan.layouts.layout import Layout, Replica, Stage
from engine.schedule.scenario import Link, Scenario, Times
from engine.simulate import simulate

# Measured by Sailor's authors between GH200 nodes, for one GPU a node; two GPUs reach twice as much.
BETWEEN_NODES_BYTES_PER_S = 22.9e9
MachineBandwidths = Mapping[str, Mapping[int, float]]  # GPU → GPUs that talk → bytes/s


@dataclass(frozen=True, slots=True, kw_only=True)
class Network:
    """Bytes/s per GPU and direction: inside a node by GPU type and number of GPUs, and between nodes."""

    inside_nodes: MachineBandwidths
    between_nodes: float = BETWEEN_NODES_BYTES_PER_S

    def inside(self, gpu: str, gpus: int) -> float:
        """The bandwidth among `gpus` GPUs of one node: that of the smallest listed group that holds them.

        Raises InputError, naming the types that are listed, for another one.
        """
        if gpu not in self.inside_nodes:
            listed = ", ".join(sorted(self.inside_nodes))
            raise InputError("gpu", gpu, f"has no bandwidth inside a node; there are: {listed}")
        by_size = self.inside_nodes[gpu]
        return by_size[min((n for n in by_size if n >= gpus), default=max(by_size))]


@dataclass(frozen=True, slots=True, kw_only=True)
class Tables:
    """What layouts are predicted from; the last two figures are bytes per GPU and bytes per parameter."""

    profiles: LayerProfiles
    sizes: LayerSizes
    network: Network
    framework_bytes: float = FRAMEWORK_BYTES
    parameter_bytes: float = PARAMETER_BYTES


@dataclass(frozen=True, slots=True, kw_only=True)
class Prediction:
    """One iteration of a layout.

    pipelines_s : forward and backward passes of the slowest pipeline.
    allreduce_s, update_s : of the stage for which the two together take longest.
    memory_bytes : of each stage on its fullest GPU, of one group after the other.
    """

    pipelines_s: float
    allreduce_s: float
    update_s: float
    memory_bytes: tuple[float, ...]

    @property
    def iteration_s(self) -> float:
        return self.pipelines_s + self.allreduce_s + self.update_s


def predict(layout: Layout, tables: Tables) -> Prediction:
    """The time and memory of one iteration of `layout`.

    Raises
    ------
    InputError
        The profile or the sizes lack the model, a GPU, the micro-batch, a tp or a layer; it names those that
        there are.
    """
    _require_all_layers(layout, tables)
    pipelines = {
        tuple((stage.layers, stage.replicas[i]) for stage in stages)
        for stages in layout.groups
        for i in range(len(stages[0].replicas))
    }
    ends = [_end_of_stage(layout, stage, tables) for stages in layout.groups for stage in stages]
    allreduce_s, update_s = max(ends, key=sum)
    return Prediction(
        pipelines_s=max(_pipeline_s(layout, stages, tables) for stages in pipelines),
        allreduce_s=allreduce_s,
        update_s=update_s,
        memory_bytes=tuple(
            max(_memory_bytes(layout, stage, len(stages) - i, tp, tables) for tp in _degrees(stage))
            for stages in layout.groups
            for i, stage in enumerate(stages)
        ),
    )


def read_bandwidths(table: Any) -> MachineBandwidths:
    """The large-message bandwidths in a JSON value: GPU → GPUs → [fit by size, bytes/s]; the fit is not read.

    Raises InputError where it has another form.
    """
    if not isinstance(table, Mapping):
        raise InputError("intra_node_bandwidths", table, "must be an object: GPU → GPUs → [fit, bytes/s]")
    return {gpu: _by_size(gpu, sizes) for gpu, sizes in table.items()}


@cache
def shipped() -> Tables:
    """The tables of engine/data/sailor."""
    folder = files("engine").joinpath("data/sailor")

    def read(name: str) -> Any:
        return read_json(folder.joinpath(f"{name}.json").read_bytes())

    return Tables(
        profiles=read_profiles(read("layer_profiles")),
        sizes=read_sizes(read("layer_sizes")),
        network=Network(inside_nodes=read_bandwidths(read("intra_node_bandwidths"))),
    )


def _require_all_layers(layout: Layout, tables: Tables) -> None:
    """A layout without the model's last layers would be predicted as a smaller model."""
    stage = layout.groups[0][-1]
    replica = stage.replicas[0]
    rows = tables.profiles.of(layout.model, replica.gpus[0], layout.micro_batch, replica.tp)
    if stage.layers[-1] + 1 != len(rows):
        allowed = f"{layout.model} has layers 0 to {len(rows) - 1}; the layout ends with {stage.layers[-1]}"
        raise InputError("layers_per_stage", stage.layers[-1], allowed)


def _pipeline_s(layout: Layout, stages: Sequence[tuple[tuple[int, ...], Replica]], tables: Tables) -> float:
    """1F1B of one pipeline: each stage at its own times, each hop at the slower of its two ends."""
    seconds = [_seconds(layout, layers, replica, tables) for layers, replica in stages]
    hops = [
        _hand_over_s(layout, layers[-1], (replica.tp, after.tp), tables)
        for (layers, replica), (_, after) in pairwise(stages)
    ]
    scenario = Scenario(
        stages=len(stages),
        dc_of_stage=list(range(len(stages))),  # so that each hop has a time of its own
        microbatches=layout.microbatches,
        times=Times(
            forward=[1e3 * stage.forward_s for stage in seconds],
            backward=[1e3 * stage.backward_s for stage in seconds],
        ),
        wan=[Link(transfer=1e3 * hop) for hop in hops],
        policy="1f1b",
        spans=False,
    )
    makespan = simulate(scenario).makespan
    assert makespan is not None  # no limits: always feasible
    return makespan / 1e3


def _seconds(layout: Layout, layers: Sequence[int], replica: Replica, tables: Tables) -> StageSeconds:
    """The times of a replica; of GPUs of several types those of the slowest, which the others wait for."""
    each = [
        tables.profiles.stage(layout.model, gpu, layout.micro_batch, replica.tp, layers)
        for gpu in replica.gpus
    ]
    return StageSeconds(
        forward_s=max(one.forward_s for one in each),
        backward_s=max(one.backward_s for one in each),
        update_s=max(one.update_s for one in each),
    )


def _hand_over_s(layout: Layout, layer: int, degrees: tuple[int, int], tables: Tables) -> float:
    sizes = (tables.sizes.stage(layout.model, tp, [layer])[0].output_bytes for tp in degrees)
    return layout.micro_batch * max(sizes) / tables.network.between_nodes


def _end_of_stage(layout: Layout, stage: Stage, tables: Tables) -> tuple[float, float]:
    """Seconds in which the replicas of a stage sum their gradients, and in which the slowest updates."""
    update_s = max(_seconds(layout, stage.layers, one, tables).update_s for one in set(stage.replicas))
    if layout.pipelines == 1:
        return 0.0, update_s
    parameters = max(_parameters(layout, stage, tp, tables) for tp in _degrees(stage))
    together = min(layout.pipelines, *(one.per_node for one in stage.replicas))
    inside = min(
        tables.network.inside(gpu, together * one.tp) if together > 1 else float("inf")
        for one in set(stage.replicas)
        for gpu in one.gpus
    )
    rates = Rates(hb_bytes_per_s=inside, nic_bytes_per_s=tables.network.between_nodes)
    nodes = -(-layout.pipelines // together)
    return float(hierarchical_s("allreduce", GRADIENT_BYTES * parameters, together, nodes, rates)), update_s


def _memory_bytes(layout: Layout, stage: Stage, in_flight: int, tp: int, tables: Tables) -> float:
    """Bytes on one GPU: parameters, the activations of the microbatches in flight, and the framework."""
    sizes = tables.sizes.stage(layout.model, tp, stage.layers)
    kept_bytes = layout.micro_batch * sum(size.kept_bytes for size in sizes)
    return (
        tables.parameter_bytes * _parameters(layout, stage, tp, tables)
        + min(in_flight, layout.microbatches) * kept_bytes
        + tables.framework_bytes
    )


def _parameters(layout: Layout, stage: Stage, tp: int, tables: Tables) -> float:
    return sum(size.parameters for size in tables.sizes.stage(layout.model, tp, stage.layers))


def _degrees(stage: Stage) -> set[int]:
    return {replica.tp for replica in stage.replicas}


def _by_size(gpu: str, sizes: Any) -> dict[int, float]:
    form = InputError(gpu, sizes, "must be an object: GPUs → [fit, bytes/s]")
    if not isinstance(sizes, Mapping) or not sizes:
        raise form
    read = {}
    for name, figures in sizes.items():
        rate = figures[-1] if isinstance(figures, list) and figures else None
        if not str(name).isdecimal() or isinstance(rate, bool) or not isinstance(rate, int | float):
            raise form
        if not 0 < rate <= 1e15:
            raise form
        read[int(name)] = float(rate)
    return read
