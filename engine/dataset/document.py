"""The document of `meridian data prepare`: where documents come from, and which tokenizer reads them."""

from typing import Annotated, Literal

from pydantic import Field, model_validator

from engine.errors import InputError
from engine.inputs import Count, Document, Number

Name = Annotated[str, Field(min_length=1)]
WINDOW = 10_000  # sequences over which the shares of weighted sources are exact


class Source(Document):
    """Files of one format, read in the order of their names.

    path : a file, a folder or a pattern (`*`, `**`); local, or a URL that fsspec knows (s3://, gs://, …).
    format : text (a file is a document), jsonl (a line is one), parquet (a row is one), datasets (a folder of
        Hugging Face `Dataset.save_to_disk`).
    field : of a line or row, its text ("text" unless `messages` is given).
    messages : of a line or row, the field of its chat: a list of {role, content}. Only what the assistant
        says is trained on.
    weight : share of the sequences, relative to those of the other sources; without any, all sequences of all
        sources come once in an epoch.
    """

    path: Name
    format: Literal["text", "jsonl", "parquet", "datasets"]
    field: Name | None = None
    messages: Name | None = None
    weight: Annotated[Number, Field(gt=0, le=1e9)] | None = None

    @model_validator(mode="after")
    def _consistent(self) -> "Source":
        if self.format == "text" and (self.field or self.messages):
            name = "field" if self.field else "messages"
            raise InputError(name, self.field or self.messages, "must be left out for format text")
        if self.field and self.messages:
            raise InputError("messages", self.messages, "give either field or messages")
        return self

    @property
    def column(self) -> str:
        """The field of a line or row that is read."""
        return self.messages or self.field or "text"


class DatasetDocument(Document):
    """What is prepared.

    tokenizer : a folder with tokenizer.json and tokenizer_config.json (eos_token, chat_template), as Hugging
        Face has them.
    packing : concatenate puts documents one after another, with the tokenizer's EOS between them, and cuts
        the whole into sequences; separate begins each document in a sequence of its own, which is filled up
        with EOS that no loss counts.
    on_bad : what is done with a line or row that cannot be read: refuse ends the command, skip leaves it out.
    longest_bytes : of a line of JSONL; a longer one cannot be read.
    """

    sources: Annotated[list[Source], Field(min_length=1, max_length=1000)]
    tokenizer: Name
    packing: Literal["concatenate", "separate"] = "concatenate"
    on_bad: Literal["refuse", "skip"] = "refuse"
    longest_bytes: Annotated[Count, Field(le=1 << 30)] = 64 << 20

    @model_validator(mode="after")
    def _consistent(self) -> "DatasetDocument":
        check_weights([source.weight for source in self.sources])
        return self


def check_weights(weights: list[float | None]) -> None:
    """Raise InputError unless all sources have a weight, or none; and no share is too small to be kept."""
    given = [weight for weight in weights if weight is not None]
    if given and len(given) < len(weights):
        index = weights.index(None)
        raise InputError(f"sources[{index}].weight", None, "give all sources a weight, or none of them")
    for index, weight in enumerate(given):
        if weight / sum(given) * WINDOW < 1:
            allowed = f"gives less than 1 of {WINDOW:,} sequences: leave the source out, or raise its weight"
            raise InputError(f"sources[{index}].weight", weight, allowed)
