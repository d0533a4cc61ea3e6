"""The document of `meridian swap FILE`, as docs/dev/contracts.md names its fields. Units are in the names."""

from typing import Annotated, Literal

from pydantic import Discriminator, Field, Tag, field_validator, model_validator

from engine.errors import InputError
from engine.inputs import Count, Document, Flag, NonNegative, Number, Positive, nearest
from engine.model.document import ModelInput, kind_of_model
from engine.model.hugging_face import HuggingFaceModel
from engine.plan.own_gpu import KnownGpu
from engine.plan.swap.models import known_models
from engine.plan.swap.partition import MOST_ACCUMULATION, MOST_CUT_BYTES, MOST_LAYERS

# ATOM §III-B on PCIe 3.0 x16; engine/data/atom/SOURCE.md says how it is read.
DEFAULT_HOST_GB_S = 11.2
MOST_WORKERS = 1_000_000
LONGEST_S = 1e9
# Events of a pipeline: seconds of computing.
MOST_STAGES = 128
MOST_OPS = 500_000

Seconds = Annotated[NonNegative, Field(le=LONGEST_S)]


class LayerInput(Document):
    """A layer as measured: times of one mini-batch; `cut_bytes` of the edge after it.

    `parameter_bytes`: of its parameters, and as many of its gradients; by default what `load_s` carries.
    `gap_s`: of both passes together, time in which no kernel runs.
    """

    name: str = Field(min_length=1, max_length=200)
    memory_bytes: NonNegative
    forward_s: Seconds
    backward_s: Seconds
    load_s: Seconds
    cut_bytes: NonNegative = Field(default=0.0, le=MOST_CUT_BYTES)
    parameter_bytes: NonNegative | None = None
    gap_s: Seconds = 0.0

    @model_validator(mode="after")
    def _gaps_within(self) -> "LayerInput":
        most = self.forward_s + self.backward_s
        if self.gap_s > most:
            raise InputError("gap_s", self.gap_s, f"at most forward_s + backward_s, {most:g}")
        return self

    @field_validator("cut_bytes")
    @classmethod
    def _whole(cls, cut_bytes: float) -> float:
        if not float(cut_bytes).is_integer():
            raise ValueError("must be a whole number of bytes")
        return cut_bytes


Layers = Annotated[list[LayerInput], Field(min_length=1, max_length=MOST_LAYERS)]


class LayersInput(Document):
    """`model` given by its layers."""

    layers: Layers


def _kind_of_model(model: object) -> str:
    if isinstance(model, LayersInput):
        return "LayersInput"
    if isinstance(model, dict) and isinstance(model.get("layers"), list):
        return "LayersInput"
    return kind_of_model(model)


AnyModel = Annotated[
    Annotated[str, Tag("str")]
    | Annotated[ModelInput, Tag("ModelInput")]
    | Annotated[LayersInput, Tag("LayersInput")]
    | Annotated[HuggingFaceModel, Tag("HuggingFaceModel")],
    Discriminator(_kind_of_model),
]


class GpuInput(Document):
    """A GPU of the catalogue, or its figures; figures given with a name replace the catalogue's.

    tflops : 10^12 FLOP/s that it reaches, or its peak where `mfu` is given too.
    host_to_device_gb_s : 10^9 bytes/s per direction; by default 11.2, or that share of the catalogue's
        PCIe rate which 11.2 is of PCIe 3.0 x16.
    """

    name: KnownGpu | None = None
    memory_bytes: Positive | None = None
    tflops: Positive | None = Field(default=None, ge=1e-9)
    host_to_device_gb_s: Positive | None = Field(default=None, ge=1e-9)

    @model_validator(mode="after")
    def _one_source(self) -> "GpuInput":
        if self.name is None and self.memory_bytes is None:
            raise InputError("memory_bytes", None, "required without a name from the catalogue")
        return self


class WorkersInput(Document):
    """Workers of one GPU type in a mixed fleet."""

    gpu: GpuInput
    count: Count = Field(le=MOST_WORKERS)


class LinkInput(Document):
    """A network between the GPUs of a pipeline, per direction.

    `shared`: one for all hops and both directions (a throttled network card), not one per hop.
    """

    name: str = Field(min_length=1, max_length=200)
    mbps: Positive = Field(ge=1e-6)
    shared: Flag = False


class CompareInput(Document):
    """Pipelines to compare with the swap plan: GPUs, mini-batches per flush (GPipe), networks."""

    stages: Count = Field(le=MOST_STAGES)
    microbatches: Count
    links: list[LinkInput] = Field(min_length=1, max_length=100)

    @model_validator(mode="after")
    def _size(self) -> "CompareInput":
        most = MOST_OPS // (2 * self.stages)
        if self.microbatches > most:
            raise InputError("microbatches", self.microbatches, f"at most {most} with {self.stages} stages")
        return self


class SwapRequest(Document):
    """A validated swap request.

    block_gap_s : of a model, seconds between the kernels of a block, of both passes of a mini-batch together.
        FLOPs at `mfu` then are the time of the kernels alone.
    """

    model: AnyModel | None = None
    layers: Layers | None = None
    gpu: GpuInput
    accumulation: Count | None = Field(default=None, le=MOST_ACCUMULATION)
    resident: Literal[1, 2] = 2
    gradients: Literal["device", "host"] = "host"
    micro_batch: Count = Field(default=1, le=1_000_000)
    dtype_bytes: Literal[2, 4, 8] = 4
    mfu: Number | None = Field(default=None, ge=1e-6, le=1)
    recompute: Flag = True
    block_gap_s: Seconds = 0.0
    workers: Annotated[Count, Field(le=MOST_WORKERS)] | list[WorkersInput] | None = None
    global_batch: Count | None = Field(default=None, le=10**12)
    allreduce_gbps: Positive | None = Field(default=None, ge=1e-6)
    compare: CompareInput | None = None
    spans: Flag = True

    @field_validator("model")
    @classmethod
    def _known_model(cls, model: AnyModel | None) -> AnyModel | None:
        if isinstance(model, str) and model not in known_models():
            raise ValueError("unknown model, " + nearest(model, known_models()))
        return model

    @model_validator(mode="after")
    def _consistent(self) -> "SwapRequest":
        if (self.model is None) == (self.layers is None):
            raise InputError("model", self.model, "give either model or layers")
        if self.explicit_layers is None:
            self._of_a_model()
        else:
            self._of_layers(self.explicit_layers)
        return self

    @property
    def explicit_layers(self) -> list[LayerInput] | None:
        """The layers of the document, None if they come from a model's shape."""
        return self.model.layers if isinstance(self.model, LayersInput) else self.layers

    def _of_a_model(self) -> None:
        others = [kind.gpu for kind in self.workers] if isinstance(self.workers, list) else []
        for i, kind in enumerate([self.gpu, *others]):
            if kind.name is None and kind.tflops is None:
                field = "gpu.tflops" if i == 0 else f"workers[{i - 1}].gpu.tflops"
                raise InputError(field, None, "required for a model's times if the GPU has no name")

    def _of_layers(self, layers: list[LayerInput]) -> None:
        for name in ("micro_batch", "dtype_bytes", "mfu", "recompute", "block_gap_s"):
            if name in self.model_fields_set:
                raise InputError(name, getattr(self, name), "applies to a model: layers have their own times")
        if isinstance(self.workers, list):
            raise InputError("workers", "a list", "layers are timed on one GPU: give a number, or a model")
        if not any(layer.forward_s + layer.backward_s for layer in layers):
            raise InputError("layers", "all times 0", "at least one layer must take time to run")
