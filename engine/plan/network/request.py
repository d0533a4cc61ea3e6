"""The document of `meridian network FILE`, as docs/dev/contracts.md names its fields. GB are 10^9 bytes."""

import itertools
from collections.abc import Iterator
from dataclasses import replace
from typing import Annotated, Literal

from pydantic import Discriminator, Field, Tag, field_validator, model_validator

from engine.cluster.collectives import Operation
from engine.cluster.fabric import Prices
from engine.cluster.gpus import Gpu, gpu
from engine.errors import InputError
from engine.inputs import Count, Document, Flag, Index, NonNegative, Positive, nearest
from engine.model.document import ModelInput, kind_of_model, shape_of
from engine.model.efficiency import Efficiency, shipped
from engine.model.flops import Recompute
from engine.model.hugging_face import HuggingFaceModel
from engine.model.kernels import How, Pass
from engine.model.presets import PER_STAGE, PRESETS
from engine.model.transformer import Experts, Transformer
from engine.plan.own_gpu import LEAST_RATE, GpuOrName

MOST_GPUS = 10_000_000
MOST_BATCH = 10_000_000
# Limits of a model's dimensions: far beyond any model, and all their products stay exact enough.
MOST = {
    "layers": 10_000,
    "hidden": 1_000_000,
    "heads": 100_000,
    "ffn": 10_000_000,
    "vocab": 10**8,
    "seq": 10**8,
}
Share = Annotated[Positive, Field(le=1)]
# A domain of 256 is built of modules of 8 (DGX GH200); optical switches replace whole modules.
DEFAULT_MODULE = 8


class ExpertsInput(Document):
    """A mixture of experts in every `every`-th block."""

    experts: Count = Field(le=1_000_000)
    top_k: Count = 1
    every: Count = 1

    @model_validator(mode="after")
    def _enough(self) -> "ExpertsInput":
        if self.top_k > self.experts:
            raise InputError("top_k", self.top_k, f"at most experts = {self.experts}")
        return self


class ShapeInput(ModelInput):
    """The shape of a model that has no preset; optionally with experts."""

    moe: ExpertsInput | None = None

    def shape(self) -> Transformer:
        """It as the engine counts it."""
        moe = None if self.moe is None else Experts(**self.moe.model_dump())
        return replace(shape_of(self), moe=moe)


class EfficiencyInput(Document):
    """Reached shares of nominal rates; defaults are the shipped set's."""

    gemm: Share | None = Field(default=None, ge=1e-6)
    hbm: Share | None = Field(default=None, ge=1e-6)
    hb: Share | None = Field(default=None, ge=1e-6)
    nic: Share | None = Field(default=None, ge=1e-6)

    def efficiency(self) -> Efficiency:
        """The set with defaults filled in."""
        return replace(shipped(), **self.model_dump(exclude_none=True))


class MeasuredInput(Document):
    """One dense block as measured on one GPU, with that TP and micro-batch; collectives not included."""

    tp: Count
    micro_batch: Count
    forward_ms: Positive
    backward_ms: Positive
    recompute_ms: NonNegative = 0.0

    def seconds(self) -> Pass:
        """It as the engine counts it."""
        return Pass(
            forward_s=self.forward_ms / 1e3,
            backward_s=self.backward_ms / 1e3,
            recompute_s=self.recompute_ms / 1e3,
        )


class PricesInput(Document):
    """Dollars and watts of a switch port and of a transceiver."""

    port_usd: NonNegative = Prices().port_usd
    transceiver_usd: NonNegative = Prices().transceiver_usd
    port_w: NonNegative = Prices().port_w
    transceiver_w: NonNegative = Prices().transceiver_w


class TransceiverFailuresInput(Document):
    """How often transceivers fail: nothing is counted without it, as no figure of the paper says it.

    per_year : share of them that fail in a year.  repair_h : until a failed one is replaced.
    gpu_usd_per_h : of the GPU behind a failed one, which waits; 0: not priced.
    """

    per_year: Positive = Field(le=1)
    repair_h: NonNegative = Field(le=8_760)
    gpu_usd_per_h: NonNegative = 0.0


class CollectiveInput(Document):
    """One collective on x·y GPUs. `bytes`: the whole buffer; of all_to_all from each GPU to each."""

    op: Operation
    bytes: NonNegative
    x: Count
    y: Count


def _kind_of_model(model: object) -> str:
    kind = kind_of_model(model)
    return "ShapeInput" if kind == "ModelInput" else kind


