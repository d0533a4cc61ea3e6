"""Tiny Llamas with random weights, written as transformers writes them."""

from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from engine.serve.pipeline import PrefillPipeline
from engine.serve.stage import PrefillStage, StageSettings

if TYPE_CHECKING:
    from transformers import LlamaForCausalLM

TINY = {
    "hidden_size": 32,
    "intermediate_size": 80,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "vocab_size": 97,
    "max_position_embeddings": 256,
    "bos_token_id": None,
    "eos_token_id": None,
}
LLAMA3 = {
    "rope_type": "llama3",
    "rope_theta": 5000.0,
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 64,
}
SHAPES: dict[str, dict[str, Any]] = {
    "grouped": {},
    "tied": {"tie_word_embeddings": True},
    "llama3": {"rope_parameters": LLAMA3, "num_key_value_heads": 1},
    "wide-heads": {"head_dim": 12, "num_key_value_heads": 4, "rms_norm_eps": 1e-5},
}
BLOCK = 8


@cache
def model(shape: str = "grouped") -> "LlamaForCausalLM":
    """The model in fp32: values large enough that logits differ by tokens, norms included."""
    # Six seconds of CPU, which a test process pays that runs one of these tests, and no other.
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(11)
    llama = LlamaForCausalLM(LlamaConfig(**TINY | SHAPES[shape])).eval()
    with torch.no_grad():
        for name, parameter in llama.named_parameters():
            parameter.normal_(1.0 if "norm" in name else 0.0, 0.25)
    return llama


def save(folder: Path, shape: str = "grouped", **options: Any) -> Path:
    """The checkpoint of :func:`model` in `folder`."""
    model(shape).save_pretrained(folder, **options)
    return folder


def pipeline(folder: Path, stages: int, **settings: Any) -> PrefillPipeline:
    """All stages of a checkpoint, with room for 1 MB of KV cache each."""
    defaults = {"kv_budget_bytes": 1_000_000, "block_tokens": BLOCK}
    return PrefillPipeline(
        [
            PrefillStage.load(folder, StageSettings(stage=stage, stages=stages, **defaults | settings))
            for stage in range(stages)
        ]
    )


def prompt(tokens: int, seed: int = 3) -> list[int]:
    """Random token ids."""
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(0, int(TINY["vocab_size"]), (tokens,), generator=generator).tolist()  # type: ignore[call-overload]


@torch.no_grad()
def theirs(tokens: list[int], shape: str = "grouped") -> torch.Tensor:
    """Logits of the last token by transformers, the whole prompt at once."""
    return model(shape)(torch.tensor([tokens])).logits[0, -1]
