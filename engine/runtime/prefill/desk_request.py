"""What a desk knows of a request that it has accepted, and whom it talks to."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from engine.errors import InputError
from engine.inputs import Document
from engine.prefill.desk import Ask
from engine.prefill.kernels.place import GPU
from engine.prefill.placement import Placement
from engine.runtime.prefill.answer_text import AnswerText
from engine.runtime.prefill.tokenizing import Tokenizer


class Guest(Protocol):
    """A gateway."""

    def send(self, message: Document) -> None: ...


class Peer(Protocol):
    """A rank."""

    def send(self, message: Document) -> None: ...


class Decoder(Protocol):
    """What goes on from a cache."""

    def start(self, request: str, params: Document, token: int, *, most: int, sampling: Document) -> None: ...
    def stop(self, request: str) -> None: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Model:
    """What is served. ends : ids that end an answer."""

    tokenizer: Tokenizer
    vocabulary: int
    context: int
    ends: frozenset[int]
    engine_id: str


@dataclass(slots=True, kw_only=True)
class Live:
    """An accepted request.

    sent : rows of its placement that its rank has.  done : tokens that ran.  tries : of placing the rest
    anew, and late_ms : when the first was, since a chunk last ran.  try_ms : when a place is looked for
    again; None while it has one.
    """

    key: str
    guest: Guest
    ask: Ask
    ids: list[int]
    text: AnswerText
    received_ms: float
    placement: Placement
    late_ms: float | None = None
    try_ms: float | None = None
    sent: int = 0
    done: int = 0
    tries: int = 0
    made: int = 0
    last: int = 0
    ttft_ms: float = 0.0

    @property
    def gpu(self) -> int:
        return int(self.placement.rows[0, GPU])


def encoded(ask: Ask, model: Model) -> list[int]:
    """The prompt's ids. Raises InputError where it has none, or one that the model does not know."""
    if ask.turns is not None:
        ids = model.tokenizer.chat(ask.turns)
    elif isinstance(ask.prompt, str):
        ids = model.tokenizer.encode(ask.prompt)
    else:
        ids = list(ask.prompt or ())
    if not ids:
        raise InputError("prompt", 0, "must have at least one token")
    if max(ids) >= model.vocabulary:
        raise InputError("prompt", max(ids), f"ids must be below {model.vocabulary}, the vocabulary")
    return ids


def ends_of(config: Sequence[int] | int | None) -> frozenset[int]:
    """The ids that end an answer, as generation_config.json has them."""
    if config is None:
        return frozenset()
    return frozenset([config] if isinstance(config, int) else config)
