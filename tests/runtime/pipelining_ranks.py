"""Ranks that run our schedules in torch.distributed.pipelining over gloo, next to one process.

Run: python -m tests.runtime.pipelining_ranks FOLDER. Every rank writes FOLDER/<rank>.json: by case the
largest relative deviations of losses and gradients. One group of forked ranks runs all cases, since torch is
imported once.
"""

import json
import os
import sys
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.pipelining import PipelineStage
from torch.distributed.pipelining.schedules import _PipelineScheduleRuntime

from engine.inputs import parse
from engine.pipelining import positions_of, runtime_of
from engine.schedule import Scenario, Schedule, build
from engine.schedule.torch_actions import add_reductions, torch_actions, torch_csv
from engine.schedule.torch_exchange import add_exchange

RANKS, MICROBATCHES, ROWS, WIDTH, STEPS = 4, 6, 2, 5, 2
WAN = {"latency": 3, "transfer": 0.5}
SLOW = {"latency": 1, "transfer": 2}
SPLIT = {"times": {"forward": 1, "backward": 1, "weight": 1}}
CASES: dict[str, dict[str, Any]] = {
    "gpipe": {"policy": "gpipe", "stages": 3},
    "1f1b": {"policy": "1f1b", "stages": 4},
    "interleaved": {"policy": "interleaved", "stages": 3},
    "interleaved, 2 ranks, 3 chunks": {"policy": "interleaved", "stages": 2, "chunks": 3},
    "varuna": {"policy": "varuna", "stages": 3},
    "atlas": {"policy": "atlas", "stages": 3, "pipelines": 2},
    "zb-h1": {"policy": "zb-h1", "stages": 4, **SPLIT},
    "zb-v": {"policy": "zb-v", "stages": 4, **SPLIT},
    "zb-v, from a file": {"policy": "zb-v", "stages": 2, **SPLIT},
    "zb-v, 1 rank": {"policy": "zb-v", "stages": 1, **SPLIT},
    "crosspipe-ud": {"policy": "crosspipe-ud", "stages": 4, **SPLIT},
    "crosspipe-udsub": {"policy": "crosspipe-udsub", "stages": 2, **SPLIT},
    "crosspipe-loop": {"policy": "crosspipe-loop", "stages": 2},
    "crosspipe-wave": {"policy": "crosspipe-wave", "stages": 3, **SPLIT},
    "crosspipe-loop, outputs held back": {"policy": "crosspipe-loop", "stages": 2, "wan": SLOW},
    "crosspipe-wave, fp32": {"policy": "crosspipe-wave", "stages": 2, **SPLIT},
}


def scenario_of(case: str) -> Scenario:
    """The scenario of a case: the last stage is in a data centre of its own."""
    fields = {"times": {"forward": 1, "backward": 1.5}, **CASES[case]}
    dcs = [0] * (fields["stages"] - 1) + [min(1, fields["stages"] - 1)]
    return parse(Scenario, {"microbatches": MICROBATCHES, "dc_of_stage": dcs, "wan": WAN, **fields})


def schedules() -> dict[str, Schedule]:
    """The schedule of each case."""
    return {case: build(scenario_of(case)).schedule for case in CASES}  # type: ignore[union-attr]


def layer(position: int, dtype: torch.dtype) -> nn.Module:
    """The model at one position; the seed is its own."""
    torch.manual_seed(position)
    return nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.Tanh(), nn.Linear(WIDTH, WIDTH)).to(dtype)


