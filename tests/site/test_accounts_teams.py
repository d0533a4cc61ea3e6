"""Pages of teams."""

from typing import Any

from tests.site.house import rows
from webapp.accounts.models import Membership, Role, Team
from webapp.accounts.selectors import team_roles


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


def test_the_side_bar_names_the_first_teams_that_one_reads(
    house: Any, django_assert_num_queries: Any
) -> None:
    user = house.users["viewer"]
    roles = {"Sea": Role.VIEWER, "Bay": Role.OPERATOR, "Air": Role.TENANT, "Zoo": Role.ADMIN}
    teams = Team.objects.bulk_create(Team(name=name) for name in roles)
    Membership.objects.bulk_create(Membership(user=user, team=t, role=roles[t.name]) for t in teams)
    assert (
        "Team Bay, Research, Sea and 1 more"
        in house.client("viewer").get("/account/password/").content.decode()
    )
    with django_assert_num_queries(1):
        assert team_roles(user)[0] == ("Air", Role.TENANT)
    user.is_superuser = True
    user.save()
    assert (
        "Team Air, Bay, Others and 3 more"
        in house.client("viewer").get("/account/password/").content.decode()
    )
