"""Additional memory of single operators, as in ATOM's Figs. 3 and 4, computed.

An operator's forward pass writes its output, and a dropout a mask of one byte a number. Its backward pass
writes the gradients of its inputs and parameters, and a softmax the product whose sum it subtracts. Inputs
and parameters exist before and are not counted: with them the paper's peaks would lie elsewhere (the widening
of 175B has 2,304 MiB of weights alone), though its text counts them in.
"""

from collections.abc import Iterator
from dataclasses import dataclass

from engine.model.transformer import Transformer

MASK_BYTES = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Footprint:
    """Bytes that one operator takes in each pass over one mini-batch."""

    name: str
    forward_bytes: int
    backward_bytes: int


def footprints(model: Transformer, sequences: int, width_bytes: int) -> Iterator[Footprint]:
    """The operators of one block of the gpt family, and the output matrix.

    Parameters
    ----------
    sequences : B, of the mini-batch;  width_bytes : of one number.
    """
    tokens, hidden = sequences * model.seq, model.hidden
    scores = sequences * model.heads * model.seq**2
    stream, inner, logits = tokens * hidden, tokens * model.ffn, tokens * model.vocab

    def product(name: str, into: int, out: int, weights: int) -> Footprint:
        return Footprint(
            name=name, forward_bytes=width_bytes * out, backward_bytes=width_bytes * (into + weights)
        )

    yield product("query, key, value", stream, 3 * stream, 3 * hidden**2)
    yield product("scores", 2 * stream, scores, 0)
    yield Footprint(
        name="softmax", forward_bytes=width_bytes * scores, backward_bytes=2 * width_bytes * scores
    )
    yield Footprint(
        name="dropout",
        forward_bytes=(width_bytes + MASK_BYTES) * scores,
        backward_bytes=width_bytes * scores,
    )
    yield product("values", scores + stream, stream, 0)
    yield product("projection", stream, stream, hidden**2)
    yield product("widening", stream, inner, hidden * model.ffn)
    yield product("activation", inner, inner, 0)
    yield product("narrowing", inner, stream, hidden * model.ffn)
    yield product("logits", stream, logits, hidden * model.vocab)


def largest(model: Transformer, sequences: int, width_bytes: int) -> tuple[Footprint, Footprint]:
    """The operators with the most memory: forward, backward."""
    operators = list(footprints(model, sequences, width_bytes))
    return max(operators, key=lambda f: f.forward_bytes), max(operators, key=lambda f: f.backward_bytes)
