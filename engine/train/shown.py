"""What a job reads in a step, decoded for people: text or prepared sequences, as its ranks draw them."""

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from engine.dataset.corpus import PreparedCorpus
from engine.dataset.decoded import shown_step
from engine.dataset.tokenizer import Decoder, decoder_of
from engine.job.job import TrainJob
from engine.train.corpus import TextCorpus, corpus_of


def shown_samples(job: TrainJob, step: int, dc: str | None = None) -> Iterator[dict[str, Any]]:
    """The sequences of a step, in the order of the global batch, as JSON values (`shown_step`).

    Sequences of text have a `start`, the first byte or token in their file, in place of a number.

    Parameters
    ----------
    step : counted from 0.
    dc : name of the data centre that reads, where the job names files for each; by default any.

    Raises
    ------
    InputError
        The files are missing, unreadable, or hold too little text; or the tokenizer does not fit.
    """
    corpus = corpus_of(job, dc)
    file = corpus.tokenizer_file or job.model.tokenizer
    decode = decoder_of(file, field="model.tokenizer") if file else _from_bytes
    if isinstance(corpus, PreparedCorpus):
        return shown_step(corpus, step, job.cell.global_batch, decode)
    return _of_text(corpus, step, job.cell.global_batch, decode)


def _of_text(corpus: TextCorpus, step: int, global_batch: int, decode: Decoder) -> Iterator[dict[str, Any]]:
    drawn = corpus.drawn(step, global_batch, np.arange(global_batch))
    for sample, (file, start) in enumerate(drawn):
        tokens = corpus.window(file, start).tolist()
        part = {
            "document": None,
            "counts": True,
            "tokens": len(tokens),
            "text": decode(tokens),
            "ids": tokens,
        }
        yield {"sample": sample, "source": corpus.names[file], "start": start, "parts": [part]}


def _from_bytes(tokens: Sequence[int]) -> str:
    return bytes(tokens).decode(errors="replace")
