"""Context and expert parallelism on the form and the page of a plan, and at its launch."""

import json
from typing import Any

import pytest
from django.urls import reverse

from engine.errors import InputError
from tests.engine.test_plan_parallel import MIXTRAL_CONFIG
from tests.site.test_folds import plan_form
from tests.site.test_new_plan import CREATE, made, page_of
from tests.site.world import World
from webapp.jobs.services import launch_plan
from webapp.placement.options import option_of
from webapp.planning.compose import initial_of
from webapp.planning.stage_bars import stage_time_bars

EXPERTS: dict[str, Any] = {
    "model": "config",
    "config": json.dumps(MIXTRAL_CONFIG),
    "model_seq": "1024",
    "mfu": "",
    "partitions": "2",
}


@pytest.mark.parametrize("name", ["cp", "ep"])
def test_a_degree_that_no_run_has_is_planned_shown_and_not_launched(world: World, name: str) -> None:
    plan = made(world, **EXPERTS, **{name: "2"})
    assert plan.request["job"][name] == 2
    assert initial_of(plan)[name] == 2
    page = page_of(world, plan)
    best = plan.result["options"][plan.result["best"]]
    assert best[name] == 2
    (first, *_) = page.context["time_bars"]
    stage = best["time_per_stage"][0]
    assert first.total_ms == pytest.approx(stage["forward_ms"] + stage["backward_ms"] + stage["recompute_ms"])
    assert "Time per stage" in page.content.decode()
    assert not page.context["launch"]["ok"]
    assert f"plan with {name}: 1" in page.context["launch"]["reason"]
    with pytest.raises(InputError, match=rf"plan with {name}: 1"):
        launch_plan(world.users["operator"], plan, plan.result["best"])


def test_the_form_shows_what_a_gpu_of_the_layout_holds(world: World) -> None:
    def shown(**degrees: str) -> str:
        layout = {"tp": "1", "model_micro_batch": "1"}
        answer = world.client("operator").post(reverse("planning:plan-model"), EXPERTS | layout | degrees)
        text = answer.content.decode()
        return text[text.index("Memory a GPU") :].split(" in the fullest")[0]

    assert shown(ep="8") != shown(ep="1") == shown() != shown(cp="2")
    assert shown(ep="") == shown()


def test_a_plan_without_them_does_not_speak_of_them(world: World) -> None:
    plan = made(world)
    assert not {"cp", "ep", "sequence_parallel"} & plan.request["job"].keys()
    assert "Time per stage" not in page_of(world, plan).content.decode()


def test_sequence_parallelism_may_be_off(world: World) -> None:
    plan = made(world, sequence_parallel="off")
    assert plan.request["job"]["sequence_parallel"] is False
    assert initial_of(plan)["sequence_parallel"] == "off"
    assert "Sequence parallelism" in page_of(world, plan).content.decode()


def test_a_degree_that_does_not_divide_stands_at_its_field(world: World) -> None:
    form = plan_form(world, **EXPERTS, ep="3")
    answer = world.client("operator").post(CREATE, form.data)
    assert set(answer.context["form"].errors) == {"ep"}
    assert "Must divide the model" in str(answer.context["form"].errors["ep"])


@pytest.mark.parametrize(("cp", "is_placed"), [("1", True), ("2", False)])
def test_only_stages_of_one_gpu_are_placed(world: World, cp: str, is_placed: bool) -> None:
    plan = made(world, **EXPERTS, cp=cp)
    assert (option_of(plan, plan.result["best"]) is not None) is is_placed


def test_bars_are_the_parts_of_the_passes_and_join_equal_neighbours() -> None:
    def stage(ep_ms: float) -> dict[str, float]:
        passes = {"forward_ms": 10.0, "backward_ms": 20.0, "recompute_ms": 10.0}
        return passes | {"tp_ms": 0.0, "cp_ms": 0.0, "ep_ms": ep_ms}

    option = {
        "partitions": [{"dc": "east", "stages": 2}, {"dc": "west", "stages": 2}],
        "ep": 2,
        "time_per_stage": [stage(8), stage(8), stage(8), stage(0)],
    }
    bars = stage_time_bars(option)
    assert [(bar.stages, bar.dc) for bar in bars] == [("1–2", "east"), ("3", "west"), ("4", "west")]
    assert [part["kind"] for part in bars[0].parts] == ["compute", "ep"]
    assert [[part["ms"] for part in bar.parts] for bar in bars] == [[32, 8], [32, 8], [40, 0]]
    assert [part["width"] for part in bars[0].parts] == [80, 20]
    assert bars[0].parts[1]["x"] == 80
    assert stage_time_bars(None) == stage_time_bars({"partitions": []}) == []
