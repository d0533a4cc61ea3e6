"""How long each op of each pipeline stage takes on this machine: the executor's own ops, one after another.

The neighbours are played by buffers: what would come is there, what would go is dropped.
"""

import gc
import time
from collections import defaultdict
from dataclasses import dataclass
from typing import Annotated, Any, Literal

import numpy as np
import psutil
import torch
from pydantic import Field, ValidationInfo, field_validator, model_validator
from torch import Tensor

from engine.errors import InputError
from engine.inputs import Count, Document, Index, parse
from engine.job.all_reduce import stage_parameters
from engine.job.job import TrainJob
from engine.job.model_document import AnyModel, ConfigModel
from engine.job.own_model import own_model
from engine.job.sections.device import BYTES_OF_PARAMETER
from engine.model.hugging_face import HuggingFaceModel, read_config
from engine.model.presets import KNOWN
from engine.nn.device import CpuDevice, CudaDevice, Device, Moment
from engine.nn.model import DTYPES, Stage
from engine.schedule.ir import OpKind
from engine.train.exchange import Incoming, Key, Message, Outgoing, Passage
from engine.train.executor import Executor, Part, Port, Position, Sizes, Work
from engine.train.gradients import Gradients
from engine.train.recorder import HopDirection

WARM_UP = 3  # microbatches that are not counted: caches and allocators fill
NAMES = {"F": "forward", "R": "recompute", "B": "backward", "W": "weight"}


