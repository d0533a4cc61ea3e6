"""`model` of a training job: the shape of the trained model, validated without torch."""

from dataclasses import replace
from functools import cached_property
from typing import Annotated, Literal

from pydantic import Field, model_validator

from engine.errors import InputError
from engine.inputs import Count, Document
from engine.model.transformer import OWN_FAMILIES, Transformer

BYTE_VOCABULARY = 256
MOST_PARAMETERS = 2_000_000_000
FFN_MULTIPLE = 32  # Llama's inner width is rounded up to a multiple of it

Size = Annotated[Count, Field(le=1_000_000)]
Layers = Annotated[Count, Field(le=10_000)]


class TrainModel(Document):
    """Shape of a transformer over bytes, or over the tokens of a tokenizer.

    family : gpt (GPT-2's block: LayerNorm, learned positions, GELU, biases) or llama (RMS norm, rotary
        positions, grouped-query attention, SwiGLU).
    kv_heads : heads of keys and values, for llama (as many as heads).
    tokenizer : a Hugging Face tokenizer file (tokenizer.json); without it a token is a byte.
    vocab : rows of the embedding, at least as many as there are tokens (256; needed with a tokenizer).
    ffn : inner width of the MLP (gpt: 4 × hidden; llama: 8/3 × hidden, rounded up to a multiple of 32).
    """

    family: Literal["gpt", "llama"] = "gpt"
    layers: Layers
    hidden: Size
    heads: Size
    kv_heads: Size | None = None
    ffn: Size | None = None
    seq: Size
    tokenizer: Annotated[str, Field(min_length=1)] | None = None
    vocab: Annotated[Count, Field(ge=BYTE_VOCABULARY, le=10_000_000)] | None = None

    @model_validator(mode="after")
    def _consistent(self) -> "TrainModel":
        if self.tokenizer is not None and self.vocab is None:
            raise InputError("vocab", None, "required with a tokenizer: at least its number of tokens")
        if self.hidden % self.heads:
            raise InputError("heads", self.heads, f"must divide hidden = {self.hidden}")
        if self.family == "gpt" and self.key_value_heads != self.heads:
            raise InputError("kv_heads", self.kv_heads, f"must equal heads for gpt: {self.heads}")
        if self.heads % self.key_value_heads:
            raise InputError("kv_heads", self.kv_heads, f"must divide heads = {self.heads}")
        if self.family == "llama" and self.hidden // self.heads % 2:
            allowed = f"hidden / heads must be even for rotary positions, not {self.hidden // self.heads}"
            raise InputError("heads", self.heads, allowed)
        if self.parameters > MOST_PARAMETERS:
            allowed = f"gives {self.parameters:,} parameters; at most {MOST_PARAMETERS:,}"
            raise InputError("hidden", self.hidden, allowed)
        return self

    @property
    def vocabulary(self) -> int:
        return self.vocab or BYTE_VOCABULARY

    @property
    def key_value_heads(self) -> int:
        return self.kv_heads or self.heads

    @property
    def ffn_width(self) -> int:
        if self.ffn is not None:
            return self.ffn
        if self.family == "gpt":
            return 4 * self.hidden
        return -(-8 * self.hidden // (3 * FFN_MULTIPLE)) * FFN_MULTIPLE

    @cached_property
    def shape(self) -> Transformer:
        """The model as the engine counts parameters, FLOPs and bytes."""
        return Transformer(
            layers=self.layers,
            hidden=self.hidden,
            heads=self.heads,
            kv_heads=self.key_value_heads,
            ffn=self.ffn_width,
            vocab=self.vocabulary,
            seq=self.seq,
            family=self.family,
            features=replace(OWN_FAMILIES[self.family], tied=False),  # a run trains two matrices
        )

    @property
    def parameters(self) -> int:
        """Parameters of the whole model; embedding and output matrix are two."""
        return self.shape.parameters