def batch(step: int, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """Inputs and targets of a step, for all microbatches."""
    torch.manual_seed(1000 + step)
    shape = (MICROBATCHES * ROWS, WIDTH)
    return torch.randn(shape, dtype=dtype), torch.randn(shape, dtype=dtype)


def loss_of(output: Tensor, target: Tensor) -> Tensor:
    """Mean squared error."""
    return ((output - target) ** 2).mean()


class OneProcess:
    """The whole model in one process: losses by microbatch, and gradients by position."""

    def __init__(self, positions: int, dtype: torch.dtype) -> None:
        self.layers = [layer(position, dtype) for position in range(positions)]
        self.dtype = dtype

    def step(self, number: int) -> list[Tensor]:
        """Add the gradients of a step; return the loss of each microbatch."""
        inputs, targets = batch(number, self.dtype)
        output = nn.Sequential(*self.layers)(inputs)
        loss_of(output, targets).backward()  # type: ignore[no-untyped-call]
        parts = zip(output.chunk(MICROBATCHES), targets.chunk(MICROBATCHES), strict=True)
        return [loss_of(*part).detach() for part in parts]


def deviation(ours: Tensor, theirs: Tensor | None) -> float:
    """The largest difference, relative to the largest value."""
    assert theirs is not None
    return float((ours - theirs).abs().max() / theirs.abs().max())


def runtime(case: str, schedule: Schedule, stages: list[PipelineStage], folder: Path) -> Any:
    """torch's runtime; where the case says so, from the file that `meridian simulate --torch` writes."""
    pipeline = schedule.pipelines - 1
    if "from a file" not in case:
        return runtime_of(schedule, stages, loss_of, pipeline=pipeline)
    file = folder / f"rank{stages[0].group_rank}.csv"
    actions = add_reductions(torch_actions(schedule, pipeline))
    file.write_text(torch_csv(add_exchange(actions, schedule, pipeline)))
    result = _PipelineScheduleRuntime(list(stages), schedule.microbatches, loss_fn=loss_of)
    result._load_csv(str(file), format="compute_comms")
    return result


def run(case: str, schedule: Schedule, group: dist.ProcessGroup, rank: int, folder: Path) -> dict[str, float]:
    """The largest deviations of losses and gradients on this rank."""
    dtype = torch.float32 if "fp32" in case else torch.float64
    length = len(schedule.traversal.positions)
    layers = {position: layer(position, dtype) for position in positions_of(schedule, rank)}
    device = torch.device("cpu")
    stages = [PipelineStage(one, position, length, device, group=group) for position, one in layers.items()]
    pipe = runtime(case, schedule, stages, folder)
    plain = OneProcess(length, dtype)
    worst = {"losses": 0.0, "gradients": 0.0}
    for number in range(STEPS):
        for module in [*layers.values(), *plain.layers]:
            module.zero_grad()
        inputs, targets = batch(number, dtype)
        losses: list[Tensor] = []
        pipe.step(
            *([inputs] if 0 in layers else []),
            **({"target": targets, "losses": losses} if length - 1 in layers else {}),
        )
        expected = plain.step(number)
        assert len(losses) == (MICROBATCHES if length - 1 in layers else 0)
        if losses:
            error = deviation(torch.stack(losses).detach(), torch.stack(expected))
            worst["losses"] = max(worst["losses"], error)
        for position, module in layers.items():
            pairs = zip(module.parameters(), plain.layers[position].parameters(), strict=True)
            error = max(deviation(ours.grad, theirs.grad) for ours, theirs in pairs)  # type: ignore[arg-type]
            worst["gradients"] = max(worst["gradients"], error)
    return worst


def main(rank: int, folder: Path, built: dict[str, Schedule]) -> None:
    """Run every case that has a stage for this rank."""
    torch.set_num_threads(1)
    dist.init_process_group(
        "gloo",
        init_method=f"file://{folder / 'rendezvous'}",
        rank=rank,
        world_size=RANKS,
        timeout=timedelta(seconds=60),
    )
    groups = {size: dist.new_group(list(range(size))) for size in range(1, RANKS + 1)}
    answers = {
        case: run(case, schedule, groups[schedule.stages], rank, folder)
        for case, schedule in built.items()
        if rank < schedule.stages
    }
    (folder / f"{rank}.json").write_text(json.dumps(answers))
    dist.destroy_process_group()


def fork(folder: Path) -> int:
    """Fork the ranks; the exit status is 0 if that of each is."""
    built = schedules()
    pids = []
    for rank in range(RANKS):
        pid = os.fork()
        if pid == 0:
            try:
                main(rank, folder, built)
            except BaseException:
                sys.excepthook(*sys.exc_info())
                os._exit(1)
            os._exit(0)
        pids.append(pid)
    return max(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) != 0 for pid in pids)


if __name__ == "__main__":
    sys.exit(fork(Path(sys.argv[1])))