ShapeOrName = Annotated[
    Annotated[str, Tag("str")]
    | Annotated[ShapeInput, Tag("ShapeInput")]
    | Annotated[HuggingFaceModel, Tag("HuggingFaceModel")],
    Discriminator(_kind_of_model),
]
HbDomains = Annotated[
    Annotated[Count, Tag("int")]
    | Annotated[list[Count], Field(min_length=1, max_length=64), Tag("list[int]")],
    Discriminator(lambda value: "list[int]" if isinstance(value, list) else "int"),
]
OF_A_MODEL = (
    "batch",
    "micro_batch",
    "tp",
    "pp",
    "dp",
    "interleave",
    "recompute",
    "sequence_parallel",
    "attention",
    "shard_optimizer",
    "measured",
    "moe",
)


class NetworkRequest(Document):
    """A validated request.

    Beyond docs/dev/contracts.md: `moe` may be given with a preset; `micro_batch: null` enumerates it;
    `sequence_parallel` (with full recomputation not, else yes, as the published runs); `attention` standard
    or fused (by default fused, unless the model has dropout); `shard_optimizer` (ZeRO 1); `leave_idle`: also
    consider strategies that leave GPUs idle (else only where no other fits); `module`: GPUs that optical
    switches replace together in a large HB domain; `spare_switches` of the rail-only fabric;
    `transceiver_failures`.
    """

    gpus: Count = Field(le=MOST_GPUS)
    hb_domain: HbDomains
    switch_radix: Count = Field(ge=2, le=100_000)
    gpu_type: GpuOrName | None = None
    hb_gb_s: Positive | None = Field(default=None, ge=LEAST_RATE)
    nic_gb_s: Positive | None = Field(default=None, ge=LEAST_RATE)
    model: ShapeOrName | None = None
    moe: ExpertsInput | None = None
    batch: Count | None = Field(default=None, le=MOST_BATCH)
    micro_batch: Count | None = 1
    tp: Count | None = None
    pp: Count | None = None
    dp: Count | None = None
    interleave: Count | None = None
    recompute: Recompute = "selective"
    sequence_parallel: Flag | None = None
    attention: Literal["standard", "fused"] | None = None
    shard_optimizer: Flag = False
    leave_idle: Flag = False
    measured: MeasuredInput | None = None
    efficiency: EfficiencyInput = EfficiencyInput()
    prices: PricesInput = PricesInput()
    spare_switches: Index = Field(default=0, le=MOST_GPUS)
    transceiver_failures: TransceiverFailuresInput | None = None
    collectives: list[CollectiveInput] = Field(default_factory=list, max_length=10_000)
    module: Count = DEFAULT_MODULE

    @field_validator("model")
    @classmethod
    def _known_model(cls, value: ShapeOrName | None) -> ShapeOrName | None:
        if isinstance(value, str) and value not in PRESETS:
            raise ValueError("unknown model, " + nearest(value, PRESETS))
        return value

    @model_validator(mode="after")
    def _consistent(self) -> "NetworkRequest":
        checks = (self._domains, self._rates, self._model, self._measured, self._strategy, self._grids)
        for problem in itertools.chain.from_iterable(check() for check in checks):
            raise problem
        return self

    @property
    def hb_domains(self) -> tuple[int, ...]:
        """The requested sizes of HB domains."""
        return tuple(self.hb_domain) if isinstance(self.hb_domain, list) else (self.hb_domain,)

    @property
    def gpu(self) -> Gpu | None:
        """The GPU, or None if none is named."""
        if self.gpu_type is None:
            return None
        return gpu(self.gpu_type) if isinstance(self.gpu_type, str) else self.gpu_type.gpu()

    @property
    def hb_bytes_per_s(self) -> float | None:
        """Bytes/s of a GPU inside its HB domain: as given, or the catalogue's; None if neither is known."""
        known = self.gpu.link_bytes_per_s if self.gpu else 0.0
        return self.hb_gb_s * 1e9 if self.hb_gb_s is not None else known or None

    @property
    def nic_bytes_per_s(self) -> float | None:
        """Bytes/s of a GPU's NIC: as given, or the catalogue's; None if neither is known."""
        known = self.gpu.nic_bytes_per_s if self.gpu else None
        return self.nic_gb_s * 1e9 if self.nic_gb_s is not None else known

    @property
    def shape(self) -> Transformer | None:
        """The model, or None if only the fabric is requested."""
        if self.model is None:
            return None
        given = self.model
        shape = given.shape() if isinstance(given, ShapeInput) else shape_of(given, self.pp or 1)
        return replace(shape, moe=Experts(**self.moe.model_dump())) if self.moe else shape

    @property
    def how(self) -> How:
        """How the model's blocks run."""
        shape = self.shape
        assert shape is not None
        sequence_parallel, fused = self.sequence_parallel, self.attention == "fused"
        return How(
            recompute=self.recompute,
            sequence_parallel=self.recompute != "full" if sequence_parallel is None else sequence_parallel,
            fused_attention=not shape.has.dropout if self.attention is None else fused,
            measured=None if self.measured is None else self.measured.seconds(),
        )

    def _domains(self) -> Iterator[InputError]:
        for i, size in enumerate(self.hb_domains):
            field = f"hb_domain[{i}]" if isinstance(self.hb_domain, list) else "hb_domain"
            if size in self.hb_domains[:i]:
                yield InputError(field, size, "is listed twice")
            if self.gpus % size:
                yield InputError(field, size, f"must divide gpus = {self.gpus}")
        if self.switch_radix < 4 and self.gpus > self.switch_radix:
            allowed = f"at least 4 ports to connect more than {self.switch_radix} GPUs"
            yield InputError("switch_radix", self.switch_radix, allowed)

    def _rates(self) -> Iterator[InputError]:
        if self.model is None and not self.collectives:
            return
        for name, value in (("hb_gb_s", self.hb_bytes_per_s), ("nic_gb_s", self.nic_bytes_per_s)):
            if value is None:
                yield InputError(name, None, "required: the catalogue does not know it for this gpu_type")

    def _model(self) -> Iterator[InputError]:
        if self.model is None:
            for name in OF_A_MODEL:
                if name in self.model_fields_set and getattr(self, name) is not None:
                    yield InputError(
                        name, getattr(self, name), "applies to training of a model: give model too"
                    )
            return
        for name in ("batch", "gpu_type"):
            if getattr(self, name) is None:
                yield InputError(name, None, "required with a model")
        own = self.model.read.shape if isinstance(self.model, HuggingFaceModel) else self.model
        if getattr(own, "moe", None) and self.moe:
            yield InputError("moe", "given", "the model has its own: give only one of them")
        for name, most in MOST.items():
            value = getattr(own, name, None)
            if value is not None and value > most:
                yield InputError(f"model.{name}", value, f"at most {most}")
        if isinstance(self.model, str) and self.model in PER_STAGE and self.pp is None:
            yield InputError("pp", None, f"required with {self.model}, which has one layer per stage")

    def _measured(self) -> Iterator[InputError]:
        if self.measured is None:
            return
        if self.shape is not None and self.shape.moe:
            yield InputError(
                "measured", None, "applies to dense blocks: leave it out for a model with experts"
            )
        for name in ("tp", "micro_batch"):
            given, value = getattr(self, name), getattr(self.measured, name)
            if name in self.model_fields_set and given not in (None, value):
                yield InputError(name, given, f"measured.{name} is {value}: leave it out, or measure that")

    @property
    def fixed_tp(self) -> int | None:
        """TP as given or measured; None to enumerate."""
        return self.tp if self.measured is None else self.measured.tp

    @property
    def fixed_micro_batch(self) -> int | None:
        """The micro-batch as given or measured; None to enumerate."""
        return self.micro_batch if self.measured is None else self.measured.micro_batch

    def _strategy(self) -> Iterator[InputError]:
        shape = self.shape
        if shape is None or self.batch is None:
            return
        tp, micro_batch = self.fixed_tp, self.fixed_micro_batch
        if tp is not None and shape.heads % tp:
            yield InputError("tp", tp, f"must divide the model's heads = {shape.heads}")
        if self.pp is not None and self.pp > shape.layers:
            yield InputError("pp", self.pp, f"at most one stage per layer: the model has {shape.layers}")
        for name, value in (("dp", self.dp), ("micro_batch", micro_batch)):
            if value is not None and self.batch % value:
                yield InputError(name, value, f"must divide batch = {self.batch}")
        if self.dp and micro_batch and self.batch % (self.dp * micro_batch):
            allowed = f"dp × micro_batch must divide batch = {self.batch}"
            yield InputError("micro_batch", micro_batch, allowed)
        product = (tp or 1) * (self.pp or 1) * (self.dp or 1)
        if product > self.gpus:
            names = " × ".join(name for name, n in (("tp", tp), ("pp", self.pp), ("dp", self.dp)) if n)
            yield InputError("gpus", self.gpus, f"must be at least {names} = {product}")

    def _grids(self) -> Iterator[InputError]:
        for i, collective in enumerate(self.collectives):
            if collective.x > max(self.hb_domains):
                allowed = f"at most the largest hb_domain, {max(self.hb_domains)}"
                yield InputError(f"collectives[{i}].x", collective.x, allowed)
            if collective.x * collective.y > self.gpus:
                allowed = f"x × y = {collective.x * collective.y} must be at most gpus = {self.gpus}"
                yield InputError(f"collectives[{i}].y", collective.y, allowed)
