"""Counts that are asked together are those that each queryset gives by itself, for every role."""

from typing import Any

import pytest

from webapp.accounts.models import AuditEntry, Team
from webapp.common.counts import counts_of
from webapp.inventory.models import DataCenter, Node, WanLink
from webapp.jobs.models import Run
from webapp.planning.models import Plan
from webapp.prefill.models import Tenancy


@pytest.mark.parametrize("role", ["admin", "operator", "viewer", "tenant", "stranger"])
def test_together_as_one_by_one(world: Any, role: str) -> None:
    user = world.users[role]
    querysets = [
        *(m.objects.visible_to(user) for m in (Team, Plan, DataCenter, Node, WanLink, AuditEntry)),
        Run.objects.visible_to(user).open(),
        Tenancy.objects.visible_to(user).to_decide(),
        Plan.objects.none(),
        Plan.objects.filter(name='100 % "quoted" %s'),
        Plan.objects.order_by("-created_at").distinct(),
    ]
    assert counts_of(querysets) == [queryset.count() for queryset in querysets]
