"""What every page knows of the site: navigation with counts, the user's role, the broker's health."""

from collections.abc import Sequence
from typing import Any

from django.conf import settings
from django.http import HttpRequest
from django.urls import reverse
from django.utils.functional import SimpleLazyObject

from webapp.accounts.models import OPERATORS, READERS, Role, Team
from webapp.accounts.selectors import TeamRole, team_roles
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
    own = getattr(request, "team_roles", None)  # by ReadersMiddleware; a page of an error may come before it
    own = team_roles(user) if own is None else own
    roles = [role for _, role in own]
    teams, count = _teams_read(user, own)
    highest = Role.ADMIN if user.is_superuser else next((role for role in RANKED if role in roles), None)
    return {
        "nav": _navigation(request, user, [Role.ADMIN] if user.is_superuser else roles),
        "teams": teams,
        "more_teams": max(0, count - NAMED_TEAMS),
        "role": highest.label if highest else "",
        "reads": bool(count),
        "may_operate": user.is_superuser or any(role in OPERATORS for role in roles),
        "broker": broker.health(),
        "account_url": reverse(ACCOUNT.address),
        "demo": settings.DEMO,
    }


def _teams_read(user: Any, own: Sequence[TeamRole]) -> tuple[list[str], int]:
    """The names of the first teams that `user` reads, and how many there are."""
    if user.is_superuser:
        every = Team.objects.values_list("name", flat=True)
        return list(every[:NAMED_TEAMS]), every.count()
    names = [team for team, role in own if role in READERS]
    return names[:NAMED_TEAMS], len(names)


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
