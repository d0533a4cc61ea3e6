"""How many bytes of text stand behind tokens, for losses in bits per byte.

A loss in nats per token depends on the tokenizer: one with longer tokens has fewer of them to predict. Per
byte of the text in UTF-8 models of different tokenizers compare (Gao et al., The Pile, 2020, §3.1).
"""

import json
import re
from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

_BYTE = re.compile(r"<0x[0-9A-Fa-f]{2}>")
_SPACE = "▁"  # of tokenizers after SentencePiece


def token_bytes(tokenizer: str) -> NDArray[np.int64] | None:
    """Bytes of text behind each id of a tokenizer.json; None where a token does not say its text.

    Known are byte-level tokenizers, and those after SentencePiece. Special tokens stand for no text. Where a
    tokenizer changes text before it cuts it (normal forms, a space in front), the changed text counts.
    """
    fields = json.loads(tokenizer)
    size_of = _size_of(fields)
    if size_of is None:
        return None
    vocabulary = fields["model"]["vocab"]
    entries = (  # Unigram: [token, score] by id; BPE: id by token
        [(token, number) for number, (token, _) in enumerate(vocabulary)]
        if isinstance(vocabulary, list)
        else list(vocabulary.items())
    )
    added = fields.get("added_tokens") or []
    lengths = np.zeros(1 + max([n for _, n in entries] + [token["id"] for token in added]), dtype=np.int64)
    for token, number in entries:
        lengths[number] = size_of(token)
    for token in added:
        lengths[token["id"]] = 0 if token["special"] else len(token["content"].encode())
    return lengths


def tokens_per_byte(lengths: NDArray[np.int64], targets: NDArray[Any]) -> float | None:
    """How many targets count, by the bytes of their text; None where they have none.

    lengths : as of `token_bytes`; an id beyond them stands for no text.
    targets : ids; one below 0 is not counted.
    """
    counted = targets[targets >= 0]
    known = counted[counted < len(lengths)]
    size = int(lengths[known].sum())
    return counted.size / size if size else None


def _size_of(fields: dict[str, Any]) -> Callable[[str], int] | None:
    """The function from a token to its bytes; None where this kind of tokenizer is not known."""
    if fields["model"]["type"] not in ("BPE", "Unigram"):
        return None
    kinds = {decoder["type"] for decoder in _parts(fields.get("decoder"))}
    if "ByteLevel" in kinds:
        return len  # a character of such a token is a byte
    if kinds & {"ByteFallback", "Metaspace"} or _SPACE in str(fields.get("decoder")):
        return lambda token: 1 if _BYTE.fullmatch(token) else len(token.replace(_SPACE, " ").encode())
    return None


def _parts(decoder: dict[str, Any] | None) -> list[dict[str, Any]]:
    """A decoder's steps."""
    if decoder is None:
        return []
    return decoder["decoders"] if decoder["type"] == "Sequence" else [decoder]
