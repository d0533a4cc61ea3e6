"""What-ifs of one click on the page of a plan, and what they change."""

from dataclasses import dataclass
from typing import Any

from django.utils.http import urlencode

from engine.plan.what_if import changes, difference, figures
from webapp.planning.what_if import MOST_SLIDERS, PARAMETERS


@dataclass(frozen=True, slots=True, kw_only=True)
class OneClick:
    """A what-if that the page offers: what it is about, what the link says, and the parameters."""

    about: str
    label: str
    query: dict[str, str]

    @property
    def address(self) -> str:
        """The parameters, as they stand in an address."""
        return urlencode(self.query)


LABELS = {"lose": "Lose it", "halve": "Half the bandwidth", "double": "Price × 2"}


def one_clicks(request: dict[str, Any]) -> list[tuple[str, list[OneClick]]]:
    """The what-ifs of one click, by the data centre or link that they are about; none where there are too
    many to list."""
    if max(len(request["datacenters"]), len(request.get("links", []))) > MOST_SLIDERS:
        return []
    offered: dict[str, list[OneClick]] = {}
    for change in changes(request):
        query = {f"{PARAMETERS[field]}-{index}": str(value) for _, index, field, value in change.values}
        click = OneClick(about=str(change), label=LABELS[change.kind], query=query)
        offered.setdefault(change.name, []).append(click)
    return list(offered.items())


# Of the table that compares a what-if with its plan: label, unit, figure, and format of its value.
COMPARED = (
    ("Iteration", "ms", "iteration_ms", "1g"),
    ("Throughput", "pipelines/s", "throughput", "3g"),
    ("Cost", "$/iteration", "cost_per_iteration", "5g"),
    ("Cost", "$/day", "cost_per_day", "2g"),
    ("GPUs used", "", "gpus", "0g"),
)


def compared(before: dict[str, Any], now: dict[str, Any]) -> list[dict[str, Any]]:
    """{label, unit, format, before, now, percent} of the best options of a plan's answer and a what-if's."""
    was, is_ = figures(before), figures(now)
    return [
        {
            "label": label,
            "unit": unit,
            "format": form,
            "before": was[name],
            "now": is_[name],
            "percent": difference(is_[name], was[name]),
        }
        for label, unit, name, form in COMPARED
    ]
