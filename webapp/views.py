"""Pages that belong to no single app: the overview."""

from collections import Counter
from typing import Any

from django.http import HttpRequest, HttpResponse
from django.shortcuts import redirect, render

from webapp.accounts.middleware import for_everyone
from webapp.accounts.models import READERS
from webapp.accounts.permissions import may_somewhere
from webapp.live import overview as live_overview

MOST_DATACENTERS = 24  # in the map and the table of the overview; the list has them all
MOST_ATTENTION = 6


@for_everyone
def overview(request: HttpRequest) -> HttpResponse:
    """What there is, what runs, what needs attention; who reads nothing goes on to their account."""
    if not may_somewhere(request.user, READERS):
        return redirect("accounts:me")
    context = live_overview.context(request.user)
    return render(request, "overview.html", context | _summary(context))


def _summary(context: dict[str, Any]) -> dict[str, Any]:
    """The largest data centres, and totals that only this page shows."""
    dcs, totals = context["dcs"], context["totals"]
    prices = sum(dc["price"] * dc["gpus"] for dc in dcs)
    states = Counter(run["status"] for run in context["runs"])
    largest = sorted(dcs, key=lambda dc: (-dc["busy"], -dc["silent"], -dc["gpus"], dc["name"]))[
        :MOST_DATACENTERS
    ]
    return {
        "largest": sorted(largest, key=lambda dc: dc["name"]),
        "overview_json": {"dcs": largest, "links": _links_between(largest, dcs, context["links"])},
        "cost_if_all_busy": prices,
        "running": states["running"],
        "waiting": states["queued"] + states["starting"],
        "attention": context["attention"][:MOST_ATTENTION],
        "attention_count": len(context["attention"]),
        "idle": max(0, totals["gpus_online"] - totals["busy"]),
    }


def _links_between(
    shown: list[dict[str, Any]], dcs: list[dict[str, Any]], links: list[dict[str, Any]]
) -> list[dict[str, Any]]:
    """The links whose both ends are shown, with their ends counted among those."""
    place = {dc["id"]: index for index, dc in enumerate(shown)}
    ends = [place.get(dc["id"]) for dc in dcs]
    pairs = ((link, ends[link["from"]], ends[link["to"]]) for link in links)
    return [link | {"from": a, "to": b} for link, a, b in pairs if a is not None and b is not None]
