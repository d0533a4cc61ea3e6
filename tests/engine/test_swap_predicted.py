"""The predicted iteration of a swap job, and the codes in which its loads are stored and sent."""

import itertools
from collections import Counter

import pytest

from engine.job.codes import code_of, in_seconds, span_of
from engine.job.swap.planned import planned
from engine.job.swap.predicted import predict_swap
from engine.simulate.spans import Span
from tests.runtime.swap_jobs import EMULATED, GPU, job


@pytest.mark.parametrize("gradients", ["host", "device"])
def test_each_worker_does_its_share_and_what_no_step_hides_follows(gradients: str) -> None:
    of = job(**EMULATED, accumulation=2, swap={"gpu": GPU | {"memory_bytes": 2e6}, "gradients": gradients})
    prediction, plan = predict_swap(of), planned(of)
    units = of.cell.global_batch // of.cell.micro_batch
    forward = Counter((span.microbatch, span.chunk) for span in prediction.spans if span.op == "F")
    assert forward == Counter((unit, part) for unit in range(units) for part in range(len(plan.subs)))
    for worker in range(of.cell.pipelines):
        own = [span for span in prediction.spans if span.pipeline == worker]
        assert max(span.end for span in own) == pytest.approx(prediction.iteration_s)
        busy_s = sum(span.end - span.start for span in own if span.op in ("F", "B"))
        # 4 mini-batches a step, 2 steps, each 20 + 20 + 40 ms
        assert busy_s == pytest.approx(0.64)
        assert busy_s / prediction.iteration_s == pytest.approx(prediction.utilization)
        out = [span for span in own if span.payload == "gradient"]
        carried = sum(part.parameter_bytes for part in plan.subs) / plan.result.host_bytes_per_s
        steps = 1 if gradients == "device" else 2
        assert sum(span.end - span.start for span in out) == pytest.approx(steps * carried)
        closing = sorted(own, key=lambda span: span.start)[-3:]
        assert [span.op for span in closing] == ["all_reduce", "optimizer", "load"]
        assert closing[0].start == pytest.approx(max(span.end for span in out))
        assert all(a.end == pytest.approx(b.start) for a, b in itertools.pairwise(closing))
        loads = sum(span.op == "load" and span.payload is None for span in own)
        assert loads == 2 * 2 * (len(plan.subs) - 1) + 1


def test_a_link_between_workers_makes_the_sum_longer() -> None:
    here = predict_swap(job(**EMULATED))
    slow = [{"between": ["north", "south"], "latency_ms": 50, "bandwidth_gbps": 0.01}]
    apart = predict_swap(job(**EMULATED, links=slow, devices={"pipelines": [[0], [1], [3]]}))
    assert apart.allreduce_s[0] > here.allreduce_s[0] + 0.05


@pytest.mark.parametrize("payload", [None, "gradient"])
def test_a_load_comes_back_from_its_code(payload: None) -> None:
    load = Span(
        track="gpu", pipeline=3, stage=0, op="load", chunk=7, payload=payload, bytes=64, start=1.0, end=2.5
    )
    code = code_of(in_seconds(load), origin=0.0)
    assert code == ["G" if payload else "L", 7, 1.0, 2.5, 64]
    assert span_of(code, pipeline=3, stage=0, wan=False) == load
