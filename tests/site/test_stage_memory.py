"""The bars of a plan's page are the answer's memory of each stage, of adjacent equal ones once."""

from typing import Any

import pytest

from tests.site.test_new_plan import made, page_of
from tests.site.world import World
from webapp.planning.stage_bars import OF_MEMORY, stage_bars

GB = 10**9


def use(state: int, activations: int, *, gpu: int = 80, serving: int = 0) -> dict[str, int]:
    return {
        "gpu_bytes": gpu * GB,
        "state_bytes": state * GB,
        "activation_bytes": activations * GB,
        "serving_bytes": serving * GB,
    }


def option(uses: list[dict[str, int]], layers: list[int], **stages: int) -> dict[str, Any]:
    parts = [{"dc": dc, "stages": count} for dc, count in stages.items()]
    return {"partitions": parts, "layers_per_stage": layers, "memory_per_stage": uses}


def test_equal_neighbours_are_one_line() -> None:
    uses = [use(30, 20), use(20, 10), use(20, 10), use(20, 10), use(40, 30, gpu=40, serving=10)]
    bars = stage_bars(option(uses, [4, 4, 4, 4, 5], east=3, west=2))
    assert [(bar.stages, bar.dc, bar.layers) for bar in bars] == [
        ("1", "east", 4),
        ("2–3", "east", 4),
        ("4", "west", 4),
        ("5", "west", 5),
    ]
    assert [bar.is_over for bar in bars] == [False, False, False, True]
    assert [bar.total_gb for bar in bars] == pytest.approx([50, 30, 30, 80])
    last = bars[-1]
    assert last.gpu_width == pytest.approx(50), "half as wide as what it needs"
    assert [part["kind"] for part in last.parts] == list(OF_MEMORY)
    assert sum(part["width"] for part in last.parts) == pytest.approx(100)
    assert last.parts[0]["x"] == 0


def test_an_answer_without_memory_has_no_bars() -> None:
    assert stage_bars(None) == stage_bars({"partitions": []}) == []
    assert stage_bars({"memory_per_stage": None, "partitions": []}) == []


@pytest.mark.django_db
def test_the_page_shows_the_memory_of_the_answer(world: World) -> None:
    plan = made(world, model="llama-3-8b")
    best = plan.result["options"][plan.result["best"]]
    page = page_of(world, plan, "viewer")
    bars = page.context["memory_bars"]
    needed = [
        sum(one[name] for name in ("state_bytes", "activation_bytes", "serving_bytes")) / GB
        for one in best["memory_per_stage"]
    ]
    assert max(bar.total_gb for bar in bars) == pytest.approx(max(needed))
    assert bars[0].total_gb == pytest.approx(needed[0])
    assert "Memory per stage" in page.content.decode()
    assert f"{max(needed):,.1f}" in page.content.decode()
