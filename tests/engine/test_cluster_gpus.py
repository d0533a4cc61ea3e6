"""The GPU catalogue."""

import pytest

from engine.cluster.gpus import catalogue, gpu
from engine.errors import InputError


def test_the_types_that_the_contract_names_are_there() -> None:
    assert {"v100", "a100-40g", "a100-80g", "h100", "h200"} <= set(catalogue())


@pytest.mark.parametrize("name", catalogue())
def test_every_type_is_complete_and_plausible(name: str) -> None:
    kind = gpu(name)
    assert all(1e12 < flops < 1e16 for flops in kind.peak_flops.values())
    assert 16e9 <= kind.memory_bytes <= 300e9
    # Device memory is faster than the link, and the link at least as fast as the host's.
    assert kind.hbm_bytes_per_s > kind.link_bytes_per_s >= kind.host_bytes_per_s > 1e9


def test_published_peaks() -> None:
    assert gpu("a100-80g").flops(2) == 312e12
    assert gpu("v100").flops(2) == 125e12
    assert gpu("h100").flops(1) == 2 * gpu("h100").flops(2)


def test_a_format_that_the_gpu_lacks_is_bad_input() -> None:
    with pytest.raises(InputError, match="a100-80g computes in 2, 4, 8 bytes"):
        gpu("a100-80g").flops(1)


def test_an_unknown_type_names_the_nearest() -> None:
    with pytest.raises(InputError, match="did you mean 'a100-80g'"):
        gpu("a100-80gb")
