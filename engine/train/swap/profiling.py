"""What a swap plan needs of each layer, measured on this machine (ATOM §III-D, "Profiled operators").

Layers are those that a swap run can cut between: embedding, blocks, head. Each is brought to the device by
itself, so a model that does not fit can be measured. Its ops are those of a worker's round
(engine.train.swap.rounds): a forward pass without a graph; then one with it, and the backward pass. A time is
from the op's first call until the device is done, so it holds the gaps between the kernels, too.
"""

import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from statistics import median
from typing import Any, Literal

import numpy as np
import torch
from pydantic import model_validator
from torch import Tensor
from torch.autograd.graph import saved_tensors_hooks

from engine.errors import InputError
from engine.job.job import TrainJob
from engine.nn.device import CpuDevice, CudaDevice, Device
from engine.nn.model import DTYPES, Chunk, loss_of
from engine.plan.swap.layers import Layer
from engine.train.profiling import WARM_UP, ProfileRequest

NOT_OF_LAYERS = ("stages", "recompute", "split")


class SwapProfileRequest(ProfileRequest):
    """What to measure, of the fields of a profile of stages.

    gradients : host counts a layer's gradients in its memory, as a plan with `gradients: host` needs.
    """

    gradients: Literal["host", "device"] = "host"

    @model_validator(mode="after")
    def _of_layers(self) -> "SwapProfileRequest":
        for name in NOT_OF_LAYERS:
            if name in self.model_fields_set:
                allowed = "must be left out: layers are measured one by one, and recomputed"
                raise InputError(name, getattr(self, name), allowed)
        return self


@dataclass(frozen=True, slots=True, kw_only=True)
class SwapProfile:
    """The layers of a model as measured; `load_bytes_per_s`: of all their loads together."""

    layers: tuple[Layer, ...]
    load_bytes_per_s: float

    def as_dict(self) -> dict[str, Any]:
        """The measured part of the answer; `layers` is what `meridian swap` takes."""
        return {
            "layers": [asdict(layer) for layer in self.layers],
            "host_to_device_gb_s": self.load_bytes_per_s / 1e9,
        }


def profile_layers(
    request: SwapProfileRequest, report: Callable[[int], None] = lambda _: None
) -> SwapProfile:
    """Measure every layer of the model with one thread; `report` gets the number of each that is done."""
    torch.set_num_threads(1)
    job = request.job
    device: Device = CudaDevice(0) if request.device == "cuda" else CpuDevice()
    layers = []
    for number in range(job.model.layers + 2):
        layers.append(_Measured(request, job, device, number).layer())
        report(number)
    seconds = sum(layer.load_s for layer in layers)
    return SwapProfile(
        layers=tuple(layers), load_bytes_per_s=sum(layer.parameter_bytes for layer in layers) / seconds
    )


def covered(intervals: Sequence[tuple[float, float]]) -> float:
    """The length that intervals cover together."""
    total, reached = 0.0, float("-inf")
    for start, end in sorted(intervals):
        total += max(0.0, end - max(start, reached))
        reached = max(reached, end)
    return total


