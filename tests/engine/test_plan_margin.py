"""`memory_margin`: the share of the counted memory that a plan keeps free on every GPU."""

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from engine.errors import InputError
from engine.inputs import parse
from engine.plan.request import PlanRequest
from tests.engine.test_plan_fitting import asked
from tests.engine.test_plan_search import answer_of, score


@settings(max_examples=10, deadline=None)
@given(
    memory_gb=st.floats(4.5, 9),
    margin=st.sampled_from([0.1, 0.25]),
    policy=st.sampled_from(["1f1b", "varuna", "zb-h1"]),
)
def test_a_margin_is_less_memory(memory_gb: float, margin: float, policy: str) -> None:
    """With a margin m a plan is that of GPUs with 1/(1 + m) of the memory, except for `gpu_bytes`."""
    whole = asked(policy, memory_gb=(1 + margin) * memory_gb, memory_margin=margin)
    plain, less = answer_of(whole), answer_of(asked(policy, memory_gb=memory_gb))
    assert score(plain) == pytest.approx(score(less), rel=1e-9)
    if plain.best is None or less.best is None:
        assert plain.best == less.best
        assert f"and {100 * margin:g} % of that free" in (plain.reason or "")
        return
    ours, theirs = plain.options[plain.best], less.options[less.best]
    for use, other in zip(ours.memory_per_stage or (), theirs.memory_per_stage or (), strict=True):
        assert use.total_bytes == other.total_bytes
        assert (1 + margin) * use.total_bytes <= use.gpu_bytes * (1 + 1e-9)


def test_balanced_layers_keep_it_free_too() -> None:
    document = asked("1f1b", memory_gb=6.0, memory_margin=0.1, layers_per_stage="balanced")
    answer = answer_of(document)
    assert answer.best is not None
    for use in answer.options[answer.best].memory_per_stage or ():
        assert 1.1 * use.total_bytes <= use.gpu_bytes


@pytest.mark.parametrize("margin", [-0.1, 1.5, "10 %", True])
def test_a_margin_is_a_share(margin: Any) -> None:
    with pytest.raises(InputError) as error:
        parse(PlanRequest, asked("1f1b", memory_margin=margin))
    assert error.value.field == "job.memory_margin"


def test_times_have_no_memory() -> None:
    document = asked("1f1b")
    times = {"forward_ms": 1, "backward_ms": 2, "comm_to_compute": 1, "memory_margin": 0.1}
    with pytest.raises(InputError) as error:
        parse(PlanRequest, {**document, "job": {"partitions": 3, "microbatches": 6, **times}})
    assert error.value.field == "job.memory_margin"