class ProfileRequest(Document):
    """What to measure.

    model : as in a training job, or a preset or a config.json of Hugging Face. Blocks of gpt and llama are
        ours, up to 2 billion parameters; all others, and larger models, are those of transformers.
    recompute : also the time to run a forward pass again for its activations.
    split : B and W apart; else B is the whole backward pass.
    repeats : microbatches counted, after a warm-up.
    """

    stages: Annotated[Count, Field(le=1000)] = 1
    model: AnyModel
    micro_batch: Annotated[Count, Field(le=100_000)] = 1
    device: Literal["cpu", "cuda"] = "cpu"
    dtype: Literal["fp32", "bf16", "fp64"] = "fp32"
    recompute: Annotated[bool, Field(strict=True)] = True
    split: Annotated[bool, Field(strict=True)] = False
    repeats: Annotated[Count, Field(le=10_000)] = 20
    seed: Annotated[Index, Field(le=2**31 - 1)] = 0

    @field_validator("model", mode="before")
    @classmethod
    def _named(cls, model: Any, info: ValidationInfo) -> Any:
        """A preset's name, or a config.json of Hugging Face, as `model` of a training job has it."""
        if isinstance(model, dict) and "model_type" in model:
            model = HuggingFaceModel.model_validate(model)
        if not isinstance(model, str | HuggingFaceModel):
            return model
        config = config_of(model)
        try:
            return own_model(model, info.data.get("stages", 1), "measure a smaller shape")
        except InputError as error:
            if config is None:
                raise InputError("", error.value, error.allowed) from None
        try:
            return parse(ConfigModel, config)
        except InputError as error:  # the user wrote the fields of a config as those of the model
            raise InputError(error.field.removeprefix("config."), error.value, error.allowed) from None

    @model_validator(mode="after")
    def _consistent(self) -> "ProfileRequest":
        if self.device == "cuda" and not torch.cuda.is_available():
            raise InputError("device", self.device, "torch sees no CUDA device here; allowed: cpu")
        _ = self.job
        self._check_memory()
        return self

    def _check_memory(self) -> None:
        """Raise InputError where weights and gradients alone do not fit: one stage is measured at a time."""
        on_gpu = self.device == "cuda"
        free = torch.cuda.mem_get_info(0)[0] if on_gpu else psutil.virtual_memory().available
        job = self.job
        needed, stage = max((held_bytes(job, stage), stage) for stage in range(self.stages))
        if needed > free:
            allowed = (
                f"weights and gradients of stage {stage} take {needed / 1e9:,.1f} GB, and "
                f"{free / 1e9:,.1f} GB are free {'on the GPU' if on_gpu else 'here'}: take more stages"
            )
            raise InputError("stages", self.stages, allowed)

    @property
    def job(self) -> TrainJob:
        """The training job whose stages are measured."""
        return parse(
            TrainJob,
            {
                "datacenters": [{"name": "here", "gpus": self.stages}],
                "cell": {
                    "stages": self.stages,
                    "microbatches": WARM_UP + self.repeats,
                    "micro_batch": self.micro_batch,
                    "recompute": self.recompute,
                },
                "model": self.model.model_dump(exclude_none=True),
                "device": {"kind": self.device, "dtype": self.dtype},
                "optimizer": {"steps": 1, "seed": self.seed},
                "strategy": {"kind": "pipeline", "policy": "zb-h1" if self.split else "1f1b"},
            },
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class StageTimes:
    """Times of one stage: {forward|recompute|backward|weight: (median, 95th percentile) in ms}.

    peak_bytes : most of a GPU's memory that a microbatch took beyond weights and gradients; None on a CPU.
    """

    stage: int
    parameters: int
    tokens: int
    times_ms: dict[str, tuple[float, float]]
    peak_bytes: int | None = None

    def as_dict(self) -> dict[str, Any]:
        """A row of the answer: {stage, parameters, tokens, forward_ms, forward_p95_ms, …}."""
        row: dict[str, Any] = {"stage": self.stage, "parameters": self.parameters, "tokens": self.tokens}
        for name, (median, p95) in self.times_ms.items():
            row |= {f"{name}_ms": median, f"{name}_p95_ms": p95}
        return row


def config_of(model: str | HuggingFaceModel) -> dict[str, Any] | None:
    """`config` and `seq` of a training job's model; None where a preset is no config.json."""
    if isinstance(model, HuggingFaceModel):
        config: dict[str, Any] | None = model.root
    else:
        config = KNOWN[model].config if model in KNOWN else None
    if config is None:
        return None
    own = {name: value for name, value in config.items() if name != "seq"}
    return {"config": own, "seq": read_config(config).shape.seq}


def held_bytes(job: TrainJob, stage: int) -> int:
    """Bytes of a stage's weights and gradients: what is there whatever is measured."""
    return 2 * BYTES_OF_PARAMETER[job.device.dtype] * stage_parameters(job, stage)


def profile_stage(request: ProfileRequest, stage: int) -> StageTimes:
    """Measure stage number `stage`; one thread, as a rank of a run on the CPU has."""
    torch.set_num_threads(1)
    gc.collect()  # the stage before: what ran it has cycles
    job = request.job
    device = CudaDevice(0) if request.device == "cuda" else CpuDevice()
    module = Stage(job, stage).to(device.name)
    module.keep_cast()
    stopwatch = _Stopwatch()
    positions = [
        Position(
            before=_port(job, "gradient", device) if stage else None,
            after=_port(job, "activation", device) if stage < job.cell.stages - 1 else None,
        )
    ]
    executor = Executor(
        module,
        Part(work=tuple(_work(request)), positions=positions, links=[], late=False),
        Sizes.of(job),
        batch=lambda _: _tokens(job),
        device=device,
        gradients=Gradients(list(module.chunks), group=None, replica=0, replicas=1),
        recorder=stopwatch,  # type: ignore[arg-type]  # of the recorder, the executor uses no more than this
    )
    if device.apart:
        torch.cuda.reset_peak_memory_stats(device.name)
    before = device.peak_bytes()
    executor.run(0)
    after = device.peak_bytes()
    return StageTimes(
        stage=stage,
        parameters=sum(p.numel() for p in module.parameters()),
        tokens=job.cell.micro_batch * job.model.seq,
        times_ms=stopwatch.times_ms(),
        peak_bytes=None if before is None or after is None else after - before,
    )


def _work(request: ProfileRequest) -> list[Work]:
    """Each microbatch whole before the next begins."""
    kinds = [OpKind.F, *([OpKind.R] if request.recompute else []), OpKind.B]
    kinds += [OpKind.W] if request.split else []
    count = WARM_UP + request.repeats
    return [
        Work(
            kind=kind,
            microbatch=m,
            chunk=0,
            keep=not request.recompute,
            final=m == count - 1 and kind is kinds[-1],
            lasts_s=None,
        )
        for m in range(count)
        for kind in kinds
    ]


def _tokens(job: TrainJob) -> tuple[Tensor, Tensor]:
    shape = (job.cell.microbatches * job.cell.micro_batch, job.model.seq)
    drawn = np.random.default_rng(job.optimizer.seed).integers(0, job.model.vocabulary, (2, *shape))
    return torch.from_numpy(drawn[0]), torch.from_numpy(drawn[1])


@dataclass(slots=True)
class _Ready(Incoming):
    """A neighbour whose message, always the same, is there already: a GPU waits for no host that draws."""

    message: Tensor

    def post(self, key: Key, nbytes: int) -> None:
        """It is there already."""

    def wait(self, key: Key) -> Message:
        return Message(self.message, time.monotonic())


class _Dropped(Outgoing):
    """A neighbour that takes what is sent at once."""

    def send(self, key: Key, tensor: Tensor, ready: Moment) -> "_Dropped":
        return self

    def wait(self) -> Passage:
        now = time.monotonic()
        return Passage(start=now, end=now, arrives=now)


def _port(job: TrainJob, payload: Literal["activation", "gradient"], device: Device) -> Port:
    hop = HopDirection(
        track="lan", from_stage=0, to_stage=0, payload=payload, chunk=0, nbytes=job.tensor_bytes
    )
    shape = (job.cell.micro_batch, job.model.seq, job.model.hidden)
    message = device.host_buffer(shape, DTYPES[job.device.dtype])
    message.normal_(generator=torch.Generator().manual_seed(job.optimizer.seed))
    return Port(incoming=_Ready(message), outgoing=_Dropped(), takes=0, hop=hop)


class _Stopwatch:
    """Durations of ops by kind, as a Recorder is told of them."""

    def __init__(self) -> None:
        self._seconds: dict[str, list[float]] = defaultdict(list)

    def op(self, op: str, microbatch: int, start: float, end: float, *, chunk: int) -> None:
        del chunk
        if microbatch >= WARM_UP:
            self._seconds[NAMES[op]].append(end - start)

    def sent(self, hop: HopDirection, microbatch: int, sent: Any) -> None:
        """Nobody asks how long it took."""

    def times_ms(self) -> dict[str, tuple[float, float]]:
        return {
            name: (float(np.median(seconds)) * 1e3, float(np.percentile(seconds, 95)) * 1e3)
            for name, seconds in self._seconds.items()
        }
