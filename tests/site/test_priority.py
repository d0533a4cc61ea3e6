"""Priorities of queued runs: who gets GPUs first, what the queue shows, and who may change it."""

from typing import Any

import pytest

from tests.site.test_reconcile import Nodes
from tests.site.world import World
from webapp.accounts.models import AuditEntry
from webapp.computations.models import Computation
from webapp.jobs import services
from webapp.jobs.allocate import allocate
from webapp.jobs.models import Priority, Run, Status
from webapp.jobs.reconcile import reconcile

pytestmark = pytest.mark.django_db


def queue(world: World, name: str = "operator") -> list[tuple[int, Run]]:
    """(position, run) as the page has them."""
    rows = world.client(name).get("/runs/queue/").context["table"].rows
    return [(row.record.position, row.record) for row in rows]


def raised(world: World, run: Run, priority: Priority = Priority.HIGH) -> None:
    assert services.set_priority(world.users["operator"], run, priority)


def test_gpus_go_by_priority_and_then_by_launch(world: World) -> None:
    low, first, second, high = (world.launch() for _ in range(4))
    raised(world, low, Priority.LOW)
    raised(world, high)
    expected = [high.pk, first.pk, second.pk, low.pk]
    assert [run.pk for _, run in queue(world)] == expected
    assert [position for position, _ in queue(world)] == [1, 2, 3, 4]
    world.hear()
    reconcile(Nodes())
    assert Run.objects.get(status=Status.STARTING).pk == high.pk
    assert [(position, run.pk) for position, run in queue(world)] == list(enumerate(expected[1:], 1))
    ahead = [run.waits_for.partition("; ")[2] for _, run in queue(world)]
    assert ahead == ["", "1 ahead in the queue", "2 ahead in the queue"]


def test_the_look_through_the_queue_and_one_run_alone_count_the_same_ahead(world: World) -> None:
    first, second = world.launch(), world.launch()
    raised(world, second)
    reconcile(Nodes())
    by_round = dict(Run.objects.values_list("pk", "waits_for"))
    assert by_round[first.pk].endswith("; 1 ahead in the queue")
    Run.objects.update(waits_for="")
    for run in (first, second):
        assert not allocate(run)
    assert dict(Run.objects.values_list("pk", "waits_for")) == by_round


def test_a_run_that_lacks_gpus_holds_up_none_behind_it(world: World) -> None:
    large, small = world.launch(), world.launch()
    large.job.document["device"]["kind"] = "cpu"  # of which there are none
    large.job.save()
    raised(world, large)
    world.hear()
    reconcile(Nodes())
    statuses = dict(Run.objects.values_list("pk", "status"))
    assert statuses == {large.pk: Status.QUEUED, small.pk: Status.STARTING}


def test_operators_change_the_ticked_runs_and_the_audit_says_so(world: World) -> None:
    first, second, third = (world.launch() for _ in range(3))
    client, viewer = world.client("operator"), world.client("viewer")
    assert 'name="priority"' in client.get("/runs/queue/").content.decode()
    assert 'name="priority"' not in viewer.get("/runs/queue/").content.decode()
    assert viewer.post("/runs/priority/", {"pk": first.pk, "priority": "1"}).status_code == 403
    sent = {"pk": [second.pk, third.pk], "priority": "1", "query": ""}
    done = client.post("/runs/priority/", sent, follow=True)
    assert done.redirect_chain == [("/runs/queue/", 302)]
    assert "Priority high: 2 of 2 runs." in done.content.decode()
    assert [run.pk for _, run in queue(world)] == [second.pk, third.pk, first.pk]
    entry = AuditEntry.objects.filter(verb="prioritise").latest("pk")
    assert (entry.before, entry.after) == ({"priority": "Normal"}, {"priority": "High"})
    assert "Nothing was changed" in client.post("/runs/priority/", sent, follow=True).content.decode()
    page = client.post("/runs/priority/", {"pk": first.pk, "priority": "-1"}, follow=True)
    assert page.redirect_chain == [(f"/runs/{first.pk}/", 302)]
    assert "low priority" in page.content.decode()


@pytest.mark.parametrize("priority", ["", "2", "9" * 30])
def test_what_is_no_priority_changes_nothing(world: World, priority: str) -> None:
    run = world.launch()
    sent = world.client("operator").post("/runs/priority/", {"pk": run.pk, "priority": priority}, follow=True)
    assert "Nothing was changed" in sent.content.decode()
    assert Run.objects.get(pk=run.pk).priority == Priority.NORMAL


def test_what_waits_no_longer_and_what_is_not_seen_stays_as_it_is(world: World) -> None:
    run = services.fail_run(world.launch(), "Broken.")
    assert not services.set_priority(world.users["operator"], run, Priority.HIGH)
    for name in ("stranger", "tenant"):
        sent = world.client(name).post("/runs/priority/", {"pk": run.pk, "priority": "1"})
        assert sent.status_code == 404
    assert queue(world) == []
    assert "No run waits" in world.client("viewer").get("/runs/queue/").content.decode()


def test_a_run_that_continues_another_has_its_priority(world: World) -> None:
    run = world.launch()
    raised(world, run)
    Run.objects.filter(pk=run.pk).update(saved_step=4, saved_where="/c/step-000000004-ab")
    services.fail_run(run, "Broken.")
    run.refresh_from_db()
    again = services.retry_run(world.users["operator"], run, resume=True)
    assert again.priority == Priority.HIGH


def test_a_search_has_no_position_and_takes_none_from_others(world: World) -> None:
    searching, waiting = world.launch(), world.launch()
    search = Computation.objects.create(team=world.team, kind="run", name="s", request={})
    Run.objects.filter(pk=searching.pk).update(search=search)
    page: Any = world.client("viewer").get("/runs/queue/")
    rows = {row.record.pk: row.get_cell("position") for row in page.context["table"].rows}
    assert rows == {searching.pk: "–", waiting.pk: "1"}
