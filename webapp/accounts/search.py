"""How people and teams are found."""

from typing import Any

from django.db.models import Q
from django.urls import reverse

from webapp.accounts.models import Team, User
from webapp.accounts.selectors import people
from webapp.common.search import Begin, Rows


def _person(user: User) -> tuple[str, str, str]:
    detail = user.get_full_name() or user.email
    return user.username, reverse("accounts:person-detail", args=[user.pk]), detail


def _team(team: Team) -> tuple[str, str, str]:
    return team.name, reverse("accounts:team-edit", args=[team.pk]), ""


def _people_with(word: str) -> Q:
    return Q(Begin(word, "username", "first_name", "last_name", "email"))


def _visible_teams(user: Any) -> Any:
    return Team.objects.administered_by(user)


KINDS = (
    Rows(
        order=100,
        name="person",
        label="People",
        rows=people,
        matches=_people_with,
        named="username",
        hit=_person,
    ),
    Rows(
        order=110,
        name="team",
        label="Teams",
        rows=_visible_teams,
        named="name",
        hit=_team,
        matches=lambda word: Q(Begin(word, "name")),
    ),
)
