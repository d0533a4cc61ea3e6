"""`model` of a document: the name of a preset, a shape of ours, or a config.json of Hugging Face."""

from typing import Annotated, Literal

from pydantic import Discriminator, Field, Tag, model_validator

from engine.errors import InputError
from engine.inputs import Count, Document, Index
from engine.model.families.config import LARGEST
from engine.model.hugging_face import HuggingFaceModel
from engine.model.presets import preset
from engine.model.transformer import Transformer


class ModelInput(Document):
    """The shape of a model that has no preset.

    `family` is gpt (two-matrix MLP, biases) or llama (gated MLP, grouped-query attention); by default llama
    if `ffn` is given and is not 4 × hidden, or `kv_heads` is less than `heads`.
    """

    layers: Count = Field(le=1_000_000)
    hidden: Count = Field(le=LARGEST)
    heads: Count = Field(le=LARGEST)
    kv_heads: Count | None = Field(default=None, le=LARGEST)
    ffn: Count | None = Field(default=None, le=LARGEST)
    vocab: Index = Field(default=0, le=LARGEST)
    seq: Count = Field(le=LARGEST)
    family: Literal["gpt", "llama"] | None = None

    @model_validator(mode="after")
    def _heads_divide(self) -> "ModelInput":
        if self.hidden % self.heads:
            raise InputError("heads", self.heads, f"must divide hidden = {self.hidden}")
        if self.kv_heads is not None and self.heads % self.kv_heads:
            raise InputError("kv_heads", self.kv_heads, f"must divide heads = {self.heads}")
        return self


def kind_of_model(model: object) -> str:
    """Which of the ways to name a model a document takes: the tag of its type."""
    if isinstance(model, HuggingFaceModel) or (isinstance(model, dict) and "model_type" in model):
        return "HuggingFaceModel"
    return "ModelInput" if isinstance(model, dict | ModelInput) else "str"


# Tagged, so that a fault in a shape is not reported as "not a name".
NameOrShape = Annotated[
    Annotated[str, Tag("str")]
    | Annotated[ModelInput, Tag("ModelInput")]
    | Annotated[HuggingFaceModel, Tag("HuggingFaceModel")],
    Discriminator(kind_of_model),
]


def shape_of(given: str | ModelInput | HuggingFaceModel, stages: int = 1) -> Transformer:
    """The shape of a document's model, with defaults filled in; some presets are sized to their `stages`.

    Raises
    ------
    InputError
        An unknown name; the message has the nearest known one.
    """
    if isinstance(given, str):
        return preset(given, stages=stages)
    if isinstance(given, HuggingFaceModel):
        return given.read.shape
    kv_heads = given.kv_heads or given.heads
    ffn = given.ffn or 4 * given.hidden
    looks_like_llama = ffn != 4 * given.hidden or kv_heads < given.heads
    return Transformer(
        layers=given.layers,
        hidden=given.hidden,
        heads=given.heads,
        kv_heads=kv_heads,
        ffn=ffn,
        vocab=given.vocab,
        seq=given.seq,
        family=given.family or ("llama" if looks_like_llama else "gpt"),
    )
