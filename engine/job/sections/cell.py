"""`cell` of a training job: how the model and the batch are cut, and where the stages are."""

from typing import Annotated, Literal

from pydantic import Field

from engine.cluster.all_reduce import AllReduceChoice
from engine.inputs import Count, Document, Index
from engine.job.devices import Devices
from engine.job.sections.limits import RankCount


class CellSection(Document):
    """Stages, pipelines and DP-cells of a job, and its batch.

    dc_of_stage : index into `datacenters` of each stage; empty: all in the first one.
    pipelines : of all cells; with strategy swap the workers.
    layers_per_stage : blocks of each stage; None: as even as possible.
    tp : ranks that compute a stage together (tensor parallelism).
    zero : 1: the replicas of a stage in one data centre share the optimizer's state (ZeRO-1); 0: each has it.
    cells : equal groups of pipelines; each follows the same schedule.
    microbatches : of one pipeline in one pass.  micro_batch : sequences in each.
    accumulation : passes through the schedule in one step.
    recompute : whether activations are recomputed; None: where the times of the device have a recompute.
    devices : a placement as `meridian place` gives it, in place of `dc_of_stage`.
    activation_bytes : size to which messages are padded on emulated GPUs; None: the real one.
    connections : TCP connections per node pair; auto: as many as fill the link.
    all_reduce : how the replicas of a stage sum their gradients (engine.cluster.all_reduce); auto: as is
        predicted to be fastest.
    """

    stages: RankCount
    dc_of_stage: list[Index] = Field(default_factory=list)
    layers_per_stage: Annotated[list[Count], Field(min_length=1)] | None = None
    pipelines: RankCount = 1
    tp: RankCount = 1
    zero: Literal[0, 1] = 0
    cells: RankCount = 1
    microbatches: Annotated[Count, Field(le=10_000)]
    micro_batch: Annotated[Count, Field(le=100_000)] = 1
    accumulation: Annotated[Count, Field(le=10_000)] = 1
    recompute: Annotated[bool, Field(strict=True)] | None = None
    devices: Devices | None = None
    activation_bytes: Annotated[Count, Field(le=10**11)] | None = None
    connections: Literal["auto"] | Annotated[Count, Field(le=256)] = "auto"
    all_reduce: AllReduceChoice = "ring"

    @property
    def world_size(self) -> int:
        """Number of ranks: one per GPU in use."""
        return self.places * self.tp

    @property
    def places(self) -> int:
        """Stages of all pipelines: each is computed by `tp` ranks."""
        return self.stages * self.pipelines

    @property
    def cell_pipelines(self) -> int:
        """Pipelines of a DP-cell: those that a schedule orders together, and that may share links in time."""
        return self.pipelines // self.cells

    def cell_of(self, pipeline: int) -> range:
        """The pipelines of the cell of `pipeline`; a schedule numbers them from 0."""
        first = pipeline - pipeline % self.cell_pipelines
        return range(first, first + self.cell_pipelines)

    @property
    def global_batch(self) -> int:
        """Sequences per step."""
        return self.pipelines * self.microbatches_of_step * self.micro_batch

    @property
    def microbatches_of_step(self) -> int:
        """Microbatches of one pipeline in one step: `accumulation` passes through the schedule."""
        return self.microbatches * self.accumulation
