"""What placement adds to the page of a plan: how the placement of the option shown stands."""

from typing import Any

from webapp.common.additions import Addition, Context
from webapp.placement.options import what_differs
from webapp.placement.placing import Placing, placing_of


def _placing(context: Context) -> Placing | None:
    """Of the option shown; of a what-if only what is not alike."""
    what, selected = context["what"], context["selected"]
    if selected is None:
        return None
    option: dict[str, Any] = context["result"]["options"][selected["index"]]
    if what.is_changed:
        uneven = what_differs(what.document, option) if option.get("feasible") else []
        return Placing(uneven=uneven, others=[])
    refining = context["refining"]["state"] in ("open", "wanted")
    return placing_of(what.plan, option, operates=context["may_operate"], refining=refining)


ADDITIONS = (
    Addition(
        page="plan",
        order=10,
        name="placement",
        context=lambda request, context: {"placing": _placing(context)},
        templates={"answer": "placement/plan_answer.html"},
    ),
)
