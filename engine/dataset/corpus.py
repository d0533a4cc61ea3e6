"""Tokens on disk as the sequences that a run trains on."""

from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from engine.dataset.index import PreparedIndex, read_index
from engine.dataset.megatron import is_megatron, megatron_stream
from engine.dataset.order import Order
from engine.dataset.streams import SHARDS, TokenStream, stream_of
from engine.dataset.token_bytes import tokens_per_byte
from engine.errors import InputError, reason_of

IGNORED = -100  # a target that no loss counts: the number by which torch's cross entropy leaves it out


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class PreparedCorpus:
    """Sequences of `seq` tokens from the sources of a prepared folder, or of a dataset of Megatron.

    names : of the sources.  masked : whether some targets may be IGNORED.
    tokenizer : the folder with its files; None where it is not known.
    digest : of all tokens, and of how they become sequences.
    vocabulary : ids that the model knows; None: any.
    held_out : what is validated on.
    token_bytes : bytes of text behind each id; None where that is not known.
    """

    names: tuple[str, ...]
    sources: tuple[TokenStream, ...]
    order: Order
    seq: int
    masked: bool
    tokenizer: Path | None
    digest: str
    vocabulary: int | None
    held_out: "PreparedCorpus | None" = None
    token_bytes: NDArray[np.int64] | None = None

    @property
    def tokenizer_file(self) -> Path | None:
        """tokenizer.json of the data."""
        return self.tokenizer / "tokenizer.json" if self.tokenizer else None

    def batch(self, step: int, global_batch: int, samples: NDArray[np.int64]) -> tuple[NDArray, NDArray]:
        """Return tokens and targets of some samples of a step.

        Parameters
        ----------
        step : counted from 0.
        samples : indexes into the global batch.

        Returns
        -------
        tokens, targets : int64, shape (len(samples), seq); targets are the next tokens, or IGNORED.

        Raises
        ------
        InputError
            A token is not in the model's vocabulary.
        """
        drawn = zip(*self.order.drawn(step * global_batch + samples), strict=True)
        windows = [self.sources[source].sequence(int(number), self.seq) for source, number in drawn]
        tokens = np.stack([tokens for tokens, _ in windows]).astype(np.int64)
        counts = np.stack([counts for _, counts in windows])
        largest = int(tokens.max())
        if self.vocabulary is not None and largest >= self.vocabulary:
            raise InputError(
                "model.vocab", self.vocabulary, f"at least {largest + 1}: the data has such tokens"
            )
        return tokens[:, :-1], np.where(counts[:, 1:], tokens[:, 1:], IGNORED)

    def counted(self, step: int, global_batch: int) -> int | None:
        """How many targets of a step's global batch count; None where all do."""
        if not self.masked:
            return None
        _, targets = self.batch(step, global_batch, np.arange(global_batch))
        return int((targets != IGNORED).sum())

    def tokens_per_byte(self, step: int, global_batch: int) -> float | None:
        """Targets of a step's global batch that count, by the bytes of their text; None where not known."""
        if self.token_bytes is None:
            return None
        _, targets = self.batch(step, global_batch, np.arange(global_batch))
        return tokens_per_byte(self.token_bytes, targets)

    def fingerprint(self) -> str:
        """The digest."""
        return self.digest


def open_prepared(path: str, *, seq: int, seed: int, vocabulary: int | None, field: str) -> PreparedCorpus:
    """The corpus of a prepared folder, or of NAME.idx and NAME.bin of Megatron.

    Parameters
    ----------
    vocabulary : ids that the model knows; None: any.
    field : of the document that names the path, for errors.

    Raises
    ------
    InputError
        There is none, a file of it is missing or cut short, a source holds no sequence, or the tokenizer has
        more ids than the model.
    """
    if is_megatron(path):
        stream, digest = megatron_stream(path, field=field)
        names: tuple[str, ...] = (path,)
        streams: tuple[TokenStream, ...] = (stream,)
        weights, masked, tokenizer = None, False, None
    else:
        folder = Path(path).expanduser()
        index = read_index(folder, field=field)
        if vocabulary is not None and index.tokenizer.vocabulary > vocabulary:
            allowed = f"at least {index.tokenizer.vocabulary}: the tokens of {path}"
            raise InputError("model.vocab", vocabulary, allowed)
        names = tuple(source.path for source in index.document.sources)
        streams = _streams(folder, index, field)
        weights, masked = index.weights, index.is_masked
        tokenizer, digest = folder, index.fingerprint
    for name, stream in zip(names, streams, strict=True):
        if not stream.sequences(seq):
            allowed = f"{name} holds {stream.tokens:,} tokens: not one sequence of seq + 1 = {seq + 1}"
            raise InputError(field, path, allowed)
    sizes = tuple(stream.sequences(seq) for stream in streams)
    return PreparedCorpus(
        names=names,
        sources=streams,
        order=Order(sizes=sizes, weights=weights, seed=seed),
        seq=seq,
        masked=masked,
        tokenizer=tokenizer,
        digest=digest,
        vocabulary=vocabulary,
    )


def _streams(folder: Path, index: PreparedIndex, field: str) -> tuple[TokenStream, ...]:
    try:
        return tuple(
            stream_of(
                folder / SHARDS,
                [shard for shard in index.shards if shard.source == number],
                dtype=index.dtype,
                masked=bool(source.messages),
                separate=index.document.packing == "separate",
                eos=index.tokenizer.eos,
            )
            for number, source in enumerate(index.document.sources)
        )
    except (OSError, ValueError) as error:
        raise InputError(field, str(folder), f"is damaged: prepare it again ({reason_of(error)})") from None
