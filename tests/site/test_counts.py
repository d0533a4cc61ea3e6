"""Counts that are asked together are those that each query set gives by itself, for every role."""

from collections.abc import Callable
from typing import Any

import pytest
from django.db.models import QuerySet
from django.utils import timezone

from webapp.accounts.models import AuditEntry, Role, Team
from webapp.common.counts import counts_of
from webapp.common.navigation import entries_for
from webapp.inventory.models import DataCenter
from webapp.planning.models import Plan

Rows = Callable[[Any], QuerySet[Any]]


def side_bar() -> list[Rows]:
    """What the side bar counts for somebody who has all roles."""
    rows = [entry.rows for entry in entries_for(list(Role)) if entry.rows]
    assert len(rows) > 4
    return rows


ODD: list[Rows] = [
    Team.objects.visible_to,
    AuditEntry.objects.visible_to,
    lambda user: Plan.objects.none(),
    lambda user: Plan.objects.filter(name='100 % "quoted" %s'),
    lambda user: Plan.objects.filter(created_by=user).order_by("-created_at").distinct(),
]


def test_together_as_one_by_one(world: Any) -> None:
    rows = (*side_bar(), *ODD)
    world.users["root"] = type(world.users["admin"]).objects.create_superuser("root")
    seen = {}
    for name, user in world.users.items():
        seen[name] = counts_of(rows, user)
        assert seen[name] == [rows_of(user).count() for rows_of in rows], name
    assert len({tuple(counts) for counts in seen.values()}) > 3
    DataCenter.objects.create(team=world.team, name="new")
    viewer = world.users["viewer"]
    assert counts_of(rows, viewer) == [rows_of(viewer).count() for rows_of in rows]


def test_its_statement_is_written_once(world: Any, django_assert_num_queries: Any) -> None:
    """Whoever asks first, the database is asked for the counts alone."""
    rows = tuple(side_bar())
    with django_assert_num_queries(2):
        counts_of(rows, world.users["viewer"])
        counts_of(rows, world.users["stranger"])


def test_what_depends_on_the_clock_is_refused(world: Any) -> None:

    def past(user: Any) -> QuerySet[Any]:
        return Plan.objects.filter(created_at__lt=timezone.now())

    with pytest.raises(TypeError, match="depend on datetime"):
        counts_of((past,), world.users["viewer"])
