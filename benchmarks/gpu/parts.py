"""The parts by name, the most telling first, each with the seconds that it may take."""

from dataclasses import dataclass
from typing import Protocol

from benchmarks.gpu import layers, machine, prompts, runs, swapping
from benchmarks.gpu.report import Report


class Run(Protocol):
    """Measures one part; with `dry` small models on the CPU."""

    def __call__(self, *, dry: bool) -> Report: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """One part of the benchmark."""

    run: Run
    seconds: float


PARTS: dict[str, Part] = {
    "machine": Part(run=machine.machine, seconds=30),
    "policies": Part(run=runs.policies, seconds=150),
    "layers": Part(run=layers.layers, seconds=100),
    "overhead": Part(run=runs.overhead, seconds=80),
    "recovery": Part(run=runs.recovery, seconds=60),
    "checkpoints": Part(run=runs.checkpoints, seconds=100),
    "overlap": Part(run=machine.overlap, seconds=30),
    "prefill": Part(run=prompts.latency, seconds=60),
    "sold": Part(run=prompts.sold, seconds=150),
    "memory": Part(run=runs.memory, seconds=90),
    "swap": Part(run=swapping.swap, seconds=90),
    "blocks": Part(run=layers.blocks, seconds=70),
}
