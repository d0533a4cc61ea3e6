"""The order of the queue within one priority: moved by operators, kept by all who read it."""

import re
from typing import Any

import pytest
from django.db import connection
from django.test.utils import CaptureQueriesContext

from tests.site.test_priority import queue, raised
from tests.site.test_reconcile import Nodes
from tests.site.world import World, make_user
from webapp.accounts.models import AuditEntry, Membership, Role, Team
from webapp.jobs import services
from webapp.jobs.models import Priority, Run, RunEvent, Status
from webapp.jobs.reconcile import reconcile

pytestmark = pytest.mark.django_db
MOVE = "/runs/move/"


def ids(world: World) -> list[int]:
    return [run.pk for _, run in queue(world)]


def moved(world: World, run: Run, *, up: bool) -> bool:
    return services.move_in_queue(world.users["operator"], run, up=up)


def test_a_run_that_is_moved_up_gets_gpus_first(world: World) -> None:
    first, second, third = (world.launch() for _ in range(3))
    assert moved(world, third, up=True)
    assert ids(world) == [first.pk, third.pk, second.pk]
    assert moved(world, third, up=True)
    assert ids(world) == [third.pk, first.pk, second.pk]
    assert moved(world, third, up=False)
    assert moved(world, third, up=True)
    world.hear()
    reconcile(Nodes())
    assert Run.objects.get(status=Status.STARTING).pk == third.pk
    ahead = [run.waits_for.partition("; ")[2] for _, run in queue(world)]
    assert ahead == ["", "1 ahead in the queue"]
    fourth = world.launch()
    assert ids(world) == [first.pk, second.pk, fourth.pk], "a new one is last"


def test_a_run_is_moved_among_those_of_its_priority_alone(world: World) -> None:
    high, normal, low = (world.launch() for _ in range(3))
    raised(world, high)
    raised(world, low, Priority.LOW)
    for run in (high, normal, low):
        assert not moved(world, run, up=True)
        assert not moved(world, run, up=False)
    assert ids(world) == [high.pk, normal.pk, low.pk]


def test_the_page_offers_both_directions_where_there_is_somebody_to_swap_with(world: World) -> None:
    first, second = world.launch(), world.launch()
    text = world.client("operator").get("/runs/queue/").content.decode()
    offered = re.findall(
        r'<button class="link-button" form="queue-move" name="(\w+)" value="(\d+)"[^>]*>', text
    )
    assert offered == [(to, str(run.pk)) for run in (first, second) for to in ("up", "down")]
    disabled = re.findall(r'aria-label="Move ([^"]*)" disabled', text)
    assert disabled == [f"{first} up", f"{second} down"]
    assert '<form id="queue-move" method="post" action="/runs/move/">' in text
    assert "queue-move" not in world.client("viewer").get("/runs/queue/").content.decode()


def test_operators_move_runs_and_the_audit_says_so(world: World) -> None:
    first, second = world.launch(), world.launch()
    client = world.client("operator")
    done = client.post(MOVE, {"up": second.pk})
    assert (done.status_code, done["Location"]) == (302, f"/runs/queue/#queued-{second.pk}")
    assert ids(world) == [second.pk, first.pk]
    entry = AuditEntry.objects.filter(verb="move").latest("pk")
    assert (entry.before, entry.after) == ({"position": 2}, {"position": 1})
    assert (
        RunEvent.objects.filter(run=second).latest("seq").text
        == "Moved to position 1 of the queue by operator."
    )
    again = client.post(MOVE, {"up": second.pk}, follow=True)
    assert "Nothing was moved" in again.content.decode()
    assert client.post(MOVE, {"down": second.pk}).status_code == 302
    assert ids(world) == [first.pk, second.pk]


@pytest.mark.parametrize("sent", [{}, {"up": ""}, {"up": "x"}, {"down": "9" * 30}])
def test_what_names_no_run_moves_nothing(world: World, sent: dict[str, Any]) -> None:
    answer = world.client("operator").post(MOVE, sent, follow=True)
    assert answer.redirect_chain == [("/runs/queue/", 302)]
    assert "Nothing was moved" in answer.content.decode()


def test_who_may_not_moves_nothing(world: World) -> None:
    first, second = world.launch(), world.launch()
    assert world.client("viewer").post(MOVE, {"up": second.pk}).status_code == 403
    assert world.client("stranger").post(MOVE, {"up": second.pk}).status_code == 404
    assert ids(world) == [first.pk, second.pk]


def test_an_operator_of_another_team_is_offered_nothing_that_is_refused(world: World) -> None:
    both = make_user("both", world.team, Role.VIEWER)
    world.users["both"] = both
    Membership.objects.create(user=both, team=Team.objects.get(name="Others"), role=Role.OPERATOR)
    _, second = world.launch(), world.launch()
    assert 'form="queue-move"' not in world.client("both").get("/runs/queue/").content.decode()
    assert world.client("both").post(MOVE, {"up": second.pk}).status_code == 403


def test_a_run_that_started_is_not_moved(world: World) -> None:
    first, second = world.launch(), world.launch()
    services.fail_run(second, "Broken.")
    assert not moved(world, second, up=True)
    assert not moved(world, first, up=False)


def test_the_rows_that_change_are_locked_in_one_order(world: World) -> None:
    """By id, by who moves runs and by the round that says what they wait for: no deadlock."""
    first, second = world.launch(), world.launch()
    assert moved(world, second, up=True)
    with CaptureQueriesContext(connection) as captured:
        assert moved(world, first, up=True)
        reconcile(Nodes())
    locks = [row["sql"] for row in captured if "FOR UPDATE" in row["sql"] and 'FROM "jobs_run"' in row["sql"]]
    several = [sql for sql in locks if " LIMIT " not in sql]
    assert len(several) == 2, several
    by_id = re.compile(r'ORDER BY (1|"jobs_run"\."id") ASC FOR UPDATE')
    assert all(by_id.search(sql) for sql in several), several


@pytest.mark.parametrize("kind", ["plan", "clone"])
def test_a_launch_form_says_the_priority(world: World, kind: str) -> None:
    run = world.launch()
    raised(world, run, Priority.LOW)
    client = world.client("operator")
    there = f"/plans/{world.plan.pk}/launch/0/" if kind == "plan" else f"/runs/{run.pk}/clone/"
    form = client.get(there).context["form"]
    assert form["priority"].value() == (Priority.NORMAL if kind == "plan" else Priority.LOW)
    sent = {field.name: field.value() for field in form if field.value() is not None}
    client.post(there, {**sent, "name": "urgent", "priority": "1"})
    assert Run.objects.get(job__name="urgent").priority == Priority.HIGH
    assert "priority" in client.post(there, {**sent, "priority": "7"}).context["form"].errors


def test_labels_and_the_note_of_a_run_are_in_its_json(world: World) -> None:
    run = world.launch()
    Run.objects.filter(pk=run.pk).update(labels="baseline sweep", note="Before the new links.")
    answer = world.client("viewer").get(f"/runs/{run.pk}/live.json").json()
    assert (answer["labels"], answer["note"]) == (["baseline", "sweep"], "Before the new links.")
