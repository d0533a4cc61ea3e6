"""A prompt in pieces: how many tokens each, as the controller placed them."""

from collections.abc import Sequence

from engine.errors import InputError
from engine.inputs import Count, Document, Index


class PrefillChunk(Document):
    """`tokens` tokens of a request's prompt of `total`, after `done` ones."""

    request: str
    done: Index
    tokens: Count
    total: Count

    @property
    def final(self) -> bool:
        """Whether these are the prompt's last tokens."""
        return self.done + self.tokens == self.total


def chunks_of(request: str, tokens: int, sizes: Sequence[int] | None = None) -> tuple[PrefillChunk, ...]:
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
        PrefillChunk(request=request, done=done, tokens=size, total=tokens)
        for done, size in zip(firsts, sizes, strict=True)
    )
