"""How far a coordinator is with a request that it has accepted, and whom it talks to."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Protocol

from engine.errors import InputError
from engine.inputs import Document
from engine.prefill.handover import StageCache
from engine.prefill.kernels.place import GPU, TOKENS
from engine.prefill.messages import PrefillRequest
from engine.prefill.placement import Floats, Placement
from engine.serve.answer_text import AnswerText
from engine.serve.tokenizing import Tokenizer


class Peer(Protocol):
    """A gateway or a rank."""

    def post(self, message: Document) -> None: ...


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
class PrefillProgress:
    """How far an accepted `request` is, which runs on `degree` GPUs.

    sent : by stage, chunks of its placement that its rank has.  done : tokens that ran on all stages.
    passed : of chunks behind these, how many stages each ran on, by its place and its tokens.
    tries : to place the rest again, and late_ms : when the first was, since a chunk last ran.  try_ms : when
    a place is looked for again; None while it has one.  caches : by stage, where they lie,
    where known.  token : the first, which may be known before the caches are.
    pushing : stages whose part of the cache is on its way to a receiver, until push_ms.
    """

    key: str
    gateway: Peer
    request: PrefillRequest
    ids: list[int]
    text: AnswerText
    received_ms: float
    placement: Placement
    degree: int
    late_ms: float | None = None
    try_ms: float | None = None
    sent: list[int] = field(default_factory=list)
    done: int = 0
    passed: dict[tuple[int, int], int] = field(default_factory=dict)
    tries: int = 0
    made: int = 0
    last: int = 0
    ttft_ms: float = 0.0
    caches: dict[int, StageCache] = field(default_factory=dict)
    token: int | None = None
    pushing: set[int] = field(default_factory=set)
    push_ms: float = 0.0

    def __post_init__(self) -> None:
        self.sent = self.sent or [0] * self.degree

    @property
    def chunks(self) -> Floats:
        """The placement by chunk and stage: (chunks, degree, 4)."""
        return self.placement.rows.reshape(-1, self.degree, 4)

    @property
    def gpus(self) -> tuple[int, ...]:
        """By stage."""
        return gpus_of(self.placement, self.degree)

    @property
    def keeps(self) -> bool:
        """Whether its cache is wanted when the first token is there."""
        return self.request.hand_over or self.request.max_tokens > 1

    @property
    def computes(self) -> bool:
        """Whether prefill is not done with it: chunks may be placed again."""
        return self.made == 0 and not self.pushing

    def kept(self, placement: Placement) -> list[int]:
        """By stage: chunks that its rank has and that run in `placement` as they would have."""
        before, after = self.chunks, placement.rows.reshape(-1, self.degree, 4)
        both = min(len(before), len(after))
        same = (before[:both] == after[:both]).all(axis=2).cumprod(axis=0).sum(axis=0)
        return [min(sent, int(count)) for sent, count in zip(self.sent, same, strict=True)]

    def ran(self, stage: int, done: int, tokens: int) -> None:
        """A chunk ran on a stage that is not the last."""
        if stage == 0:  # which has nothing of what it ran behind it before
            self.passed = {at: stages for at, stages in self.passed.items() if self.done <= at[0] < done}
        self.passed[done, tokens] = stage + 1

    def under_way(self) -> list[tuple[int, int]]:
        """Tokens of each chunk behind those that are done, and on how many stages it ran."""
        requests: list[tuple[int, int]] = []
        at, most = self.done, self.degree - 1
        while True:
            tokens = next((size for place, size in reversed(self.passed) if place == at), 0)
            if not tokens:
                return requests
            most = min(most, self.passed[at, tokens])
            requests.append((tokens, most))
            at += tokens

    def take_over(self, placement: Placement, sent: list[int]) -> None:
        """Another plan holds, of which its ranks have so many chunks.

        Caches are those of stages that have them all; on other GPUs nothing has run.
        """
        if gpus_of(placement, self.degree) != self.gpus:
            self.passed.clear()
        self.placement, self.sent, self.try_ms = placement, sent, None
        chunks = len(self.chunks)
        self.caches = {stage: cache for stage, cache in self.caches.items() if sent[stage] == chunks}

    def ends_sent(self) -> list[int]:
        """Tokens that are done when each chunk is that the last stage has."""
        return [int(end) for end in self.chunks[: self.sent[-1], 0, TOKENS].cumsum()]


def gpus_of(placement: Placement, degree: int) -> tuple[int, ...]:
    """The GPUs of a placement on so many stages, by stage."""
    return tuple(int(gpu) for gpu in placement.rows[:degree, GPU])


def encoded(request: PrefillRequest, model: Model) -> list[int]:
    """The prompt's ids. Raises InputError where it has none, or one that the model does not know."""
    if request.turns is not None:
        ids = model.tokenizer.chat(request.turns)
    elif isinstance(request.prompt, str):
        ids = model.tokenizer.encode(request.prompt)
    else:
        ids = list(request.prompt or ())
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
