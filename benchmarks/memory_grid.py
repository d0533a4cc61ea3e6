"""Planned memory of stages against what they take: ``python -m benchmarks.memory_grid [--dtype fp32]``.

Forty cases: two families × five layouts × four settings of recomputation, tensor parallelism and micro-batch,
in which each pair of values occurs once. The first and the last stage of each case train an iteration and an
optimizer step on the CPU, in the schedule's order; their neighbours are played by buffers, the ranks of a
tensor-parallel stage are processes that sum over gloo. torch's MemTracker counts the bytes of all tensors
after each op: no allocator rounds them up, and what a kernel takes inside is not seen. A row has the stage
whose count is further off. The exit status is 1 if a case is more than 10 % off, or takes more than its count
and the margin.
"""

import argparse
import gc
import platform
import sys
import tempfile
import time
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from itertools import product
from multiprocessing import get_context
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed._tools.mem_tracker import MemTracker

from engine.commands.tables import render
from engine.inputs import parse
from engine.job.job import TrainJob
from engine.job.launch import RankAssignment, single_machine
from engine.job.memory import stage_memory
from engine.job.planned import schedule_of
from engine.model.memory import ALLOCATOR_MARGIN
from engine.nn.device import CpuDevice, Moment
from engine.nn.model import DTYPES, Stage
from engine.nn.one_rank import ONE_RANK, OneRank
from engine.nn.tensor_parallel import TpGroup
from engine.schedule import Schedule
from engine.train.exchange import Key, Message, Passage
from engine.train.executor import Executor, Part, Port, Position, Sizes, work_of
from engine.train.gradients import Gradients
from engine.train.recorder import HopDirection

