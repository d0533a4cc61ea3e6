"""Folded sections of forms: a short form first, and a line that says what is set in what is folded."""

from typing import Any

from engine.schedule.registry import SENTENCES
from engine.schedule.scenario import POLICIES
from tests.site.test_clone_prefill import MODEL
from tests.site.test_plan_launch_form import launch
from tests.site.world import World
from webapp.common.formkit import policy_choices
from webapp.planning.forms import PlanForm


def folds(form: Any) -> dict[str, dict[str, Any]]:
    return {section["fold"]: section for section in form.sections if "fold" in section}


def plan_form(world: World, **values: Any) -> PlanForm:
    """The form of a new plan, filled in as it is first shown but for `values`."""
    shown = PlanForm(user=world.users["operator"])
    data = {field.name: field.value() for field in shown if field.value() is not None}
    filled = {"name": "new", "team": world.team.pk, "datacenters": [dc.pk for dc in world.dcs]}
    return PlanForm({**data, "partitions": "6", "tp": "1", **filled, **values}, user=world.users["operator"])


def test_a_new_plan_shows_little_and_folds_the_rest(world: World) -> None:
    page = world.client("operator").get("/plans/new/")
    form = page.context["form"]
    seen = [part["title"] for part in form.sections if "fold" not in part]
    assert seen == ["Plan", "Model", "Training data and weights", "Data centres", "Goal"]
    assert list(folds(form)) == ["Advanced"]
    assert not folds(form)["Advanced"]["open"]
    shown = [
        field.name for part in form.sections for one in part.get("parts", [part]) for field in one["fields"]
    ]
    assert sorted(shown) == sorted({*form.fields} - {"idempotency_key"}), "every field stands once"
    assert '<details class="form-fold"><summary><h2>Advanced</h2></summary>' in page.content.decode()


def test_what_is_folded_opens_where_it_is_wrong_or_not_as_it_was(world: World) -> None:
    as_shown = plan_form(world, name="")
    assert set(as_shown.errors) == {"name"}
    assert not folds(as_shown)["Advanced"]["open"]
    assert folds(plan_form(world, steps="0"))["Advanced"]["open"], "an error"
    assert folds(plan_form(world, name="", policy="varuna"))["Advanced"]["open"], "another policy"
    copied = world.client("operator").get(f"/plans/new/?from={world.plan.pk}").context["form"]
    assert folds(copied)["Advanced"]["open"], "a copy of a plan of another policy"


def test_a_launch_says_what_is_set_in_what_it_folds(world: World) -> None:
    form = world.client("operator").get(f"/plans/{world.plan.pk}/launch/0/").context["form"]
    assert list(folds(form)) == [
        "Training",
        "Optimizer",
        "Schedule",
        "Checkpoints",
        "Failures",
        "Trackers",
        "Prefill",
    ]
    texts = {title: section["said"] for title, section in folds(form).items()}
    empty = {title for title, text in texts.items() if text == "none"}
    assert empty == {"Checkpoints", "Failures", "Trackers", "Prefill"}
    assert "Learning rate: 0.001; Seed: 0; Number format: fp32; Microbatches: 4" in texts["Training"]
    assert texts["Optimizer"].startswith("Decay of the learning rate: Constant; Warm-up, iterations: 0")
    assert "β₂ of AdamW: 0.999" in texts["Optimizer"]
    assert texts["Schedule"].startswith("Policy: Atlas"), texts["Schedule"]
    assert not any(section["open"] for section in folds(form).values())


def test_a_refused_launch_opens_what_is_wrong_and_says_the_rest(world: World) -> None:
    sent = {"checkpoint_dir": "/saved", "checkpoint_every": 5, "recoveries": 4, **MODEL}
    form = launch(world, **sent, prefill_reserve_ms=-1).context["form"]
    sections = folds(form)
    assert {title for title, section in sections.items() if section["open"]} == {"Prefill"}
    assert (
        sections["Checkpoints"]["said"] == "Checkpoint location: /saved; Checkpoint interval, iterations: 5"
    )
    assert sections["Failures"]["said"].startswith("Restarts per hour: 4")


def test_a_checkpoint_to_continue_from_is_said_without_any_of_its_own(world: World) -> None:
    form = launch(world, resume="/saved/step-5", steps=0).context["form"]
    assert folds(form)["Checkpoints"]["said"] == "Continue from: /saved/step-5"


def test_every_policy_is_chosen_by_its_name_and_a_sentence() -> None:
    assert set(SENTENCES) == set(POLICIES)
    assert dict(policy_choices(["1f1b"])) == {
        "1f1b": "1F1B: each stage alternates one forward and one backward pass."
    }
    assert all(len(label.split()) <= 25 and label.endswith(".") for _, label in policy_choices(POLICIES))
