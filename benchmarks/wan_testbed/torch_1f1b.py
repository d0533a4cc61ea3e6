"""What runs are measured against: torch.distributed.pipelining's 1F1B over gloo, one TCP connection a pair.

    python -m benchmarks.wan_testbed.torch_1f1b SETTING DC

SETTING is a file with the JSON of `Setting`. The process imports torch once and forks the ranks of its data
centre. A stage makes the bytes of an activation and lasts as long as its op; a backward lasts as long as
recomputation and backward together. Rank 0 prints the seconds of each iteration.
"""

import contextlib
import json
import os
import signal
import sys
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.pipelining import PipelineStage, Schedule1F1B

INPUTS = 8  # numbers that a first stage is given
PARAMETERS = 1 << 14


@dataclass(frozen=True, kw_only=True)
class Setting:
    """The whole run; times in seconds, `store` and `interface` of its rendezvous."""

    dc_of_stage: tuple[int, ...]
    pipelines: int
    microbatches: int
    forward_s: float
    backward_s: float
    message_bytes: int
    iterations: int
    store: str
    interface: str

    @property
    def stages(self) -> int:
        return len(self.dc_of_stage)

    def to_json(self) -> str:
        """The setting as one line of JSON."""
        return json.dumps(asdict(self))


class _Lasting(torch.autograd.Function):
    """An op that lasts, and gives `width` numbers a sequence."""

    @staticmethod
    def forward(
        ctx: Any, x: torch.Tensor, weight: torch.Tensor, width: int, setting: Setting
    ) -> torch.Tensor:
        time.sleep(setting.forward_s)
        ctx.input_shape, ctx.weight_shape, ctx.setting = x.shape, weight.shape, setting
        return torch.zeros(x.shape[0], width)

    @staticmethod
    def backward(ctx: Any, *_: torch.Tensor) -> Any:
        time.sleep(ctx.setting.backward_s)
        return torch.zeros(ctx.input_shape), torch.ones(ctx.weight_shape), None, None


class Stage(torch.nn.Module):
    """One stage of the pipeline."""

    def __init__(self, setting: Setting, *, last: bool) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(torch.zeros(PARAMETERS))
        self._setting, self._width = setting, 1 if last else setting.message_bytes // 4

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = _Lasting.apply(x, self.weight, self._width, self._setting)
        return out


def run(rank: int, setting: Setting) -> None:
    """One rank: its iterations, each with the all-reduce of its stage's replicas."""
    os.environ["GLOO_SOCKET_IFNAME"] = setting.interface
    torch.set_num_threads(1)
    stages, world = setting.stages, setting.stages * setting.pipelines
    dist.init_process_group("gloo", init_method=setting.store, rank=rank, world_size=world)
    pipeline, number = divmod(rank, stages)
    along = [dist.new_group(list(range(p * stages, (p + 1) * stages))) for p in range(setting.pipelines)]
    across = [dist.new_group(list(range(s, world, stages))) for s in range(stages)]
    module = Stage(setting, last=number == stages - 1)
    message = setting.message_bytes // 4
    taken, given = (INPUTS if number == 0 else message), (1 if number == stages - 1 else message)
    stage = PipelineStage(
        module, number, stages, torch.device("cpu"),
        input_args=(torch.zeros(1, taken, requires_grad=number > 0),),
        output_args=(torch.zeros(1, given, requires_grad=True),),
        group=along[pipeline],
    )  # fmt: skip
    schedule = Schedule1F1B(stage, setting.microbatches, loss_fn=lambda out, target: (out - target).sum())
    inputs = torch.zeros(setting.microbatches, INPUTS)
    for _ in range(setting.iterations):
        dist.barrier()
        begin = time.monotonic()
        if number == 0:
            schedule.step(inputs)
        elif number == stages - 1:
            schedule.step(target=torch.zeros(setting.microbatches, 1))
        else:
            schedule.step()
        dist.all_reduce(module.weight.grad, group=across[number])
        module.zero_grad()
        dist.barrier()
        if rank == 0:
            print(time.monotonic() - begin, flush=True)
    dist.destroy_process_group()


def main() -> None:
    document = json.loads(Path(sys.argv[1]).read_text())
    setting, dc = Setting(**{**document, "dc_of_stage": tuple(document["dc_of_stage"])}), int(sys.argv[2])
    ranks = range(setting.stages * setting.pipelines)
    children = [fork(rank, setting) for rank in ranks if setting.dc_of_stage[rank % setting.stages] == dc]
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
    try:
        failed = any(os.waitpid(child, 0)[1] for child in children)
    finally:
        for child in children:
            with contextlib.suppress(ProcessLookupError):
                os.kill(child, signal.SIGKILL)
    sys.exit(failed)


def fork(rank: int, setting: Setting) -> int:
    """Start a rank; its process id."""
    child = os.fork()
    if child:
        return child
    status = 1
    try:
        run(rank, setting)
        status = 0
    except BaseException as error:
        print(f"rank {rank}: {error}", file=sys.stderr, flush=True)
    finally:
        os._exit(status)


if __name__ == "__main__":
    main()
