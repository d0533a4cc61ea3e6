"""Prefill is switched on, changed and switched off where a run is cloned."""

from typing import Any

import pytest

from engine.job.changed import fields_of
from tests.site.test_checkpoints import clone
from tests.site.world import World
from webapp.jobs.models import Run

MODEL = {
    "prefill_checkpoint": "/models/tiny",
    "prefill_name": "llama-tiny",
    "prefill_latency_a_ms": 3,
    "prefill_latency_b_ms": 0.2,
    "prefill_latency_c_ms": 0,
    "prefill_chunk_tokens": 16,
}


def test_prefill_is_switched_on_and_off(world: World) -> None:
    clone(world, world.launch(), name="sells", **MODEL)
    sells = Run.objects.get(job__name="sells")
    assert sells.document["prefill"] == {
        "checkpoint": "/models/tiny",
        "name": "llama-tiny",
        "chunk_tokens": 16,
        "latency": {"a_ms": 3, "b_ms": 0.2, "c_ms": 0},
    }
    clone(world, sells, name="slower", prefill_latency_b_ms=0.4, prefill_pp_degree=1)
    slower = Run.objects.get(job__name="slower").document["prefill"]
    assert slower["pp_degree"] == 1
    assert slower["latency"] == {"a_ms": 3, "b_ms": 0.4, "c_ms": 0}
    clone(world, sells, name="ahead", prefill_reserve_ms=10_000)
    assert Run.objects.get(job__name="ahead").document["prefill"]["reserve_ms"] == 10_000
    clone(world, sells, name="survives", recoveries=3, adapt_percent=10)
    survives = Run.objects.get(job__name="survives").document
    assert {"prefill", "failures.recovery", "failures.adapt"} <= fields_of(survives).keys() | {*survives}
    clone(world, sells, name="trains", prefill_checkpoint="")
    assert "prefill" not in Run.objects.get(job__name="trains").document


@pytest.mark.parametrize(
    ("changes", "field", "message"),
    [
        ({"prefill_latency_b_ms": ""}, "prefill_latency_b_ms", "Required, but missing"),
        ({"prefill_latency_b_ms": 0}, "prefill_latency_b_ms", "greater than 0"),
        ({"prefill_reserve_ms": 600_001}, "prefill_reserve_ms", "less than or equal to 600000"),
        ({"prefill_pp_degree": 2}, "prefill_pp_degree", "Must divide cells = 1"),
        ({"prefill_kv_budget_gb": 500}, "prefill_kv_budget_gb", "weights and KV caches of prefill"),
    ],
)
def test_what_cannot_be_is_said_at_its_field(
    world: World, changes: dict[str, Any], field: str, message: str
) -> None:
    form = clone(world, world.launch(), name="never", **{**MODEL, **changes}).context["form"]
    assert message in str(form.errors.get(field))
    assert not Run.objects.filter(job__name="never").exists()
