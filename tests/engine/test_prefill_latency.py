"""The latency model: fits, chunks, pipelines, and the shipped profiles."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from engine.errors import InputError
from engine.prefill.latency import Hop, LatencyModel, covering, errors, fit, held_out
from engine.prefill.profiles import profile, shipped

models = st.builds(
    LatencyModel,
    a_ms=st.floats(0, 50),
    b_ms=st.floats(1e-3, 1),
    c_ms=st.floats(0, 1e-4),
)
LENGTHS = (128, 300, 512, 1024, 3000, 8192)


@given(model=models)
def test_a_fit_finds_the_model_that_made_its_points(model: LatencyModel) -> None:
    result = fit([(s, model.ms(s)) for s in LENGTHS])
    for tokens in LENGTHS:
        assert result.ms(tokens) == pytest.approx(model.ms(tokens), rel=1e-6)


@settings(max_examples=50)
@given(times=st.lists(st.floats(1, 1000), min_size=6, max_size=6))
def test_a_fit_is_the_least_squares_of_relative_errors(times: list[float]) -> None:
    """Against scipy's solver, with times that follow no law."""
    from scipy.optimize import nnls  # here: every test process would import it

    points = list(zip(LENGTHS, times, strict=True))
    s, t = np.array(points).T
    terms = np.stack([np.ones_like(s), s / 8192, (s / 8192) ** 2], axis=1) / t[:, None]
    expected, residual = nnls(terms, np.ones_like(t))
    if expected[1:].max() <= 1e-6:  # no growth at all
        return
    result = fit(points)
    ours = np.sqrt(np.square(errors(result, points)).sum())
    assert ours == pytest.approx(residual, rel=1e-6)


@given(model=models, cuts=st.lists(st.integers(1, 2000), min_size=1, max_size=8))
def test_chunks_cost_one_more_start_each(model: LatencyModel, cuts: list[int]) -> None:
    done = np.concatenate([[0], np.cumsum(cuts)])
    chunked = sum(model.ms(n, done=float(p)) for n, p in zip(cuts, done, strict=False))
    assert chunked == pytest.approx(model.ms(sum(cuts)) + (len(cuts) - 1) * model.a_ms)


@given(model=models, span=st.floats(0, 2000), degree=st.integers(1, 8))
def test_the_longest_prompt_is_the_longest(model: LatencyModel, span: float, degree: int) -> None:
    tokens = model.longest(span, degree)
    assert tokens == 0 or model.stage_ms(tokens, degree) <= span
    assert model.stage_ms(tokens + 1, degree) > span


@given(model=models, tokens=st.integers(1, 9000), degree=st.integers(1, 8), chunk=st.integers(64, 9000))
def test_time_through_a_pipeline(model: LatencyModel, tokens: int, degree: int, chunk: int) -> None:
    """Whole: all layers in sequence and the hops. In chunks: no less than the work of one stage."""
    hop = Hop(fixed_ms=1.0, token_ms=0.001)
    whole = model.ttft_ms(tokens, degree, hop)
    assert whole == pytest.approx(model.ms(tokens) + (degree - 1) * hop.ms(tokens))
    cut = model.ttft_ms(tokens, degree, hop, chunk)
    assert cut >= model.stage_ms(tokens, degree) - 1e-9
    if degree == 1:
        assert cut == pytest.approx(model.ms(tokens) + (-(-tokens // min(chunk, tokens)) - 1) * model.a_ms)


def test_covering_promises_too_much_nowhere() -> None:
    points = profile("llama-3-8b", "a100-80g").points
    model = fit(points)
    assert min(errors(model, points)) < 0
    assert min(errors(covering(model, points), points)) >= -1e-9


def test_llama_on_an_a100() -> None:
    """35 / 77 / 152 / 304 / 665 / 1570 ms, and the fit keeps to them."""
    result = profile("llama-3-8b", "a100-80g")
    measured = dict(result.points)
    for tokens, ms in ((512, 35), (1024, 77), (2048, 152), (4096, 304), (8192, 665), (16384, 1570)):
        assert measured[tokens] == pytest.approx(ms, rel=0.01)
        assert result.latency.ms(tokens) == pytest.approx(ms, rel=0.1)
    assert result.held_out.mean < 0.04
    assert result.held_out.worst < 0.1


def test_every_shipped_profile_can_be_fitted() -> None:
    assert {p.model for p in shipped()} == {"llama-3-8b", "llama2-70b", "bloom-176b"}
    for result in shipped():
        assert result.latency.b_ms > 0
        assert result.held_out.points >= 5
    with pytest.raises(InputError, match="did you mean"):
        profile("llama-3-8b", "a100-40g")


def test_held_out_errors_are_of_points_left_out() -> None:
    exact = LatencyModel(a_ms=5, b_ms=0.05, c_ms=1e-6)
    points = [(s, exact.ms(s)) for s in LENGTHS]
    assert held_out(points).worst == pytest.approx(0, abs=1e-9)
    points[2] = (512, 2 * exact.ms(512))  # the fit without it is exact: it is off by a half
    assert held_out(points, folds=6).worst >= 0.5 - 1e-9


@pytest.mark.parametrize(
    "points",
    [[], [(1, 1), (2, 2)], [(1, 1), (1, 1), (1, 2)], [(1, 9), (2, 9), (3, 0)], [(1, 9), (2, 5), (3, 1)]],
)
def test_points_that_make_no_model(points: list[tuple[float, float]]) -> None:
    with pytest.raises(InputError, match="points"):
        fit(points)
