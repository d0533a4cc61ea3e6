"""The parts by name, the most telling first, each with the seconds that it may take."""

from dataclasses import dataclass
from typing import Protocol

from benchmarks.gpu import layers, machine, prompts, runs, swapping, variants
from benchmarks.gpu.report import Report


class Run(Protocol):
    """Measures one part; with `dry` small models on the CPU."""

    def __call__(self, *, dry: bool) -> Report: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """One part of the benchmark.

    timed : it has the machine to itself; the others run together.  gpus : a machine with fewer skips it.
    """

    run: Run
    seconds: float
    timed: bool = True
    gpus: int = 1


# On one GPU the turns take 9 minutes at most, all together.
PARTS: dict[str, Part] = {
    "machine": Part(run=machine.machine, seconds=20),
    "gpus": Part(run=variants.gpus, seconds=120, gpus=2),
    "policies": Part(run=runs.policies, seconds=170, timed=False),
    "variants": Part(run=variants.variants, seconds=170, timed=False),
    "checkpoints": Part(run=runs.checkpoints, seconds=170, timed=False),
    "activations": Part(run=runs.activations, seconds=170, timed=False),
    "memory": Part(run=runs.memory, seconds=170, timed=False),
    "layers": Part(run=layers.layers, seconds=45),
    "sold": Part(run=prompts.sold, seconds=80),
    "overhead": Part(run=runs.overhead, seconds=45),
    "recovery": Part(run=runs.recovery, seconds=45),
    "swap": Part(run=swapping.swap, seconds=50),
    "prefill": Part(run=prompts.latency, seconds=35),
    "overlap": Part(run=machine.overlap, seconds=15),
    "blocks": Part(run=layers.blocks, seconds=35),
}
