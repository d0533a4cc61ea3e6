"""The heat map of groups sums what the matrix of every pair holds, and the totals of the traffic."""

from typing import Any

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from engine.inputs import parse
from engine.plan.network.design import design
from engine.plan.network.heat import heat
from engine.plan.network.matrix import gpu_number, gpu_numbers, matrix
from engine.plan.network.request import NetworkRequest

SMALL: dict[str, Any] = {
    "gpus": 128,
    "hb_domain": 8,
    "gpu_type": "h100",
    "switch_radix": 64,
    "model": "tiny",
    "batch": 256,
    "prices": {"port_usd": 1, "transceiver_usd": 1, "port_w": 1, "transceiver_w": 1},
}


@settings(max_examples=25, deadline=None)
@given(
    hb_domain=st.sampled_from([4, 8, 32, 128]),
    tp=st.sampled_from([1, 2, 4]),
    pp=st.sampled_from([1, 2, 3]),
    experts=st.sampled_from([None, 2, 8]),
    groups=st.integers(1, 20),
)
def test_groups_sum_the_matrix_of_every_pair(
    hb_domain: int, tp: int, pp: int, experts: int | None, groups: int
) -> None:
    moe = {"moe": {"experts": experts, "top_k": 1, "every": 1}} if experts else {}
    gpus = 96 if pp == 3 else 128
    assume(gpus % hb_domain == 0)
    document = {**SMALL, "gpus": gpus, "hb_domain": hb_domain, "tp": tp, "pp": pp, **moe}
    result = design(parse(NetworkRequest, document))
    assume(result.job is not None)
    assert result.job is not None
    assert result.traffic is not None
    summed = heat(result.job, groups)
    assert len(summed.bytes) <= groups
    expected = np.zeros_like(summed.bytes)
    for (sender, receiver, _), size in matrix(result.job).items():
        expected[sender // summed.gpus_each, receiver // summed.gpus_each] += size
    np.testing.assert_allclose(summed.bytes, expected, rtol=1e-12)
    assert summed.bytes.sum() == pytest.approx(result.traffic.total_bytes, rel=1e-12)


def test_numbers_of_a_stage_are_those_of_its_gpus() -> None:
    result = design(parse(NetworkRequest, {**SMALL, "tp": 4, "pp": 2}))
    assert result.job is not None
    for stage in range(2):
        numbers = gpu_numbers(result.job, stage)
        for (d, t), number in np.ndenumerate(numbers):
            assert number == gpu_number(result.job, stage, d, t)
