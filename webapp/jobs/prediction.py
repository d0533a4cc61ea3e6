"""What the engine predicts of a job, as span codes: computed once at launch and kept on the run."""

from typing import Any

from engine.inputs import parse
from engine.runtime.job import TrainJob
from engine.runtime.predict import predict
from webapp.live.codes import code_of


def predicted_payload(document: dict[str, Any]) -> dict[str, Any]:
    """{iteration_ms, utilization, spans: [[rank, code…]]} of one iteration; times in ms from its start."""
    job = parse(TrainJob, document)
    prediction = predict(job)
    spans: dict[int, list[Any]] = {rank: [rank] for rank in range(job.world_size)}
    for span in prediction.spans:
        stage = span.stage if span.track == "gpu" else span.from_stage
        if stage is not None:
            spans[span.pipeline * job.stages + stage].append(code_of(span.as_dict(), origin=0.0))
    return {
        "iteration_ms": round(prediction.iteration_s * 1e3, 3),
        "utilization": round(prediction.utilization, 4),
        "spans": list(spans.values()),
    }
