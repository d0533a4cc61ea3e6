"""How people and teams are found."""

from django.db.models import Q
from django.urls import reverse

from webapp.accounts.models import Team, User
from webapp.accounts.selectors import people
from webapp.common.search import Begin, Rows


def _person(user: User) -> tuple[str, str, str]:
    detail = user.get_full_name() or user.email
    return user.username, reverse("accounts:person-detail", args=[user.pk]), detail


KINDS = (
    Rows(
        order=100,
        name="person",
        label="People",
        rows=people,
        matches=lambda word: Q(Begin(word, "username", "first_name", "last_name", "email")),
        named="username",
        hit=_person,
    ),
    Rows(
        order=110,
        name="team",
        label="Teams",
        rows=lambda user: Team.objects.administered_by(user),
        named="name",
        hit=lambda team: (team.name, reverse("accounts:team-edit", args=[team.pk]), ""),
        matches=lambda word: Q(Begin(word, "name")),
    ),
)
