"""A prompt in pieces: how many tokens each, as the controller placed them."""

from collections.abc import Sequence
from dataclasses import dataclass

from engine.errors import InputError


@dataclass(frozen=True, slots=True, kw_only=True)
class Chunk:
    """`tokens` tokens of a request's prompt, after `done` ones; `final` where they are its last."""

    request: str
    done: int
    tokens: int
    final: bool

    def __post_init__(self) -> None:
        if self.done < 0 or self.tokens < 1:
            raise ValueError(f"chunk of {self.tokens} tokens after {self.done}: at least 1 after 0 or more")


def chunks_of(request: str, tokens: int, sizes: Sequence[int] | None = None) -> tuple[Chunk, ...]:
    """A prompt of `tokens` tokens cut into `sizes`, in order; None: whole.

    Raises
    ------
    InputError
        There is no token, or a size is not above 0, or they do not add up to the prompt.
    """
    if tokens < 1:
        raise InputError("tokens", tokens, "a prompt has at least 1 token")
    sizes = [tokens] if sizes is None else list(sizes)
    for i, size in enumerate(sizes):
        if size < 1:
            raise InputError(f"chunks[{i}]", size, "must be at least 1 token")
    if sum(sizes) != tokens:
        raise InputError("chunks", sizes, f"must add up to the prompt's {tokens} tokens, not {sum(sizes)}")
    firsts = [sum(sizes[:i]) for i in range(len(sizes))]
    return tuple(
        Chunk(request=request, done=done, tokens=size, final=done + size == tokens)
        for done, size in zip(firsts, sizes, strict=True)
    )
