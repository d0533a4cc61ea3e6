"""Small profiled pipelines of torch.distributed.pipelining over gloo; they write down when they work.

Run: python -m tests.runtime.profiled_pipeline FOLDER. The ranks of each case are forks of it, which need not
import torch again; their files are in FOLDER/SCHEDULE-RANKS.
"""

import json
import sys
import time
from functools import partial
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.pipelining import PipelineStage, Schedule1F1B, ScheduleGPipe, ScheduleInterleaved1F1B
from torch.profiler import ProfilerActivity, profile, schedule

from tests.runtime.tp_ranks import forked, reap

CASES = [("gpipe", 2), ("1f1b", 2), ("1f1b", 4), ("interleaved", 2)]
# A quarter of an op is what `meridian analyze` takes for one: no pause of a busy machine may be so long.
FORWARD_S, BACKWARD_S = 0.12, 0.24
MICROBATCHES, STEPS, WARM = 4, 2, 2

worked: list[tuple[float, float]] = []


def work(seconds: float) -> None:
    """Take this long, and write it down."""
    begin = time.time()
    time.sleep(seconds)
    worked.append((begin, time.time()))


class Sleep(torch.autograd.Function):
    """Passes values on after a while, both ways."""

    @staticmethod
    def forward(ctx: Any, values: torch.Tensor) -> torch.Tensor:
        work(FORWARD_S)
        return values * 1.0

    @staticmethod
    def backward(ctx: Any, gradients: torch.Tensor) -> torch.Tensor:  # type: ignore[override]
        work(BACKWARD_S)
        return gradients * 1.0


class Layer(torch.nn.Module):
    """One stage."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = torch.nn.Linear(8, 8)

    def forward(self, values: torch.Tensor) -> torch.Tensor:
        return Sleep.apply(self.linear(values))  # type: ignore[no-untyped-call, no-any-return]


def pipeline(kind: str, rank: int, world: int) -> Any:
    """The schedule of this rank."""

    def loss(output: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        return ((output - target) ** 2).mean()

    if kind == "interleaved":
        stages = [PipelineStage(Layer(), at, 2 * world, torch.device("cpu")) for at in (rank, rank + world)]
        return ScheduleInterleaved1F1B(stages, MICROBATCHES, loss_fn=loss)  # type: ignore[arg-type]
    stage = PipelineStage(Layer(), rank, world, torch.device("cpu"))
    return {"gpipe": ScheduleGPipe, "1f1b": Schedule1F1B}[kind](stage, MICROBATCHES, loss_fn=loss)


def be_rank(kind: str, rank: int, world: int, folder: Path) -> None:
    """Train some steps, of which the last are profiled."""
    torch.set_num_threads(1)
    dist.init_process_group(
        "gloo", init_method=f"file://{folder / 'rendezvous'}", rank=rank, world_size=world
    )
    stages = pipeline(kind, rank, world)
    inputs = (torch.randn(8, 8),) if rank == 0 else ()
    target = {"target": torch.randn(8, 8)} if rank == world - 1 else {}
    steps: list[list[tuple[float, float]]] = []

    def export(profiler: Any) -> None:
        profiler.export_chrome_trace(str(folder / f"rank{rank}_trace.json"))

    plan = schedule(wait=0, warmup=WARM, active=STEPS)
    with profile(activities=[ProfilerActivity.CPU], schedule=plan, on_trace_ready=export) as profiler:
        for _ in range(WARM + STEPS):
            dist.barrier()
            worked.clear()
            stages.step(*inputs, **target)
            steps.append(list(worked))
            profiler.step()
    (folder / f"rank{rank}.worked").write_text(json.dumps(steps[WARM:]))
    dist.destroy_process_group()


def fork(kind: str, world: int, folder: Path) -> list[int]:
    """Start the ranks of one case."""
    folder.mkdir()
    return [forked(partial(be_rank, kind, rank, world, folder)) for rank in range(world)]


if __name__ == "__main__":
    # All at once: they sleep for the most part.
    reap([pid for kind, world in CASES for pid in fork(kind, world, Path(sys.argv[1]) / f"{kind}-{world}")])
