"""config.json of a Hugging Face Llama checkpoint; other models are refused by name."""

from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from engine.documents import read_json_file
from engine.errors import InputError
from engine.inputs import Count, Flag, Number, Positive, parse

CONFIG = "config.json"
MODEL_TYPE = "llama"
ARCHITECTURE = "LlamaForCausalLM"
# Of transformers' LlamaConfig: what holds where a checkpoint leaves it out.
THETA = 10_000.0
EPS = 1e-6
POSITIONS = 2048


class _Theirs(BaseModel):
    """Fields that other programs write: what is not read here stays unread, numbers may be of either kind."""

    model_config = ConfigDict(frozen=True, extra="ignore", defer_build=True)


class Rope(_Theirs):
    """Rotary positions: plain (Su et al., RoFormer), or stretched as by Llama 3.1.

    factor, low_freq_factor, high_freq_factor, original_max_position_embeddings : of `llama3` only.
    """

    rope_type: Literal["default", "llama3"] = "default"
    rope_theta: Positive = THETA
    factor: Positive | None = None
    low_freq_factor: Positive | None = None
    high_freq_factor: Positive | None = None
    original_max_position_embeddings: Positive | None = None
    partial_rotary_factor: Number = 1.0


class LlamaConfig(_Theirs):
    """A Llama's shape. `rope` is put together from what transformers 4 and 5 call it.

    Raises InputError for what would be computed otherwise than here: biases, other activations, quantization.
    """

    hidden_size: Count
    intermediate_size: Count
    num_hidden_layers: Count
    num_attention_heads: Count
    num_key_value_heads: Count | None = None
    head_dim: Count | None = None
    vocab_size: Count
    max_position_embeddings: Count = POSITIONS
    rms_norm_eps: Positive = EPS
    tie_word_embeddings: Flag = False
    hidden_act: Literal["silu", "swish"] = "silu"
    attention_bias: Literal[False] | None = None
    mlp_bias: Literal[False] | None = None
    quantization_config: Literal[None] = None
    initializer_range: Annotated[Number, Field(ge=0)] = 0.02
    rope: Rope = Rope()

    @property
    def kv_heads(self) -> int:
        return self.num_key_value_heads or self.num_attention_heads

    @property
    def head_size(self) -> int:
        return self.head_dim or self.hidden_size // self.num_attention_heads

    def check(self) -> None:
        """Raise InputError where the sizes do not fit one another."""
        if self.head_dim is None and self.hidden_size % self.num_attention_heads:
            allowed = f"must divide hidden_size = {self.hidden_size}"
            raise InputError("num_attention_heads", self.num_attention_heads, allowed)
        if self.num_attention_heads % self.kv_heads:
            allowed = f"must divide num_attention_heads = {self.num_attention_heads}"
            raise InputError("num_key_value_heads", self.num_key_value_heads, allowed)
        if self.head_size % 2:
            raise InputError("head_dim", self.head_size, "must be even for rotary positions")
        rope = self.rope
        if rope.partial_rotary_factor != 1:
            raise InputError("rope_parameters.partial_rotary_factor", rope.partial_rotary_factor, "must be 1")
        for name in ("factor", "low_freq_factor", "high_freq_factor"):
            if rope.rope_type == "llama3" and getattr(rope, name) is None:
                raise InputError(f"rope_parameters.{name}", None, "required with rope_type llama3")


def read_config(folder: Path) -> LlamaConfig:
    """The shape of the checkpoint in `folder`.

    Raises
    ------
    InputError
        No readable config.json, another architecture, or a Llama that this decoder does not compute.
    """
    path = folder / CONFIG
    try:
        with path.open("rb") as file:
            data = read_json_file(file)
    except OSError as error:
        raise InputError("checkpoint", str(folder), f"{CONFIG} cannot be read ({error.strerror})") from None
    except ValueError:
        raise InputError("checkpoint", str(folder), f"{CONFIG} is not JSON") from None
    if not isinstance(data, dict):
        raise InputError("checkpoint", str(folder), f"{CONFIG} must hold an object")
    config = parse(LlamaConfig, {**_known(data), "rope": _rope(data)}, at=CONFIG)
    config.check()
    return config


def _known(data: dict[str, Any]) -> dict[str, Any]:
    if data.get("model_type") != MODEL_TYPE:
        raise InputError("model_type", data.get("model_type"), f"allowed: {MODEL_TYPE}")
    named = data.get("architectures")
    if named and ARCHITECTURE not in named:
        raise InputError("architectures", named, f"allowed: {ARCHITECTURE}")
    return data


def _rope(data: dict[str, Any]) -> dict[str, Any]:
    """`rope_parameters` (transformers 5), or `rope_theta` and `rope_scaling` (4)."""
    scaling = data.get("rope_parameters") or data.get("rope_scaling") or {}
    if not isinstance(scaling, dict):
        raise InputError("rope_parameters", scaling, "must be an object with named fields")
    rope = {key: value for key, value in scaling.items() if value is not None}
    rope.setdefault("rope_type", rope.get("type", "default"))
    rope.setdefault("rope_theta", data.get("rope_theta") or THETA)
    rope.setdefault("original_max_position_embeddings", data.get("max_position_embeddings", POSITIONS))
    return rope
