"""Megatron-LM's own pipeline on CPUs: which forwards and backwards each rank really runs, in which order.

`python -m tests.runtime.megatron_ranks` prints {"source", "cases": {case: rows of ranks}} as JSON. It needs
megatron-core. Each rank is a process of a gloo group. In a few places of its pipeline Megatron makes tensors,
or waits, on CUDA alone: `_on_the_cpu` names them, and everything else is Megatron's code as it is. The order
is what a model's chunks see: their data says which microbatch it is, and a mark in autograd's graph when it
comes back.
"""

import json
import sys
import tempfile
from collections.abc import Iterable
from importlib.metadata import version
from itertools import groupby
from pathlib import Path
from typing import Any

import torch
import torch.multiprocessing as mp
from torch import Tensor, nn

# Name → stages, chunks of a stage (None: 1F1B), microbatches, microbatches of a group.
CASES: dict[str, tuple[int, int | None, int, int | None]] = {
    "1f1b 2x1": (2, None, 1, None),
    "1f1b 2x5": (2, None, 5, None),
    "1f1b 4x6": (4, None, 6, None),
    "1f1b 4x2": (4, None, 2, None),
    "interleaved 2x2x4": (2, 2, 4, 2),
    "interleaved 2x3x4": (2, 3, 4, 2),
    "interleaved 2x2x2": (2, 2, 2, 2),
    "interleaved 4x2x8": (4, 2, 8, 4),
    "interleaved 2x2x7 by 4": (2, 2, 7, 4),
    "interleaved 2x2x6 by 3": (2, 2, 6, 3),
}
HIDDEN = 4


class _Mark(torch.autograd.Function):
    """Passes on its input, and notes when a gradient comes back."""

    @staticmethod
    def forward(ctx: Any, value: Tensor, notes: list[str], name: str) -> Tensor:
        ctx.notes, ctx.name = notes, name
        return value.clone()

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Any, ...]:
        ctx.notes.append(f"B{ctx.name}")
        return gradients[0], None, None


class _Chunk(nn.Module):
    """One chunk of a stage. is_first : it takes what its data has; else what Megatron received."""

    def __init__(self, config: Any, chunk: int, notes: list[str], *, is_first: bool) -> None:
        super().__init__()
        self.config, self.chunk, self.notes, self.is_first = config, chunk, notes, is_first
        self.layer = nn.Linear(HIDDEN, HIDDEN)
        self.received: Tensor | None = None

    def set_input_tensor(self, tensors: list[Tensor]) -> None:
        (self.received,) = tensors

    def forward(self, microbatch: int) -> Tensor:
        name = f"{microbatch}.{self.chunk}"
        self.notes.append(f"F{name}")
        value = torch.ones(1, 1, HIDDEN) if self.is_first else self.received
        assert value is not None
        return _Mark.apply(self.layer(value), self.notes, name)  # type: ignore[no-any-return]


def _on_the_cpu() -> None:
    """What Megatron's pipeline asks of CUDA: a counter of tokens, buffers to receive into, and a wait."""
    zeros, empty = torch.zeros, torch.empty

    def at_home(make: Any) -> Any:
        def made(*args: Any, **options: Any) -> Tensor:
            if "device" in options:
                options["device"] = "cpu"
            return make(*args, **options)  # type: ignore[no-any-return]

        return made

    torch.zeros, torch.empty = at_home(zeros), at_home(empty)
    torch.cuda.current_device = lambda: "cpu"  # type: ignore[assignment,return-value]
    torch.cuda.synchronize = lambda device=None: None


def _rank(rank: int, cases: list[str], folder: str) -> None:
    """Runs cases of as many stages as there are ranks, one after the other."""
    stages = CASES[cases[0]][0]
    torch.distributed.init_process_group(
        "gloo", init_method=f"file://{folder}/meeting", rank=rank, world_size=stages
    )
    _on_the_cpu()
    notes = {case: _noted(rank, case) for case in cases}
    Path(folder, f"{rank}.json").write_text(json.dumps(notes))
    torch.distributed.barrier()
    torch.distributed.destroy_process_group()


def _noted(rank: int, case: str) -> str:
    """What this rank runs of a case."""
    from megatron.core import parallel_state
    from megatron.core.enums import ModelType
    from megatron.core.pipeline_parallel import get_forward_backward_func
    from megatron.core.transformer import TransformerConfig

    stages, chunks, microbatches, group = CASES[case]
    parallel_state.initialize_model_parallel(
        pipeline_model_parallel_size=stages, virtual_pipeline_model_parallel_size=chunks
    )
    config = TransformerConfig(
        num_layers=stages * (chunks or 1),
        hidden_size=HIDDEN,
        num_attention_heads=1,
        pipeline_model_parallel_size=stages,
        virtual_pipeline_model_parallel_size=chunks,
        microbatch_group_size_per_vp_stage=group,
        pipeline_dtype=torch.float32,
        use_cpu_initialization=True,
        overlap_p2p_comm=chunks is not None,
        batch_p2p_comm=chunks is None,
        deallocate_pipeline_outputs=False,
    )
    notes: list[str] = []
    model = [_Chunk(config, chunk, notes, is_first=rank == chunk == 0) for chunk in range(chunks or 1)]
    for part in model:
        part.model_type = ModelType.encoder_or_decoder  # type: ignore[assignment]

    def step(data: Any, chunk: _Chunk) -> tuple[Tensor, Any]:
        return chunk(next(data)), lambda output: (output.sum(), {"loss": output.sum().detach()})

    get_forward_backward_func()(
        forward_step_func=step,
        data_iterator=[iter(range(microbatches)) for _ in model],
        model=model,
        num_microbatches=microbatches,
        seq_length=1,
        micro_batch_size=1,
    )
    parallel_state.destroy_model_parallel()
    return " ".join(notes)


def recorded(cases: Iterable[str] = CASES) -> dict[str, list[str]]:
    """What each rank ran, by case: "F0.0 F1.0 B0.0 …", kind, microbatch and chunk."""
    rows: dict[str, list[str]] = {}
    for stages, group in groupby(sorted(cases, key=_stages), key=_stages):
        named = list(group)
        with tempfile.TemporaryDirectory() as folder:
            mp.spawn(_rank, (named, folder), nprocs=stages)  # type: ignore[attr-defined]
            of_ranks = [json.loads(Path(folder, f"{rank}.json").read_text()) for rank in range(stages)]
        rows |= {case: [of_rank[case] for of_rank in of_ranks] for case in named}
    return rows


def _stages(case: str) -> int:
    return CASES[case][0]


if __name__ == "__main__":
    source = f"megatron-core {version('megatron-core')}"
    print(json.dumps({"source": source, "cases": recorded(sys.argv[1:] or CASES)}, indent=1))
