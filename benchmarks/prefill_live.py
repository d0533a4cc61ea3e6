"""What prefill costs a running training: ``python -m benchmarks.prefill_live``.

The demo cell on the emulated device, in blocks of iterations with and without prefill by turns. Prints the
slow-down of the blocks' mean iteration, with a 95 % bootstrap interval over pairs of neighbouring blocks, how
much prefill ran, times to first token against their objective, and how busy the CPU was, by other programs
too. Above 70 % nothing is claimed.
"""

import argparse
import asyncio
import json
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import psutil

from engine.control.asyncio_driver import AsyncChannel, call
from engine.control.coordinator_wire import FROM_COORDINATOR, GATEWAY_RANK, Answer
from engine.control.handshake import Identity
from engine.inputs import parse
from engine.job.changed import changed
from engine.job.events.event import Event
from engine.job.events.prefill import CoordinatorEvent, CoordinatorState, Prefill
from engine.job.events.training import Rank, Spans
from engine.job.job import TrainJob
from engine.job.launch import single_machine
from engine.prefill.messages import Accepted, Done, Failed, PrefillRequest, Refused
from engine.run.host_process import PipedHost
from engine.run.launcher import RankGroup
from engine.run.tiny import write_tiny

EXAMPLE = Path(__file__).parent.parent / "examples" / "demo.json"
# 108 ms for 512 tokens: three times as long as Llama-3-8B on an A100, so that the CPU, which plays twelve
# GPUs, has to compute fewer prompts a second.
LATENCY = {"a_ms": 6.0, "b_ms": 0.2, "c_ms": 0.0}
CLAIM_BELOW = 70.0  # per cent of the CPU
DRAWS = 10_000


@dataclass
class Told:
    """What the run and its coordinators said."""

    begins: list[float] = field(default_factory=list)  # Unix seconds of rank 0's iterations
    coordinators: dict[str, CoordinatorEvent] = field(default_factory=dict)
    ranks: set[int] = field(default_factory=set)  # their processes
    prefill_ms: float = 0.0
    waited_ms: float = 0.0  # of ops for chunks, over all GPUs
    guard_ms: float = 0.0  # the longest
    ttft_ms: list[float] = field(default_factory=list)
    ended: dict[str, int] = field(default_factory=dict)
    missed: int = 0

    def on_event(self, event: Event) -> None:
        """An event of the run."""
        match event:
            case Spans(rank=0):
                self.begins.append(event.start)
            case CoordinatorEvent(state=CoordinatorState.OPEN):
                self.coordinators[str(event.dc)] = event
            case Rank(pid=int(pid)):
                self.ranks.add(pid)
            case Prefill():
                self.prefill_ms += event.prefill_ms
                self.waited_ms += event.waited_ms
                self.guard_ms = max(self.guard_ms, event.guard_ms or 0.0)


class Asker:
    """Keeps `many` requests under way at one coordinator while it is told to."""

    def __init__(
        self, line: AsyncChannel[Answer], recorder: Told, options: argparse.Namespace, seed: int
    ) -> None:
        self._line, self._told, self._options = line, recorder, options
        self._draws = np.random.default_rng(seed)
        self._number = self.under_way = 0
        self.asking = False
        self._reading = asyncio.create_task(self._read())

    async def begin(self) -> None:
        """Ask, and go on asking with every answer."""
        self.asking = True
        for _ in range(self._options.many):
            await self._ask()

    async def _ask(self) -> None:
        self._number += 1
        self.under_way += 1
        tokens = int(self._draws.integers(16, self._options.longest))
        prompt = tuple(self._draws.integers(0, 256, tokens).tolist())
        await self._line.send(
            PrefillRequest(
                request=str(self._number),
                prompt=prompt,
                max_tokens=self._options.tokens,
                longest_prompt=10_000,
                ttft_objective_ms=self._options.objective,
            )
        )

    async def _read(self) -> None:
        recorder = self._told
        async for answer in self._line.messages():
            if not isinstance(answer, Done | Refused | Failed):
                recorder.ended["accepted"] = recorder.ended.get("accepted", 0) + isinstance(answer, Accepted)
                continue
            kind = "done" if isinstance(answer, Done) else f"{answer.kind}: {answer.reason}"
            recorder.ended[kind] = recorder.ended.get(kind, 0) + 1
            if isinstance(answer, Done):
                recorder.ttft_ms.append(answer.ttft_ms)
                recorder.missed += answer.ttft_ms > self._options.objective
            self.under_way -= 1
            if isinstance(answer, Refused):
                await asyncio.sleep(0.1)
            if self.asking:
                await self._ask()


