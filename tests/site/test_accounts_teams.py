"""Pages of teams."""

from typing import Any

from tests.site.house import rows
from webapp.accounts.models import Membership, Role, Team


def test_who_makes_a_team_is_its_admin(house: Any) -> None:
    assert house.client("admin").post("/teams/new/", {"name": " Prefill "}).status_code == 302
    team = Team.objects.get(name="Prefill")
    assert Membership.objects.get(team=team).role == Role.ADMIN
    assert rows("create")[0].team == team
    assert house.client("operator").post("/teams/new/", {"name": "Mine"}).status_code == 403
    assert not Team.objects.filter(name="Mine").exists()


def test_a_name_is_given_once(house: Any) -> None:
    answer = house.client("admin").post("/teams/new/", {"name": "Others"})
    assert answer.status_code == 422
    assert answer.context["form"].errors["name"]


def test_an_admin_renames_his_own_team_alone(house: Any) -> None:
    client = house.client("admin")
    assert client.post(f"/teams/{house.other.pk}/", {"name": "Taken over"}).status_code == 404
    assert client.post(f"/teams/{house.team.pk}/", {"name": "Science"}).status_code == 302
    assert set(Team.objects.values_list("name", flat=True)) == {"Science", "Others"}
    assert rows("rename")[0].before == {"name": "Research"}


def test_the_list_counts_what_a_team_has(house: Any) -> None:
    row = house.client("admin").get("/teams/").context["table"].rows[0].record
    assert (row.name, row.member_count, row.admin_count, row.invitation_count) == ("Research", 5, 1, 0)
