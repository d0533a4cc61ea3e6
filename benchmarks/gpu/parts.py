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
    """One part of the benchmark; `timed` parts have the machine to themselves, the others run together."""

    run: Run
    seconds: float
    timed: bool = True


PARTS: dict[str, Part] = {
    "machine": Part(run=machine.machine, seconds=30),
    "policies": Part(run=runs.policies, seconds=200, timed=False),
    "checkpoints": Part(run=runs.checkpoints, seconds=200, timed=False),
    "activations": Part(run=runs.activations, seconds=200, timed=False),
    "memory": Part(run=runs.memory, seconds=200, timed=False),
    "layers": Part(run=layers.layers, seconds=60),
    "sold": Part(run=prompts.sold, seconds=120),
    "overhead": Part(run=runs.overhead, seconds=80),
    "recovery": Part(run=runs.recovery, seconds=60),
    "swap": Part(run=swapping.swap, seconds=100),
    "prefill": Part(run=prompts.latency, seconds=60),
    "overlap": Part(run=machine.overlap, seconds=30),
    "blocks": Part(run=layers.blocks, seconds=70),
}
