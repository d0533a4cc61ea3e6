"""Names of tenancies: unique within a team, in older databases too."""

from typing import Any

import pytest
from django.core.exceptions import ValidationError
from django.db import IntegrityError, connection, transaction
from django.db.migrations.executor import MigrationExecutor

from tests.site.tenancies import ask, second_tenant
from tests.site.test_tenancy_pages import asked
from webapp.accounts.models import Membership, Role, Team
from webapp.prefill.models import Tenancy


def migrate(name: str) -> None:
    """Take the tables of prefill to a migration, forwards or backwards, within the test's transaction."""
    with connection.cursor() as cursor:
        cursor.execute("SET CONSTRAINTS ALL IMMEDIATE")
    MigrationExecutor(connection).migrate([("prefill", name)])


def test_a_name_that_the_team_has_is_refused_at_its_field(world: Any) -> None:
    assert asked(world, name="Search").status_code == 302
    again = asked(world, name=" Search ")
    assert again.status_code == 422
    assert list(again.context["form"].errors) == ["name"]
    assert "has a tenancy of this name already" in again.content.decode()
    assert again.context["form"]["name"].value() == " Search "
    assert Tenancy.objects.count() == 1


def test_another_tenant_of_the_team_cannot_take_it_but_another_team_can(world: Any) -> None:
    ask(world, name="Search")
    with pytest.raises(ValidationError, match="of this name already"):
        ask(world, second_tenant(world), name="Search")
    with pytest.raises(IntegrityError), transaction.atomic():
        Tenancy.objects.filter(pk=ask(world).pk).update(name="Search")
    other = Team.objects.create(name="elsewhere")
    Membership.objects.create(user=world.users["tenant"], team=other, role=Role.TENANT)
    Tenancy.objects.filter(pk=ask(world).pk).update(team=other, name="Search")


def test_names_that_were_given_twice_get_a_number(world: Any) -> None:
    rows = [ask(world) for _ in range(5)]
    long = "x" * 80
    migrate("0002_search")
    for row, name in zip(rows, ("same", "same", "same 2", long, long), strict=True):
        Tenancy.objects.filter(pk=row.pk).update(name=name)
    migrate("0003_names")
    names = list(Tenancy.objects.order_by("pk").values_list("name", flat=True))
    assert names == ["same", "same 3", "same 2", long, f"{long[:70]} 2"]
    with pytest.raises(IntegrityError), transaction.atomic():
        Tenancy.objects.filter(pk=rows[0].pk).update(name="same 2")
