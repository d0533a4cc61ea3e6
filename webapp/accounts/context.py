"""What every page knows of the site: navigation with counts, the user's role, the broker's health."""

from collections.abc import Sequence
from typing import Any

from django.conf import settings
from django.http import HttpRequest
from django.urls import reverse
from django.utils.functional import SimpleLazyObject

from webapp import broker
from webapp.accounts.models import OPERATORS, READERS, Membership, Role, Team
from webapp.counts import counts_of

NAMED_TEAMS = 3  # of which more are only counted
RANKED = (Role.ADMIN, Role.OPERATOR, Role.VIEWER, Role.TENANT)


def site(request: HttpRequest) -> dict[str, Any]:
    """Context processor: `site`, computed when a template first touches it."""
    return {"site": SimpleLazyObject(lambda: _site(request))}


def _site(request: HttpRequest) -> dict[str, Any]:
    user = getattr(request, "user", None)
    if user is None or not user.is_authenticated:
        return {
            "nav": [],
            "teams": [],
            "more_teams": 0,
            "role": "",
            "reads": False,
            "may_operate": False,
            "broker": None,
            "demo": settings.DEMO,
        }
    known = getattr(request, "roles", None)  # by ReadersMiddleware; a page of an error may come before it
    roles = list(
        Membership.objects.filter(user=user).values_list("role", flat=True)
        if known is None
        else known.values()
    )
    visible = Team.objects.visible_to(user)
    read = visible.count() if user.is_superuser else sum(role in READERS for role in roles)
    highest = Role.ADMIN if user.is_superuser else next((role for role in RANKED if role in roles), None)
    return {
        "nav": _navigation(request, user, [Role.ADMIN] if user.is_superuser else roles),
        "teams": list(visible.values_list("name", flat=True)[:NAMED_TEAMS]),
        "more_teams": max(0, read - NAMED_TEAMS),
        "role": highest.label if highest else "",
        "reads": bool(read),
        "may_operate": user.is_superuser or any(role in OPERATORS for role in roles),
        "broker": broker.health(),
        "demo": settings.DEMO,
    }


def _navigation(request: HttpRequest, user: Any, roles: Sequence[str]) -> list[dict[str, Any]]:
    """The pages that `user` may open, with how many rows they have."""
    if not any(role in READERS for role in roles):
        account = [("account", "My account", "accounts:me", None)]
        tenant = [
            ("prefill", "Prefill", "prefill:home", None),
            ("tenancies", "Tenancies", "prefill:tenancy-list", None),
            ("keys", "Keys", "prefill:key-list", None),
            ("usage", "Usage", "prefill:usage-list", None),
        ]
        return _entries(request, [*tenant, *account] if Role.TENANT in roles else account)
    from webapp.inventory.models import DataCenter, Node, WanLink
    from webapp.jobs.models import Run
    from webapp.planning.models import Plan
    from webapp.prefill.models import Tenancy

    operates = any(role in OPERATORS for role in roles)
    entries = [
        ("overview", "Overview", "overview", None),
        ("plans", "Plans", "planning:plan-list", Plan.objects.visible_to(user)),
        ("schedules", "Schedules", "schedules:schedule-list", None),
        ("placement", "Placement", "placement:placement-list", None),
        ("network", "Network design", "design:network", None),
        ("swap", "Swap plan", "design:swap", None),
        ("runs", "Runs", "jobs:run-list", Run.objects.visible_to(user).open()),
        *([("prefill-live", "Prefill live", "prefill:live", None)] if operates else []),
        ("tenancies", "Tenancies", "prefill:tenancy-list", Tenancy.objects.visible_to(user).to_decide()),
        ("keys", "Keys", "prefill:key-list", None),
        ("usage", "Usage", "prefill:usage-list", None),
        ("datacenters", "Data centres", "inventory:datacenter-list", DataCenter.objects.visible_to(user)),
        ("nodes", "Nodes", "inventory:node-list", Node.objects.visible_to(user)),
        ("links", "Links", "inventory:link-list", WanLink.objects.visible_to(user)),
        ("map", "Map", "inventory:map", None),
        ("gpu-types", "GPU types", "inventory:gputype-list", None),
    ]
    if Role.ADMIN in roles:
        entries += [
            ("people", "People", "accounts:person-list", None),
            ("audit", "Audit", "accounts:audit-list", None),
        ]
    return _entries(request, entries)


def _entries(request: HttpRequest, entries: Sequence[tuple[str, str, str, Any]]) -> list[dict[str, Any]]:
    here = request.path
    made = []
    counted = [queryset for *_, queryset in entries if queryset is not None]
    counts = iter(counts_of(counted) if counted else ())
    for name, label, url_name, queryset in entries:
        url = reverse(url_name)
        active = here == url if name == "overview" else here.startswith(url)
        count = None if queryset is None else next(counts)
        made.append({"name": name, "label": label, "url": url, "count": count, "active": active})
    return made
