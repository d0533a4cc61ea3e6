"""A layout of a run as Sailor's measurements write it: the layers and the replicas of each stage.

`pipeline_list` has one entry per kind of pipeline: `layers_per_stage`, and in `tmp_per_stage` for each stage
its replicas as [[[GPU, GPUs, zone], …], tp]. Replica i of each stage belongs to pipeline i of the entry.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from pydantic import ConfigDict, Field, model_validator

from engine.errors import InputError
from engine.inputs import Count, Document, Index, Positive, parse


@dataclass(frozen=True, slots=True, kw_only=True)
class Replica:
    """One replica of a stage: `tp` GPUs, of the types `gpus`, in nodes of `gpus_per_node` GPUs."""

    gpus: tuple[str, ...]
    gpus_per_node: int
    tp: int

    @property
    def per_node(self) -> int:
        """Replicas that one node has room for."""
        return max(1, self.gpus_per_node // self.tp)


@dataclass(frozen=True, slots=True, kw_only=True)
class Stage:
    """Layers of a stage, and its replica in each pipeline."""

    layers: tuple[int, ...]
    replicas: tuple[Replica, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Layout:
    """A run: groups of pipelines, the stages of each group, and its batch in sequences.

    Of one group all pipelines cut the model alike; their replicas may be on other GPUs, with another tp.
    """

    model: str
    micro_batch: int
    microbatches: int
    groups: tuple[tuple[Stage, ...], ...]

    @property
    def pipelines(self) -> int:
        """All pipelines: each stage's gradients are summed over as many replicas."""
        return sum(len(stages[0].replicas) for stages in self.groups)


class _Pipelines(Document):
    model_config = ConfigDict(frozen=True, extra="ignore")

    layers_per_stage: list[list[Index]] = Field(min_length=1)
    tmp_per_stage: list[list[Any]]

    @model_validator(mode="after")
    def _consistent(self) -> "_Pipelines":
        if len(self.tmp_per_stage) != len(self.layers_per_stage):
            allowed = f"one entry per stage: layers_per_stage has {len(self.layers_per_stage)}"
            raise InputError("tmp_per_stage", len(self.tmp_per_stage), allowed)
        counts = sorted({len(replicas) for replicas in self.tmp_per_stage})
        if len(counts) > 1 or counts[0] < 1:
            raise InputError("tmp_per_stage", counts, "every stage needs as many replicas, at least 1")
        if not all(self.layers_per_stage):
            raise InputError("layers_per_stage", [], "every stage needs a layer")
        layers = [layer for stage in self.layers_per_stage for layer in stage]
        if layers != list(range(len(layers))):
            allowed = "must be layer numbers from 0, in order, each once"
            raise InputError("layers_per_stage", layers, allowed)
        return self

    def stages(self) -> tuple[Stage, ...]:
        """The stages. Raises InputError where a replica is not [[[GPU, GPUs, zone], …], tp]."""
        return tuple(
            Stage(
                layers=tuple(layers),
                replicas=tuple(
                    _replica(replica, f"tmp_per_stage[{stage}][{i}]") for i, replica in enumerate(replicas)
                ),
            )
            for stage, (layers, replicas) in enumerate(
                zip(self.layers_per_stage, self.tmp_per_stage, strict=True)
            )
        )


class MeasuredRun(Document):
    """A run of a file of measurements; fields that are not named here are ignored.

    real : measured seconds of an iteration.  max_mem : bytes of the fullest GPU, as measured.
    """

    model_config = ConfigDict(frozen=True, extra="ignore", protected_namespaces=())

    name: str | None = None
    model: str
    mbs: Count
    gbs: Count
    pipeline_list: list[_Pipelines] = Field(min_length=1)
    real: Positive | None = None
    max_mem: Positive | None = None

    def layout(self) -> Layout:
        """The run's layout.

        Raises
        ------
        InputError
            The global batch does not divide into microbatches for all pipelines, a replica is malformed, or
            pipelines do not have the same layers.
        """
        groups = []
        for i, pipelines in enumerate(self.pipeline_list):
            try:
                groups.append(pipelines.stages())
            except InputError as error:
                raise InputError(f"pipeline_list[{i}].{error.field}", error.value, error.allowed) from None
        layers = [sum(len(stage.layers) for stage in stages) for stages in groups]
        if len(set(layers)) > 1:
            raise InputError("pipeline_list", layers, "every pipeline needs the same number of layers")
        count = sum(len(stages[0].replicas) for stages in groups)
        if self.gbs % (self.mbs * count):
            allowed = f"must be a multiple of mbs × pipelines = {self.mbs} × {count}"
            raise InputError("gbs", self.gbs, allowed)
        return Layout(
            model=self.model,
            micro_batch=self.mbs,
            microbatches=self.gbs // (self.mbs * count),
            groups=tuple(groups),
        )


def read_runs(document: Any) -> list[MeasuredRun]:
    """The runs of a list, or the one run that an object is. Raises InputError with the field's path."""
    if isinstance(document, list):
        if not document:
            raise InputError("document", [], "must have at least one run")
        return [parse(MeasuredRun, run, at=f"[{i}]") for i, run in enumerate(document)]
    return [parse(MeasuredRun, document)]


def _replica(replica: Any, at: str) -> Replica:
    form = "must be [[[GPU, GPUs, zone], …], tp]"
    if not (isinstance(replica, Sequence) and len(replica) == 2 and isinstance(replica[0], list)):
        raise InputError(at, replica, form)
    machines, tp = replica
    if not machines or not all(map(_is_machine, machines)) or not _is_count(tp):
        raise InputError(at, replica, form)
    if sum(machine[1] for machine in machines) < tp:
        raise InputError(at, replica, f"{tp} ranks of tp need as many GPUs")
    types = tuple(dict.fromkeys(machine[0] for machine in machines))
    return Replica(gpus=types, gpus_per_node=min(machine[1] for machine in machines), tp=tp)


def _is_machine(machine: Any) -> bool:
    return (
        isinstance(machine, list)
        and len(machine) in (2, 3)
        and isinstance(machine[0], str)
        and _is_count(machine[1])
    )


def _is_count(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 1
