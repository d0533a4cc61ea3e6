"""Two teams and people, without the inventory: what tests of accounts need, in a few rows."""

from dataclasses import dataclass
from typing import Any

from django.test import Client

from tests.site.logins import logged_in
from tests.site.world import make_user
from webapp.accounts.models import AuditEntry, Membership, Role, Team, User

PASSWORD = "correct horse battery"


@dataclass
class House:
    """Team Research with one of each role, Others with admin `stranger`; `both` is viewer in each; `root`."""

    team: Team
    other: Team
    users: dict[str, User]

    def client(self, name: str) -> Client:
        return logged_in(self.users[name])

    def membership(self, name: str, team: Team | None = None) -> Membership:
        return Membership.objects.get(user=self.users[name], team=team or self.team)

    def give_password(self, name: str) -> User:
        user = self.users[name]
        user.set_password(PASSWORD)
        user.save()
        return user


def make_house() -> House:
    team, other = Team.objects.create(name="Research"), Team.objects.create(name="Others")
    users = {str(role): make_user(str(role), team, role) for role in Role}
    users["stranger"] = make_user("stranger", other, Role.ADMIN)
    users["both"] = make_user("both", team, Role.VIEWER)
    Membership.objects.create(user=users["both"], team=other, role=Role.VIEWER)
    users["root"] = User.objects.create_user("root", is_superuser=True)
    return House(team=team, other=other, users=users)


def rows(verb: str) -> Any:
    """Audit rows of `verb`, the newest first."""
    return AuditEntry.objects.filter(verb=verb)
