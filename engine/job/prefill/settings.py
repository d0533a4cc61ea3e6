"""`prefill` of a training job's document: the model that ranks prefill with, and its limits."""

from functools import cached_property
from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field, model_validator

from engine.errors import InputError
from engine.inputs import Count, Document, Index, NonNegative, Number
from engine.job.prefill.config import LlamaConfig, read_config
from engine.model.serving import PrefillBudget
from engine.prefill.latency import MOST_RESERVE_MS, LatencyModel, covering, fit

MOST_QUEUE = 10_000


class MeasuredLatency(Document):
    """How long a prefill takes on one GPU: measured points (tokens, ms), or the three figures fitted to them.

    Both are in what `meridian profile --prefill` prints.
    """

    points: Annotated[tuple[tuple[Number, Number], ...], Field(max_length=100_000)] | None = None
    a_ms: NonNegative | None = None
    b_ms: NonNegative | None = None
    c_ms: NonNegative | None = None

    @model_validator(mode="after")
    def _one_kind(self) -> "MeasuredLatency":
        figures = {"a_ms": self.a_ms, "b_ms": self.b_ms, "c_ms": self.c_ms}
        measured = any(figure is not None for figure in figures.values())
        if measured == (self.points is not None):
            raise InputError(
                "", None, "give either points or {a_ms, b_ms, c_ms}: meridian profile --prefill prints both"
            )
        if self.points is not None:
            fit(self.points)
            return self
        for name, figure in figures.items():
            if figure is None:
                raise InputError(name, None, "required, but missing")
        if not (self.b_ms or 0) + (self.c_ms or 0) > 0:
            raise InputError("b_ms", self.b_ms, "must be greater than 0 if c_ms is 0")
        return self

    @cached_property
    def model(self) -> LatencyModel:
        """The times; fitted ones are slowed down until they promise too much at no point."""
        if self.points is not None:
            return covering(fit(self.points), self.points)
        return LatencyModel(a_ms=self.a_ms or 0.0, b_ms=self.b_ms or 0.0, c_ms=self.c_ms or 0.0)


class PrefillSettings(PrefillBudget):
    """The model that the ranks of a job prefill with, and its share of GPU memory.

    checkpoint : folder of a Hugging Face Llama, on every node.  name : of the model; the folder's by default.
    pp_degree : GPUs that share a model's layers: those of one rank in neighbouring cells; divides the job's
        cells.
    guard_ms : kept free before every training op, at least; what was observed may ask for more.
    queue : most requests that wait.  reserve_ms : beyond it, such as begin within this are accepted for good.
    chunk_tokens : least tokens of a chunk; None: prompts stay whole.
    pause_slowdown : share by which training may be slower before no request is accepted any more.
    """

    checkpoint: Annotated[str, Field(min_length=1)]
    name: Annotated[str, Field(min_length=1, max_length=128)] | None = None
    dtype: Literal["fp32", "bf16"] = "bf16"
    pp_degree: Count = 1
    latency: MeasuredLatency
    guard_ms: NonNegative = 1.0
    queue: Annotated[Index, Field(le=MOST_QUEUE)] = 64
    reserve_ms: Annotated[NonNegative, Field(le=MOST_RESERVE_MS)] = 0.0
    chunk_tokens: Count | None = None
    pause_slowdown: Annotated[Number, Field(gt=0, le=1)] = 0.01

    @property
    def model(self) -> str:
        """The served model's name."""
        return self.name or Path(self.checkpoint).name


def check_checkpoint(folder: Path) -> LlamaConfig:
    """The shape of the checkpoint. Raises InputError at its field: there is none, or it is no Llama."""
    try:
        return read_config(folder)
    except InputError as error:
        raise InputError(f"prefill.{error.field}", error.value, error.allowed) from None
