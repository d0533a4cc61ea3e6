"""CrossPipe's performance model: by hand, its properties, and the slides' figures."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from engine.plan.cross_dc import Boundary, CrossDcJob, data_parallel, pipeline_parallel
from engine.reproduce import crosspipe

SMALL = CrossDcJob(
    stages=4, replicas=2, microbatches=6, forward_s=1.0, gradient_bytes=600.0, activation_bytes=10.0, memory=4
)


def test_data_parallel_by_hand() -> None:
    # ZB-V on one pipeline, then half the gradients there and half back: 600 bytes at 100 a second, two steps.
    alone = data_parallel(SMALL, Boundary(bytes_per_s=1e12, latency_s=0))
    crossed = data_parallel(SMALL, Boundary(bytes_per_s=100, latency_s=0.5))
    assert alone is not None
    assert crossed is not None
    assert crossed.seconds - alone.seconds == pytest.approx(6.0 + 2 * 0.5)


@settings(max_examples=25, deadline=None)
@given(st.floats(1, 1e4), st.floats(0, 5), st.integers(2, 4), st.sampled_from([2, 4]))
def test_pipeline_parallel_is_never_below_its_traffic_nor_its_work(
    rate: float, latency: float, replicas: int, dcs: int
) -> None:
    job = CrossDcJob(
        stages=4, replicas=replicas, microbatches=4, forward_s=1.0, gradient_bytes=1.0,
        activation_bytes=10.0, dcs=dcs, memory=4,
    )  # fmt: skip
    found = pipeline_parallel(job, Boundary(bytes_per_s=rate, latency_s=latency))
    assert found is not None
    assert found.seconds >= max(4 * 3, 4 * replicas * 10 / rate) * (1 - 1e-9)


def test_the_slides_speed_up_where_traffic_does_not_decide() -> None:
    ours, traversal = crosspipe._speedup(crosspipe._job(), Boundary(bytes_per_s=256e9, latency_s=0.01))
    assert ours == pytest.approx(1.22, rel=0.1)
    assert traversal == "wave"


def test_the_row_without_delay_fixes_what_the_slides_do_not_state() -> None:
    seconds = [crosspipe._table_span(policy, 0, 0) / 24 * 0.036 for policy in ("1f1b", "zb-h1")]
    assert seconds == pytest.approx([0.149, 0.133], abs=0.0006)
