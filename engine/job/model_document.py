"""`model` of a training job: the shape of the trained model, validated without torch.

A shape of our own two families, the config.json of a dense decoder of transformers, or a module of an
installed package.
"""

from collections.abc import Mapping
from dataclasses import replace
from functools import cached_property
from typing import Annotated, Any, Literal

from pydantic import Discriminator, Field, Tag, field_validator, model_validator

from engine.errors import InputError
from engine.inputs import Count, Document, parse
from engine.model.hugging_face import read_config
from engine.model.transformer import OWN_FAMILIES, Transformer

BYTE_VOCABULARY = 256
FFN_MULTIPLE = 32  # Llama's inner width is rounded up to a multiple of it

# Fields of a config that would train another model than the plain, causal one.
_NOT_TRAINED = {
    "quantization_config": "quantized weights are not trained",
    "use_bidirectional_attention": "attention is causal in training",
    "add_cross_attention": "there is no encoder to attend to",
    "is_encoder_decoder": "the model is a decoder",
}

# Families whose layers tensor parallelism cuts: by columns and rows alone, by transformers' own plan.
CUT_FAMILIES = ("llama", "mistral", "qwen2", "gpt_neox")

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


class ModuleModel(TrainModel):
    """A model whose layers an installed package gives (engine.nn.own_module).

    module : `package:attribute`, a callable.  arguments : by name, that it is called with.
    layers, hidden, seq, vocab : those of its model.
    family, heads, kv_heads, ffn : of the block of ours that is nearest to its layers: memory and times are
        counted by it before a run.
    """

    module: Annotated[str, Field(pattern=r"^[A-Za-z_]\w*(\.[A-Za-z_]\w*)*:[A-Za-z_]\w*$", max_length=300)]
    arguments: dict[str, Any] = Field(default_factory=dict)
    heads: Size = 1


class ConfigModel(Document):
    """A dense decoder of transformers.

    config : its config.json. Dropout in it is not applied.
    seq : tokens of a sequence.
    tokenizer : as in TrainModel; without it a token is a byte.
    init : folder with the weights to begin with, as transformers saves them; without it they are drawn by the
        model's own rule. The ranks read it, each its own layers.
    """

    config: dict[str, Any]
    seq: Size
    tokenizer: Annotated[str, Field(min_length=1)] | None = None
    init: Annotated[str, Field(min_length=1)] | None = None

    @field_validator("config", mode="before")
    @classmethod
    def _given(cls, config: Any) -> Any:
        if isinstance(config, str):
            allowed = "the object of a config.json, or for `meridian train` the path of one"
            raise InputError("", config, allowed)
        return config

    @model_validator(mode="after")
    def _trainable(self) -> "ConfigModel":
        for name, reason in _NOT_TRAINED.items():
            value = self.config.get(name)
            if value not in (None, False):
                raise InputError(f"config.{name}", value, f"must be left out: {reason}")
        try:
            shape = self.shape
        except InputError as error:
            field = error.field if error.field == "seq" else f"config.{error.field}"
            raise InputError(field, error.value, error.allowed) from None
        if shape.moe is not None or shape.latent is not None:
            what = "experts" if shape.moe is not None else "latent attention"
            allowed = f"a dense decoder: models with {what} are not trained"
            raise InputError("config.model_type", self.config["model_type"], allowed)
        if shape.vocab < BYTE_VOCABULARY:
            raise InputError("config.vocab_size", shape.vocab, f"at least {BYTE_VOCABULARY}")
        return self

    @cached_property
    def shape(self) -> Transformer:
        """The model as the engine counts parameters, FLOPs and bytes."""
        return read_config({**self.config, "seq": self.seq}).shape

    @property
    def layers(self) -> int:
        return self.shape.layers

    @property
    def hidden(self) -> int:
        return self.shape.hidden

    @property
    def vocabulary(self) -> int:
        return self.shape.vocab


def _branch(model: Any) -> str:
    if isinstance(model, Document):
        return type(model).__name__
    if not isinstance(model, Mapping):
        return TrainModel.__name__
    if "module" in model:
        return ModuleModel.__name__
    return (ConfigModel if "config" in model else TrainModel).__name__


AnyModel = Annotated[
    Annotated[TrainModel, Tag("TrainModel")]
    | Annotated[ConfigModel, Tag("ConfigModel")]
    | Annotated[ModuleModel, Tag("ModuleModel")],
    Discriminator(_branch),
]
_BRANCHES: dict[str, type[TrainModel | ConfigModel]] = {
    branch.__name__: branch for branch in (TrainModel, ConfigModel, ModuleModel)
}


def read_model(document: Mapping[str, Any], *, at: str = "") -> TrainModel | ConfigModel:
    """The model of a job's document. Raises InputError."""
    return parse(_BRANCHES[_branch(document)], document, at=at)