MOST_OFF = 0.1
SIZES: dict[str, Any] = {"layers": 4, "hidden": 512, "heads": 8, "seq": 256, "vocab": 2048}
FAMILIES: dict[str, dict[str, Any]] = {"gpt": {"family": "gpt"}, "llama": {"family": "llama", "kv_heads": 2}}
LAYOUTS = ((1, "1f1b", 1), (4, "1f1b", 1), (2, "interleaved", 2), (2, "zb-h1", 1), (2, "zb-v", 2))
# Recomputation, tensor-parallel degree, micro-batch.
SETTINGS = ((False, 1, 1), (False, 2, 4), (True, 1, 4), (True, 2, 1))
MICROBATCHES = 4
HEAD = [
    *("family, policy", "stages", "chunks", "tp", "micro-\nbatch", "recom-\nputed", "stage"),
    *("always\nMB", "planned\nMB", "measured\nMB", "off\n%"),
]


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """A training job of the grid; chunks are those of its policy."""

    family: str
    stages: int
    policy: str
    chunks: int
    recompute: bool
    tp: int
    micro_batch: int

    def job(self, dtype: str) -> TrainJob:
        """Its document."""
        chunks = {"chunks": self.chunks} if self.policy == "interleaved" else {}
        return parse(
            TrainJob,
            {
                "datacenters": [{"name": "here", "gpus": self.stages * self.tp}],
                "cell": {
                    "stages": self.stages,
                    "tp": self.tp,
                    "microbatches": MICROBATCHES,
                    "micro_batch": self.micro_batch,
                    "recompute": self.recompute,
                },
                "model": SIZES | FAMILIES[self.family],
                "device": {"dtype": dtype},
                "optimizer": {"steps": 1},
                "strategy": {"kind": "pipeline", "policy": self.policy} | chunks,
            },
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """Bytes of a stage: planned, measured, and of these what is there at all times."""

    stage: int
    planned: int
    peak: int
    always: int

    @property
    def off(self) -> float:
        """Relative error of the count."""
        return self.planned / self.peak - 1


def cases() -> Iterator[Case]:
    """All of the grid."""
    for family, (stages, policy, chunks), (recompute, tp, micro_batch) in product(
        FAMILIES, LAYOUTS, SETTINGS
    ):
        yield Case(
            family=family,
            stages=stages,
            policy=policy,
            chunks=chunks,
            recompute=recompute,
            tp=tp,
            micro_batch=micro_batch,
        )


class _Tracker(MemTracker):
    """MemTracker without its account by module, which knows one call of each module and no split backward."""

    def __init__(self) -> None:
        super().__init__()
        self._mod_tracker = _NoModules()  # type: ignore[assignment]


class _NoModules:
    is_bw = False

    def register_user_hooks(self, *hooks: Any) -> None:
        """Nobody is told of modules."""

    def clear_user_hooks(self) -> None:
        """There are none."""

    def __enter__(self) -> "_NoModules":
        return self

    def __exit__(self, *error: object) -> None:
        """Nothing to undo."""


class _Neighbour:
    """An adjacent stage, and the recorder: what is waited for comes at once, what is sent is dropped."""

    def __init__(self, job: TrainJob) -> None:
        self._shape = job.cell.micro_batch, job.model.seq, job.model.hidden
        self._dtype = DTYPES[job.device.dtype]

    def begin(self, iteration: int) -> None:
        """Nothing to prepare."""

    def post(self, key: Key, nbytes: int) -> None:
        """Nothing to prepare."""

    def send(self, key: Key, tensor: Tensor, ready: Moment) -> "_Neighbour":
        return self

    def wait(self, key: Key | None = None) -> Any:
        now = time.monotonic()
        if key is None:
            return Passage(start=now, end=now, arrives=now)
        return Message(torch.ones(self._shape, dtype=self._dtype), now)

    def op(self, op: str, microbatch: int, start: float, end: float, *, chunk: int) -> None:
        """Nobody asks how long it took."""

    def sent(self, hop: HopDirection, microbatch: int, sent: Any) -> None:
        """Nobody asks how long it took."""

    def port(self, job: TrainJob, payload: Any, chunk: int) -> Port:
        hop = HopDirection(
            track="lan", from_stage=0, to_stage=0, payload=payload, chunk=chunk, nbytes=job.tensor_bytes
        )
        return Port(incoming=self, outgoing=self, takes=chunk, hop=hop)


def peak_of(job: TrainJob, me: RankAssignment, store: str | None = None) -> tuple[int, int]:
    """The most bytes of all tensors of a rank in an iteration, and those that are there at all times."""
    torch.set_num_threads(1)
    tp = _group(me, job, store) if store else ONE_RANK
    schedule, neighbour = schedule_of(job), _Neighbour(job)
    stage = Stage(job, me.stage, schedule.traversal)
    tp.cut(stage.layers)
    if job.cell.tp == 1:  # as a rank of a run has it
        stage.keep_cast()
    gradients = Gradients(list(stage.chunks), group=None, replica=0, replicas=1, tp=tp)
    optimizer = torch.optim.AdamW(tp.groups(list(stage.parameters())), fused=True)
    executor = Executor(
        stage,
        Part(
            work=work_of(schedule, 0, me.stage, lambda kind: None),
            positions=_positions(job, schedule, me.stage, neighbour),
            links=[],
            late=False,
        ),
        Sizes.of(job),
        batch=lambda _: _tokens(job),
        gradients=gradients,
        recorder=neighbour,  # type: ignore[arg-type]  # of the recorder, the executor uses no more than this
        device=CpuDevice(),
        tp=tp,
    )

    optimizer.step()  # its state is there from the first step on
    gc.collect()
    tracker = _Tracker()
    copies = [copy for chunk in stage.chunks for cast in chunk.cast for copy in cast.copies.values()]  # type: ignore[union-attr]
    moments = [one for state in optimizer.state.values() for one in state.values() if torch.is_tensor(one)]
    tracker.track_external(stage, gradients._flat, *copies, *moments)
    always = _total(tracker, "current")
    with tracker:
        executor.run(0)
        optimizer.step()
        stage.cast_again()
    if store:
        dist.destroy_process_group()
    return _total(tracker, "peak"), always


def _group(me: RankAssignment, job: TrainJob, store: str) -> OneRank:
    return TpGroup(me, job.cell.tp, dist.FileStore(store, job.cell.tp), CpuDevice())


def _positions(job: TrainJob, schedule: Schedule, stage: int, neighbour: _Neighbour) -> list[Position]:
    path = schedule.traversal.positions

    def side(position: int, payload: str) -> Port | int | None:
        if not 0 <= position < len(path):
            return None
        there, chunk = path[position]
        return chunk if there == stage else neighbour.port(job, payload, chunk)

    here = [position for position, (of, _) in sorted(enumerate(path), key=lambda row: row[1]) if of == stage]
    return [Position(before=side(at - 1, "gradient"), after=side(at + 1, "activation")) for at in here]


def _tokens(job: TrainJob) -> tuple[Tensor, Tensor]:
    shape = 2, job.cell.microbatches * job.cell.micro_batch, job.model.seq
    tokens = torch.from_numpy(np.random.default_rng(0).integers(0, job.model.vocabulary, shape))
    return tokens[0], tokens[1]


def _total(tracker: MemTracker, kind: str) -> int:
    return int(tracker.get_tracker_snapshot(kind)[torch.device("cpu")]["Total"])


def measured(case: Case, dtype: str, ranks: ProcessPoolExecutor) -> Measured:
    """The stage of a case, of the first and the last, whose count is further off."""
    job = case.job(dtype)
    planned = stage_memory(job)
    rows = []
    for number in sorted({0, case.stages - 1}):
        mine = [me for me in single_machine(job, run="grid", log_dir="").ranks if me.stage == number]
        if case.tp == 1:
            peak, always = peak_of(job, mine[0])
        else:
            with tempfile.TemporaryDirectory() as folder:
                peaks = [ranks.submit(peak_of, job, me, f"{folder}/store") for me in mine]
                peak, always = max(one.result() for one in peaks)
        rows.append(Measured(stage=number, planned=planned[number].total_bytes, peak=peak, always=always))
    return max(rows, key=lambda row: abs(row.off))


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--dtype", choices=list(DTYPES), default="bf16")
    dtype = parser.parse_args().dtype
    torch.set_num_threads(1)
    lines, off, over = [], [], []
    with ProcessPoolExecutor(max(tp for _, tp, _ in SETTINGS), mp_context=get_context("spawn")) as ranks:
        for case in cases():
            row = measured(case, dtype, ranks)
            off.append(row.off)
            over.append(row.peak / row.planned - 1)
            lines.append(
                [
                    f"{case.family}, {case.policy}",
                    *(f"{n}" for n in (case.stages, case.chunks, case.tp, case.micro_batch)),
                    "yes" if case.recompute else "no",
                    f"{row.stage}",
                    *(f"{n / 1e6:.1f}" for n in (row.always, row.planned, row.peak)),
                    f"{100 * row.off:+.1f}",
                ]
            )
            print(" ".join(lines[-1]), file=sys.stderr, flush=True)
    print("\n".join(render(HEAD, lines, left=(0,))))
    print(
        f"\n{len(off)} cases, {dtype}, torch {torch.__version__}, {platform.machine()}: "
        f"{100 * float(np.mean(np.abs(off))):.1f} % off in the mean, "
        f"{100 * max(map(abs, off)):.1f} % at worst; "
        f"at most {100 * max(over):.1f} % more than planned (margin {100 * ALLOCATOR_MARGIN:.0f} %)"
    )
    sys.exit(max(map(abs, off)) > MOST_OFF or max(over) > ALLOCATOR_MARGIN)


if __name__ == "__main__":
    main()