async def measure(
    group: RankGroup, arguments: Told, options: argparse.Namespace, secret: str
) -> dict[str, Any]:
    """Run the blocks, and say what came out."""
    while len(arguments.coordinators) < options.coordinators:
        assert group.running(), "the run ended before its coordinators were there"
        await asyncio.sleep(0.1)
    me = Identity(rank=GATEWAY_RANK, run="bench", generation=1, secret=secret.encode())
    lines = [
        await call(d.host, d.port, me, d.rank, FROM_COORDINATOR) for d in arguments.coordinators.values()
    ]
    askers = [Asker(line, arguments, options, seed) for seed, line in enumerate(lines)]
    await iterations(arguments, 2)
    blocks: dict[bool, list[list[float]]] = {True: [], False: []}
    psutil.cpu_percent()
    began, prefill_before, waited_before, filled = (
        time.monotonic(),
        arguments.prefill_ms,
        arguments.waited_ms,
        0,
    )
    used = {on: dict.fromkeys(cpu_seconds(group, arguments), 0.0) for on in (True, False)}
    for block in range(2 * options.blocks):
        on, at = (block % 2 == 0) != (block // 2 % 2 == 1), len(arguments.begins)
        for asker in askers if on else ():
            await asker.begin()
        await iterations(arguments, 2)
        first, before_block = len(arguments.begins) - 1, cpu_seconds(group, arguments)
        await iterations(arguments, options.iterations)
        for kind, seconds in cpu_seconds(group, arguments).items():
            used[on][kind] += seconds - before_block[kind]
        blocks[on].append(np.diff(arguments.begins[first : first + options.iterations + 1]).tolist())
        for asker in askers:
            asker.asking = False
        while any(asker.under_way for asker in askers):
            await asyncio.sleep(0.02)
        filled += on * (len(arguments.begins) - at)
    counted = options.blocks * options.iterations
    more = {
        "cpu_percent": psutil.cpu_percent(),
        "cpu_ms_per_iteration": {
            name: {kind: round(1e3 * seconds / counted, 1) for kind, seconds in used[on].items()}
            for name, on in (("with", True), ("without", False))
        },
        "seconds": time.monotonic() - began,
        "prefill_gpu_s": (arguments.prefill_ms - prefill_before) / 1e3,
        "guard_ms": arguments.guard_ms,
        # Of iterations with prefill; by more no iteration can be slower for the placing.
        "ops_waited_ms_per_iteration": (arguments.waited_ms - waited_before) / max(1, filled),
    }
    return result(blocks, arguments, more)


def cpu_seconds(group: RankGroup, recorder: Told) -> dict[str, float]:
    """CPU time so far of all ranks, of all coordinators with their decoders, and of this process."""
    assert isinstance(group._host, PipedHost)
    seconds = {"ranks": 0.0, "coordinators": 0.0, "gateway": sum(psutil.Process().cpu_times()[:2])}
    for process in psutil.Process(group._host.process.pid).children(recursive=True):
        seconds["ranks" if process.pid in recorder.ranks else "coordinators"] += sum(process.cpu_times()[:2])
    return seconds


async def iterations(recorder: Told, count: int) -> None:
    """Wait until so many more have begun."""
    until = len(recorder.begins) + count
    while len(recorder.begins) < until:
        await asyncio.sleep(0.01)


def result(blocks: dict[bool, list[list[float]]], recorder: Told, more: dict[str, Any]) -> dict[str, Any]:
    """The figures."""
    ttft = (
        {f"p{q}": float(np.percentile(recorder.ttft_ms, q)) for q in (50, 95, 99)} if recorder.ttft_ms else {}
    )
    return {**slowdown(blocks), "ended": recorder.ended, "missed": recorder.missed, "ttft_ms": ttft, **more}


def slowdown(blocks: dict[bool, list[list[float]]]) -> dict[str, Any]:
    """Of iterations' seconds in blocks with prefill (True) over those without, with a 95 % interval."""
    means = {on: np.array([np.mean(block) for block in rows]) for on, rows in blocks.items()}
    # Neighbours, one of each kind, are set beside each other: what changes slowly is in both.
    ratios = means[True] / means[False]
    draws = np.random.default_rng(0)
    drawn = draws.choice(ratios, (DRAWS, len(ratios))).mean(axis=1)
    low, high = np.quantile(drawn, [0.025, 0.975]) - 1
    medians = {on: float(np.median([t for block in rows for t in block])) for on, rows in blocks.items()}
    return {
        "blocks": len(means[True]),
        "iteration_ms_with": 1e3 * float(means[True].mean()),
        "iteration_ms_without": 1e3 * float(means[False].mean()),
        "slowdown": float(ratios.mean() - 1),
        "low": float(low),
        "high": float(high),
        "slowdown_of_medians": medians[True] / medians[False] - 1,
    }


def say(figures: dict[str, Any]) -> None:
    """Print the figures, and whether the slow-down keeps its bar."""
    print(json.dumps(figures, indent=1))
    quiet = figures["cpu_percent"] <= CLAIM_BELOW
    claim = "under 1 %" if figures["high"] < 0.01 else "not under 1 %"
    print(f"upper end of the slow-down's 95 % interval: {figures['high']:+.2%}, {claim}", end="")
    print("" if quiet else f"; but the CPU was {figures['cpu_percent']:.0f} % busy: nothing is claimed")


def main() -> None:
    """Start the run, measure, stop it."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--blocks", type=int, default=30, help="of each kind")
    parser.add_argument("--iterations", type=int, default=4, help="of a block that are measured")
    parser.add_argument("--many", type=int, default=1, help="requests under way at each coordinator")
    parser.add_argument("--longest", type=int, default=512, help="tokens of a prompt")
    parser.add_argument("--tokens", type=int, default=1, help="to make; over 1 a decoder has work, too")
    parser.add_argument("--objective", type=float, default=2000.0, help="ms to the first token")
    options = parser.parse_args()
    document = json.loads(EXAMPLE.read_text())
    options.coordinators = len(set(document["cell"]["dc_of_stage"]))
    with tempfile.TemporaryDirectory() as folder:
        write_tiny(Path(folder) / "tiny", steps=0)
        prefill = {
            "checkpoint": f"{folder}/tiny",
            "dtype": "fp32",
            "weight_budget_gb": 0.002,
            "kv_budget_gb": 0.001,
            "latency": LATENCY,
            "chunk_tokens": 32,
            "pause_slowdown": 1.0,
        }
        job = parse(TrainJob, changed(document, {"optimizer.steps": 1_000_000, "prefill": prefill}))
        recorder, spec = Told(), single_machine(job, run="bench", log_dir=f"{folder}/log")
        group = RankGroup(spec, recorder.on_event)
        group.start()
        try:
            figures = asyncio.run(measure(group, recorder, options, spec.secret))
        finally:
            group.stop(1.0)
    say(figures)


if __name__ == "__main__":
    main()
