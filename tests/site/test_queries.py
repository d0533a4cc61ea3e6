"""Numbers in addresses that are none: they are no fault of the site."""

from typing import Any

import pytest
import redis
from django.urls import reverse
from hypothesis import given
from hypothesis import strategies as st

from tests.site.world import World
from webapp.common.queries import LARGEST, whole
from webapp.inventory import services
from webapp.inventory.models import Node

ODD = ("²", "9" * 5000, str(LARGEST), "-1", "1.5", "0x10", "\0", "٣")


@given(st.integers(0, LARGEST))
def test_whole_reads_numbers(number: int) -> None:
    assert whole(str(number)) == number


@given(st.text())
def test_whole_reads_no_others(text: str) -> None:
    number = whole(text, 10**6)
    assert number is None or (0 <= number <= 10**6 and int(text) == number)


@pytest.mark.django_db
@pytest.mark.parametrize("odd", ODD)
def test_odd_numbers_in_addresses_are_left_out(world: World, odd: str) -> None:
    operator = world.client("operator")
    run, plan = world.launch(), reverse("planning:plan-detail", args=[world.plan.pk])
    for path, query in (
        (reverse("inventory:node-list"), {"per_page": odd}),
        (reverse("inventory:node-reach"), {"dc": odd}),
        (reverse("jobs:run-list"), {"per_page": odd, "page": odd}),
        (reverse("jobs:run-live", args=[run.pk]), {"since": odd}),
        (reverse("inventory:link-suggestion"), {"a": odd, "b": odd}),
        (reverse("planning:plan-create"), {"from": odd}),
        (reverse("planning:plan-compare"), {"plan": odd}),
        (reverse("schedules:schedule-create"), {"plan": odd, "run": odd}),
        (plan, {"option": odd, f"gpus-{odd}": "1"}),
        (reverse("planning:plan-table", args=[world.plan.pk, "stages"]), {"option": odd}),
        (reverse("jobs:run-logs", args=[run.pk]), {"q": odd, "rank": odd, "after": odd}),
    ):
        assert operator.get(path, query).status_code in (200, 404), (path, query)
    spans = operator.get(reverse("jobs:run-spans", args=[run.pk]), {"from": odd})
    assert spans.status_code == (200 if odd == "٣" else 400)
    launch = reverse("planning:plan-launch", args=[world.plan.pk])
    assert operator.post(launch, {"option": odd}).status_code == 302
    assert operator.post(reverse("jobs:run-dry"), {"plan": world.plan.pk, "option": odd}).status_code == 400
    known = 200 if whole(odd) == world.plan.pk else 404  # "٣" is a number too
    assert operator.post(reverse("jobs:run-dry"), {"plan": odd, "option": 0}).status_code == known
    renamed = reverse("planning:plan-rename", args=[world.plan.pk])
    assert operator.post(renamed, {"name": f"a{odd[:9]}"}).status_code == 302


@pytest.mark.django_db
def test_a_node_is_not_deleted_while_the_broker_is_away(world: World, monkeypatch: Any) -> None:
    east = world.dcs[0]
    node = Node.objects.create(dc=east, pool=east.pools.get(), name="spare", gpus=1)

    def away(_node: Node) -> None:
        raise redis.ConnectionError("away")

    monkeypatch.setattr(services.things, "drop_broker_user", away)
    answer = world.client("admin").post(reverse("inventory:node-delete", args=[node.pk]))
    assert answer.status_code == 409
    assert "the broker does not answer" in answer.content.decode()
    assert Node.objects.filter(pk=node.pk).exists()
