"""Measured spans of a run as a Chrome trace, which Perfetto opens."""

from collections.abc import Iterator
from typing import Any

from engine.errors import InputError
from engine.job.codes import span_of
from engine.job.shape import shape_of
from engine.simulate.spans import Span
from engine.simulate.trace import chrome_trace
from webapp.jobs.models import Run
from webapp.live.models import SpanBatch

MOST_SPANS = 400_000  # about 80 MB of JSON; Perfetto opens it


def trace(run: Run, first: int, last: int) -> dict[str, Any]:
    """The trace of iterations `first` to `last` (from 0, both inside), as far as their spans are kept.

    Raises
    ------
    InputError
        The range is empty or holds more spans than one trace may.
    """
    if first > last:
        raise InputError("from", first, f"must be at most to = {last}")
    spans: list[Span] = []
    for span in _spans(run, first, last):
        spans.append(span)
        if len(spans) > MOST_SPANS:
            raise InputError("to", last, f"gives more than {MOST_SPANS:,} spans; choose fewer iterations")
    document = chrome_trace(spans, unit="ms")
    metadata = {"run": run.pk, "job": run.job.name, "generation": run.generation, "from": first, "to": last}
    return {**document, "otherData": {**document["otherData"], **metadata}}


def kept(run: Run) -> tuple[int, int] | None:
    """First and last iteration whose spans are kept; None where there is none."""
    iterations = SpanBatch.objects.filter(run=run).order_by("iteration").values_list("iteration", flat=True)
    first = iterations.first()
    return None if first is None else (first, iterations.reverse()[0])


def _spans(run: Run, first: int, last: int) -> Iterator[Span]:
    shape = shape_of(run.job.document)
    gpus = {rank.rank: f"{rank.node.name} gpu-{rank.gpu}" for rank in run.ranks.select_related("node")}
    batches = SpanBatch.objects.filter(run=run, iteration__range=(first, last))
    for batch in batches.order_by("iteration", "rank").iterator(chunk_size=500):
        pipeline, stage = divmod(batch.rank, shape.stages)
        dcs = shape.dcs_of_pipeline[pipeline]
        for code in batch.spans:
            wan = code[0] == "T" and dcs[code[5]] != dcs[code[6]]
            yield span_of(
                code,
                pipeline=pipeline,
                stage=stage,
                wan=wan,
                run=str(run.pk),
                iteration=batch.iteration,
                gpu=gpus.get(batch.rank),
            )
