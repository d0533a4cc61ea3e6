"""What every page knows of the site: navigation with counts, the user's role, the broker's health."""

from collections.abc import Sequence
from typing import Any

from django.conf import settings
from django.http import HttpRequest
from django.urls import reverse
from django.utils.functional import SimpleLazyObject

from webapp.accounts.models import OPERATORS, READERS, Membership, Role, Team
from webapp.common import broker
from webapp.common.counts import counts_of
from webapp.common.navigation import Entry, entries_for

NAMED_TEAMS = 3  # of which more are only counted
# Who reads nothing of any team has the way to it nowhere else.
ACCOUNT = Entry(order=0, name="account", label="My account", address="accounts:me", roles=())
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
    own_roles = getattr(request, "roles", None)  # by ReadersMiddleware; a page of an error may come before it
    roles = list(
        Membership.objects.filter(user=user).values_list("role", flat=True)
        if own_roles is None
        else own_roles.values()
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
        "account_url": reverse(ACCOUNT.address),
        "demo": settings.DEMO,
    }


def entries_of(roles: Sequence[str]) -> list[Entry]:
    """The lines of the side bar for somebody with `roles`, in order."""
    reads = [role for role in roles if role in READERS]
    return entries_for(reads) if reads else [*entries_for([r for r in roles if r == Role.TENANT]), ACCOUNT]


def _navigation(request: HttpRequest, user: Any, roles: Sequence[str]) -> list[dict[str, Any]]:
    """The pages that `user` may open, with how many rows they have."""
    reads = any(role in READERS for role in roles)
    entries = entries_of(roles)
    counted = {entry.name: entry.rows for entry in entries if entry.rows and reads}
    counts = dict(zip(counted, counts_of(tuple(counted.values()), user), strict=True))
    shown_entries: list[dict[str, Any]] = []
    heading = ""  # the last one; who reads nothing has too few entries for any
    for entry in entries:
        url = reverse(entry.address)
        begins = reads and entry.group != heading
        heading = entry.group
        shown_entries.append(
            {
                "name": entry.name,
                "label": entry.label,
                "url": url,
                "count": counts.get(entry.name),
                "heading": heading if begins else "",
                "current": _current(entry, url, request.path),
            }
        )
    return shown_entries


def _current(entry: Entry, url: str, path: str) -> str:
    """The `aria-current` of an entry with address `url` on the page at `path`."""
    if path == url:
        return "page"
    return "true" if path.startswith(url) and entry.name != "overview" else ""
