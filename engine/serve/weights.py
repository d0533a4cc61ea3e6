"""The weights of one stage: which tensors they are, how many bytes, and where on disk each of them lies.

A stage opens only the files that hold tensors of its own, and reads nothing else from them.
"""

from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from engine.errors import InputError
from engine.job.prefill.config import LlamaConfig
from engine.nn.names import LLAMA_BLOCK, LLAMA_ENDS
from engine.nn.saved_weights import Shapes, read_tensors
from engine.schedule.layers import layers_of_stages
from engine.schedule.traversal import straight

EMBEDDING = f"{LLAMA_ENDS['token']}.weight"
NORM = f"{LLAMA_ENDS['norm']}.weight"
HEAD = "lm_head.weight"
DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16}


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """What one of `stages` stages holds of a model: blocks `first` to `first + count`, and perhaps an end."""

    config: LlamaConfig
    stage: int
    stages: int

    def __post_init__(self) -> None:
        if not 1 <= self.stages <= self.config.num_hidden_layers:
            allowed = f"1 to {self.config.num_hidden_layers}, the model's layers"
            raise InputError("stages", self.stages, allowed)
        if not 0 <= self.stage < self.stages:
            raise InputError("stage", self.stage, f"0 to {self.stages - 1}")

    @property
    def blocks(self) -> range:
        """The model's blocks here, counted from 0."""
        (numbers,) = layers_of_stages(self.config.num_hidden_layers, straight(self.stages))[self.stage]
        inner = [number - 1 for number in numbers if 1 <= number <= self.config.num_hidden_layers]
        return range(inner[0], inner[-1] + 1)

    @property
    def is_first(self) -> bool:
        return self.stage == 0

    @property
    def is_last(self) -> bool:
        return self.stage == self.stages - 1

    @property
    def head_name(self) -> str:
        """The tensor that makes logits: the embedding where the two are tied."""
        return EMBEDDING if self.config.tie_word_embeddings else HEAD

    @property
    def shapes(self) -> Shapes:
        """Shape of every tensor that this stage needs, by its name in the checkpoint."""
        config = self.config
        shapes: Shapes = {}
        if self.is_first:
            shapes[EMBEDDING] = (config.vocab_size, config.hidden_size)
        for block in self.blocks:
            shapes |= {name_in(block, ours): shape for ours, shape in block_shapes(config).items()}
        if self.is_last:
            shapes |= {NORM: (config.hidden_size,), self.head_name: (config.vocab_size, config.hidden_size)}
        return shapes

    def hidden_bytes(self, dtype: str) -> int:
        """Of one token's hidden state between two stages."""
        return self.config.hidden_size * DTYPES[dtype].itemsize

    def weight_bytes(self, dtype: str) -> int:
        """Bytes of all weights here, computed from the shapes alone."""
        return sum(torch.Size(shape).numel() for shape in self.shapes.values()) * DTYPES[dtype].itemsize

    def check_budget(self, dtype: str, budget_bytes: int | None) -> None:
        """Raise InputError, with the figures, where the weights are over the budget (None: no limit)."""
        needed = self.weight_bytes(dtype)
        if budget_bytes is not None and needed > budget_bytes:
            allowed = (
                f"stage {self.stage} of {self.stages} has weights of {needed:,} bytes in {dtype}: "
                f"{needed - budget_bytes:,} too many"
            )
            raise InputError("weight_budget_bytes", budget_bytes, allowed)


def name_in(block: int, ours: str) -> str:
    """The checkpoint's name for a weight of a block."""
    return f"model.layers.{block}.{LLAMA_BLOCK[ours]}.weight"


def block_shapes(config: LlamaConfig) -> Shapes:
    """Shapes of a block's weights by our names; matrices are (out, in)."""
    hidden, inner = config.hidden_size, config.intermediate_size
    wide, narrow = config.num_attention_heads * config.head_size, config.kv_heads * config.head_size
    return {
        "attention_norm": (hidden,),
        "query": (wide, hidden),
        "key": (narrow, hidden),
        "value": (narrow, hidden),
        "project": (hidden, wide),
        "mlp_norm": (hidden,),
        "gate": (inner, hidden),
        "widen": (inner, hidden),
        "narrow": (hidden, inner),
    }


def read_weights(folder: Path, part: Part, *, dtype: str, device: torch.device) -> dict[str, Tensor]:
    """The stage's tensors from the safetensors in `folder`, in `dtype` on `device`.

    Raises
    ------
    InputError
        A file or tensor is missing or damaged, or is of another shape or type than config.json says.
    """
    tensors = read_tensors(folder, part.shapes, field="checkpoint")
    return {name: tensor.to(device, DTYPES[dtype]) for name, tensor in tensors}


def random_weights(part: Part, *, dtype: str, device: torch.device, seed: int) -> dict[str, Tensor]:
    """Weights as training would begin with: normal with config.json's `initializer_range`, norms of 1.

    For measuring how long a model takes, which its values have no say in.
    """
    generator = torch.Generator(device).manual_seed(seed)
    tensors: dict[str, Tensor] = {}
    for name, shape in part.shapes.items():
        tensor = torch.ones(shape, dtype=DTYPES[dtype], device=device)
        if len(shape) > 1:
            tensor.normal_(0.0, part.config.initializer_range, generator=generator)
        tensors[name] = tensor
    return tensors