class _Measured:
    """One layer, alone on the device."""

    def __init__(self, request: SwapProfileRequest, job: TrainJob, device: Device, number: int) -> None:
        self._request, self._job, self._device, self._number = request, job, device, number
        self._last = number == job.model.layers + 1
        self._chunk = Chunk(job, [number])
        self._load_s, self._bytes = self._load()
        self._chunk.to(device.name)
        for parameter in self._chunk.parameters():
            parameter.grad = torch.zeros_like(parameter)
        self._input, self._targets = self._drawn()

    def layer(self) -> Layer:
        """Its memory and times, medians over the mini-batches after the warm-up."""
        times = [self._times() for _ in range(WARM_UP + self._request.repeats)][WARM_UP:]
        copies = 2 if self._request.gradients == "host" else 1
        count = self._job.model.layers + 2
        names = {0: "embedding", count - 1: "head"}
        return Layer(
            name=names.get(self._number, f"block {self._number - 1}"),
            memory_bytes=float(copies * self._bytes + self._working_bytes()),
            forward_s=median(forward for forward, _ in times),
            backward_s=median(backward for _, backward in times),
            load_s=self._load_s,
            cut_bytes=0 if self._last else self._job.tensor_bytes,
            parameter_bytes=float(self._bytes),
            gap_s=(1 - self._kernel_share()) * sum(median(row) for row in zip(*times, strict=True)),
        )

    def _load(self) -> tuple[float, int]:
        """Seconds to copy its parameters to the device in one piece, and their bytes."""
        flat = torch.cat([parameter.detach().flatten() for parameter in self._chunk.parameters()])
        source = self._device.host_buffer(tuple(flat.shape), flat.dtype)
        source.copy_(flat)
        into = torch.empty(flat.shape, dtype=flat.dtype, device=self._device.name)
        seconds = []
        for _ in range(WARM_UP + self._request.repeats):
            start = time.monotonic()
            self._device.copy_in(source, into)
            seconds.append(time.monotonic() - start)
        return median(seconds[WARM_UP:]), flat.nbytes

    def _drawn(self) -> tuple[Tensor, Tensor]:
        """A mini-batch: tokens for the embedding, activations for others, and targets."""
        model, random = self._job.model, np.random.default_rng(self._request.seed)
        shape = (self._job.cell.micro_batch, model.seq)
        tokens, targets = (torch.from_numpy(random.integers(0, model.vocabulary, shape)) for _ in range(2))
        if self._number == 0:
            return tokens, targets
        generator = torch.Generator().manual_seed(self._request.seed)
        dtype = DTYPES[self._job.device.dtype]
        return torch.randn((*shape, model.hidden), generator=generator).to(dtype), targets

    def _call(self, given: Tensor) -> Tensor:
        output: Tensor = self._chunk(given)
        return loss_of(output, self._targets.to(self._device.name), None) if self._last else output

    def _given(self) -> Tensor:
        given = self._input.to(self._device.name)
        return given.detach().requires_grad_() if self._number else given

    def _times(self) -> tuple[float, float]:
        """Seconds of a forward pass without a graph, and of another one with its backward pass."""
        given = self._given()
        self._device.settle()
        start = time.monotonic()
        with torch.no_grad():
            self._call(given)
        self._device.settle()
        middle = time.monotonic()
        self._there_and_back(given)
        self._device.settle()
        return middle - start, time.monotonic() - middle

    def _there_and_back(self, given: Tensor) -> None:
        output = self._call(given)
        torch.autograd.backward((output,), (torch.ones_like(output),))

    def _kernel_share(self) -> float:
        """Share of both passes in which a kernel runs, by torch's profiler, which makes all of them longer.

        On a CPU an operator of torch is the kernel, and the gaps are Python's between two of them.
        """
        activities = [torch.profiler.ProfilerActivity.CPU]
        if self._device.apart:
            activities.append(torch.profiler.ProfilerActivity.CUDA)
        with torch.profiler.profile(activities=activities) as profiler:
            seconds = sum(self._times())
        kind = torch.autograd.DeviceType.CUDA if self._device.apart else torch.autograd.DeviceType.CPU
        kernels = [
            (event.time_range.start, event.time_range.end)
            for event in profiler.events()
            if event.device_type == kind and (self._device.apart or event.name.startswith("aten::"))
        ]
        return min(1.0, covered(kernels) / 1e6 / seconds)

    def _working_bytes(self) -> int:
        """Beyond parameters and gradients: the allocator's peak on a GPU, on a CPU what the graph keeps."""
        given = self._given()
        if self._device.apart:
            torch.cuda.reset_peak_memory_stats(self._device.name)
            before = torch.cuda.memory_allocated(self._device.name) - given.nbytes
            self._there_and_back(given)
            self._device.settle()
            return int(torch.cuda.max_memory_allocated(self._device.name) - before)
        own = {parameter.untyped_storage().data_ptr() for parameter in self._chunk.parameters()}
        sizes = {given.untyped_storage().data_ptr(): given.nbytes}

        def note(tensor: Tensor) -> Tensor:
            storage = tensor.untyped_storage()
            if storage.data_ptr() not in own:
                sizes[storage.data_ptr()] = storage.nbytes()
            return tensor

        with saved_tensors_hooks(note, lambda tensor: tensor):
            output = self._call(given)
        sizes[output.untyped_storage().data_ptr()] = output.nbytes
        return sum(sizes.values())
