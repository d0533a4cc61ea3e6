"""The sequences of a step, decoded: where documents end in them, and what a loss counts."""

from collections.abc import Iterator
from itertools import pairwise
from typing import Any

import numpy as np

from engine.dataset.corpus import PreparedCorpus
from engine.dataset.tokenizer import Decoder


def shown_step(
    corpus: PreparedCorpus, step: int, global_batch: int, decode: Decoder | None
) -> Iterator[dict[str, Any]]:
    """The sequences of a step, in the order of the global batch, as JSON values.

    `parts` are runs of tokens of one document that a loss counts, or does not; `document` is the number of
    the document in its source, None for what fills a sequence up. `text` is None without `decode`.
    """
    sources, numbers = corpus.order.drawn(step * global_batch + np.arange(global_batch))
    for sample, (source, number) in enumerate(zip(sources.tolist(), numbers.tolist(), strict=True)):
        parts = [
            {
                "document": document,
                "counts": counts,
                "tokens": len(tokens),
                "text": decode(tokens) if decode else None,
                "ids": tokens,
            }
            for document, counts, tokens in _parts(corpus, source, number)
        ]
        yield {"sample": sample, "source": corpus.names[source], "sequence": number, "parts": parts}


def _parts(corpus: PreparedCorpus, source: int, number: int) -> Iterator[tuple[int | None, bool, list[int]]]:
    stream = corpus.sources[source]
    tokens, counts = stream.sequence(number, corpus.seq)
    start, end = stream.extent(number, corpus.seq)
    documents = np.searchsorted(stream.document_ends, np.arange(start, start + len(tokens)), side="right")
    documents[end - start :] = -1
    changes = (np.diff(documents) != 0) | (np.diff(counts) != 0)
    bounds = [0, *(np.flatnonzero(changes) + 1).tolist(), len(tokens)]
    for first, last in pairwise(bounds):
        document = int(documents[first])
        yield (document if document >= 0 else None), bool(counts[first]), tokens[first:last].tolist()
