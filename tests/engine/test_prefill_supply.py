"""What bubbles could sell, against the idle time itself; what buyers meet, against their objectives."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from engine.prefill.bubbles import TrainingPattern
from engine.prefill.index import Fleet
from engine.prefill.latency import LatencyModel
from engine.prefill.placement import Cache, Settings
from engine.prefill.supply import Stream, met, sellable

LATENCY = LatencyModel(a_ms=5.0, b_ms=0.07, c_ms=1e-6)
SETTINGS = Settings(guard_ms=1.0, queue=16, chunk_tokens=64)
CACHE = Cache(token_bytes=131_072, bytes_per_s=12.5e9)


@st.composite
def fleets(draw: st.DrawFn) -> Fleet:
    """A few GPUs that each train in one or two blocks of an iteration of 400 ms."""
    gpus = []
    for _ in range(draw(st.integers(1, 4))):
        cuts = sorted(draw(st.lists(st.integers(0, 400), min_size=4, max_size=4, unique=True)))
        gpus.append(((float(cuts[0]), float(cuts[1])), (float(cuts[2]), float(cuts[3]))))
    pattern = TrainingPattern(period_ms=400.0, busy=(tuple(gpus),), dc_of_stage=(0,) * len(gpus))
    return Fleet(pattern=pattern, phase_ms=(0.0,))


@settings(max_examples=25, deadline=None)
@given(fleet=fleets(), tokens=st.sampled_from([100, 700, 2_000]))
def test_no_more_is_sold_than_fits_into_the_idle_time(fleet: Fleet, tokens: int) -> None:
    rate = sellable(fleet, LATENCY, settings=SETTINGS, cache=CACHE, tokens=tokens, requests=300)
    idle_ms = fleet.pattern.gpus * 60_000 * (1 - fleet.pattern.utilization)
    assert 0 <= rate <= idle_ms / LATENCY.ms(tokens) * tokens * 1.1  # whole iterations of a short record


@settings(max_examples=25, deadline=None)
@given(fleet=fleets(), rate=st.floats(1e3, 1e7), ttft_ms=st.floats(50, 2_000), seed=st.integers(0, 9))
def test_who_is_accepted_is_within_the_objective(
    fleet: Fleet, rate: float, ttft_ms: float, seed: int
) -> None:
    streams = [
        Stream(tokens=200, tokens_per_min=rate, ttft_ms=ttft_ms),
        Stream(tokens=900, tokens_per_min=rate / 2),
    ]
    results = met(fleet, LATENCY, settings=SETTINGS, cache=CACHE, streams=streams, requests=200, seed=seed)
    assert sum(one.asked for one in results) == 200
    least = [LATENCY.ms(stream.tokens) + CACHE.transfer_ms(stream.tokens) for stream in streams]
    for one, shortest in zip(results, least, strict=True):
        assert (one.ttft_ms >= shortest - 1e-6).all()
    assert (results[0].ttft_ms <= ttft_ms + 1e-6).all()
    again = met(fleet, LATENCY, settings=SETTINGS, cache=CACHE, streams=streams, requests=200, seed=seed)
    assert all(np.array_equal(a.ttft_ms, b.ttft_ms) for a, b in zip(results, again, strict=True))


def idle(gpus: int = 2) -> Fleet:
    """GPUs that train in the first half of an iteration."""
    busy = (tuple(((0.0, 200.0),) for _ in range(gpus)),)
    return Fleet(
        pattern=TrainingPattern(period_ms=400.0, busy=busy, dc_of_stage=(0,) * gpus), phase_ms=(0.0,)
    )


def test_endless_demand_fills_nearly_all_bubbles() -> None:
    rate = sellable(idle(), LATENCY, settings=SETTINGS, cache=CACHE, tokens=256)
    assert rate == pytest.approx(60_000 / LATENCY.ms(256) * 256, rel=0.12)  # 2 GPUs, half of the time


def test_twice_the_gpus_sell_twice_as_much() -> None:
    one, two = (
        sellable(idle(n), LATENCY, settings=SETTINGS, cache=CACHE, tokens=512, requests=1000) for n in (2, 4)
    )
    assert two == pytest.approx(2 * one, rel=0.05)


def test_what_fits_no_bubble_is_not_sold() -> None:
    whole = Settings(guard_ms=1.0, queue=16)
    assert sellable(idle(), LATENCY, settings=whole, cache=CACHE, tokens=10_000) == 0


def test_more_load_is_refused_more() -> None:
    shares = []
    for load in (0.3, 0.9, 3.0):
        rate = load * 60_000 / LATENCY.ms(512) * 512
        (results,) = met(
            idle(),
            LATENCY,
            settings=SETTINGS,
            cache=CACHE,
            streams=[Stream(tokens=512, tokens_per_min=rate, ttft_ms=1_000)],
        )
        shares.append(results.refused / results.asked)
    assert shares[0] < 0.02
    assert shares[0] <= shares[1] < shares[2]
    assert shares[2] > 0.5


def test_who_asks_for_nothing_meets_nothing() -> None:
    (results,) = met(
        idle(), LATENCY, settings=SETTINGS, cache=CACHE, streams=[Stream(tokens=512, tokens_per_min=0)]
    )
    assert results.asked == 0
