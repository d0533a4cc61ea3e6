"""The placement of a plan's option: asked for by the page of the plan, taken by a launch if it is faster."""

import uuid
from dataclasses import dataclass
from typing import Any

from django.db.models import F

from engine.errors import InputError
from webapp.computations.models import Computation, ComputationKind, ComputationState
from webapp.placement.forms import MOST_DEVICES, PlacementForm
from webapp.placement.options import (
    form_values,
    key_of,
    one_gpu_a_stage,
    option_of,
    placements_of,
    what_differs,
)
from webapp.planning.models import Plan

# A placed run waits for its very GPUs and cannot move off a node: not for less than this share of the time.
LEAST_GAIN = 0.01
SEVERAL_TYPES = (
    "This option uses several GPU types. A placement only weighs links, so it is not placed automatically."
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Placing:
    """How the placement of one option of a plan stands.

    uneven : what is not alike among its nodes and links, as sentences.
    state : "" nothing is to be placed; "offered" it may be asked for (`reason` says why the page does not);
        "wanted" the page asks for it; "refining" it will once the plan is refined; "open" it is computed;
        "used" a launch takes it; "kept" a run on it is predicted to gain less than `LEAST_GAIN`; "failed" for
        `reason`.
    latest : the latest placement of the option, with `run` of its answer.
    others : further ones that were asked for from the plan's page, of any option, the latest of them.
    """

    uneven: list[str]
    state: str = ""
    reason: str = ""
    latest: Computation | None = None
    others: list[Computation]

    @property
    def used(self) -> Computation | None:
        """The placement that a launch takes."""
        return self.latest if self.state == "used" else None


def placing_of(plan: Plan, option: dict[str, Any], *, operates: bool, refining: bool) -> Placing:
    """The placement of `option`, an entry of the plan's own answer.

    Parameters
    ----------
    operates : who looks may have it placed.
    refining : the plan is still to be refined.
    """
    others = placements_of(plan)
    uneven = what_differs(plan.request, option) if option.get("feasible") else []
    if not uneven or not one_gpu_a_stage(option):
        return Placing(uneven=uneven, others=others)
    latest = latest_of(plan, option)
    if latest is not None:
        state, reason = _stands(latest)
    else:
        state, reason = _unasked(plan, option)
        if state == "wanted" and (not operates or key_of(option) != key_of(plan.best or {})):
            state = "offered"
        elif state == "wanted" and refining:
            state = "refining"
    others = [one for one in others if latest is None or one.pk != latest.pk]
    return Placing(uneven=uneven, state=state, reason=reason, latest=latest, others=others)


def latest_of(plan: Plan, option: dict[str, Any]) -> Computation | None:
    """The latest placement of `option` with the orders that it has now; `run` is that of its answer."""
    rows = Computation.objects.of(ComputationKind.PLACEMENT).filter(team=plan.team_id, of_plan__plan=plan)
    of_option = rows.filter(request__of=key_of(option)).annotate(run=F("answer__run"))
    return of_option.defer("request", "answer").first()


def _stands(latest: Computation) -> tuple[str, str]:
    run = latest.run or {}  # type: ignore[attr-defined]  # annotated
    if latest.is_open:
        return "open", ""
    if latest.state == ComputationState.FAILED:
        return "failed", latest.error
    if "placed_ms" not in run:
        return "failed", run.get("reason", "It was stopped before its iteration time was predicted.")
    return ("used" if run["placed_ms"] <= run["planned_ms"] * (1 - LEAST_GAIN) else "kept"), ""


def _unasked(plan: Plan, option: dict[str, Any]) -> tuple[str, str]:
    used = option["gpus_used"]
    devices = sum(used.values())
    if devices > MOST_DEVICES:
        return "", f"It uses {devices:,} GPUs; at most {MOST_DEVICES:,} can be placed."
    types = {site.get("gpu_type") for site in plan.request["datacenters"] if used.get(site["name"])}
    if "model" in plan.request["job"] and len(types) > 1:
        return "offered", SEVERAL_TYPES
    return "wanted", ""


def question_of(plan: Plan, index: int, user: Any) -> tuple[str, dict[str, Any]]:
    """(name, question) of the placement of an option, as the form has it when it is sent as it comes.

    Raises
    ------
    InputError
        There is no such option, or its GPUs cannot be placed; says why.
    """
    option = option_of(plan, index)
    if option is None:
        raise InputError("option", index, "must be a feasible option of this plan with one GPU per stage")
    form = PlacementForm(form_values(plan, index, option), user=user)
    if not form.is_valid():
        field, errors = next(iter(form.errors.items()))
        raise InputError(field, form.data.get(field), str(errors[0]).rstrip("."))
    return form.cleaned_data["name"], form.question


def placement_to_launch(plan: Plan, index: int, pk: str) -> Computation | None:
    """The placement that a launch form names (its id), whole; None where it names none.

    Raises
    ------
    InputError
        It is no placement of this option as the plan has it now.
    """
    if not pk:
        return None
    try:
        key = uuid.UUID(pk)
    except ValueError:
        key = uuid.UUID(int=0)
    latest = latest_of(plan, plan.result["options"][index])
    if latest is None or latest.pk != key:
        raise InputError("placement", pk, "is not the latest of this option: reload the plan")
    return Computation.objects.select_related("team").get(pk=key)
