"""CrossPipe's performance model: by hand, its properties, and the slides' figures."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from engine.plan.cross_dc import Boundary, Choice, CrossDcJob, data_parallel, pipeline_parallel
from engine.reproduce import crosspipe
from engine.schedule.scenario import Scenario, Times
from engine.simulate import simulate

SMALL = CrossDcJob(
    stages=4,
    replicas=2,
    microbatches=6,
    times=Times(forward=1, backward=1, weight=1),
    gradient_bytes=600.0,
    activation_bytes=10.0,
    memory=4,
)


def test_data_parallel_by_hand() -> None:
    # ZB-V on one pipeline, then half the gradients there and half back: 600 bytes at 100 a second, two steps.
    alone = data_parallel(SMALL, Boundary(bytes_per_s=1e12, latency_s=0))
    crossed = data_parallel(SMALL, Boundary(bytes_per_s=100, latency_s=0.5))
    assert isinstance(alone, Choice)
    assert isinstance(crossed, Choice)
    assert crossed.seconds - alone.seconds == pytest.approx(6.0 + 2 * 0.5)


@settings(max_examples=15, deadline=None)
@given(st.floats(1, 1e4), st.floats(0, 5), st.integers(2, 4), st.sampled_from([2, 4]))
def test_pipeline_parallel_is_never_below_its_traffic_nor_its_work(
    rate: float, latency: float, replicas: int, dcs: int
) -> None:
    job = CrossDcJob(
        stages=4,
        replicas=replicas,
        microbatches=4,
        times=Times(forward=1, backward=1, weight=1),
        gradient_bytes=1.0,
        activation_bytes=10.0,
        dcs=dcs,
        memory=4,
    )
    result = pipeline_parallel(job, Boundary(bytes_per_s=rate, latency_s=latency))
    assert isinstance(result, Choice)
    assert result.seconds >= max(4 * 3, 4 * replicas * 10 / rate) * (1 - 1e-9)


def test_the_slides_speed_up_where_traffic_does_not_decide() -> None:
    ours, traversal = crosspipe._speedup(crosspipe._job(), Boundary(bytes_per_s=256e9, latency_s=0.01))
    assert ours == pytest.approx(1.22, rel=0.1)
    assert traversal == "wave"


@pytest.mark.parametrize(("model", "seconds"), [("M8", [0.151, 0.133]), ("M70", [0.149, 0.133])])
def test_the_row_without_delay_fixes_what_the_slides_do_not_state(model: str, seconds: list[float]) -> None:
    times = crosspipe.table_times(model)
    ours = [crosspipe.blocking_span(policy, times, 0) / 24 * 0.036 for policy in ("1f1b", "zb-h1")]
    assert ours == pytest.approx(seconds, abs=1e-6)


@pytest.mark.parametrize("policy", ["1f1b", "zb-h1"])
def test_a_send_that_blocks_is_a_longer_op_at_the_boundary(policy: str) -> None:
    # Straight through, only stage 3 sends activations over the boundary, only stage 4 gradients.
    times = Times(forward=1, backward=1, weight=1)
    forward, backward = [1.0] * 8, [1.0] * 8
    forward[3], backward[4] = 3.5, 3.5
    longer = Scenario(
        stages=8, microbatches=24, times=Times(forward=forward, backward=backward, weight=1), policy=policy
    )
    assert crosspipe.blocking_span(policy, times, 2.5) == pytest.approx(simulate(longer).makespan)


def test_blocking_sends_explain_every_static_row_of_the_tables() -> None:
    for printed in crosspipe._read("tables.csv"):
        times = crosspipe.table_times(printed["model"])
        delay = float(printed["latency"]) + float(printed["bandwidth"])
        base = crosspipe.blocking_span("1f1b", times, delay)
        for policy in ("zb-h1", "zb-v"):
            ours = crosspipe.blocking_span(policy, times, delay) / base
            assert ours == pytest.approx(float(printed[policy]) / float(printed["1f1b"]), rel=0.1)
