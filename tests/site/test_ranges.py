"""Kept ranges: what a copied link shows outlives the clean-up, within bounds, until somebody deletes it."""

import threading
from typing import Any

import pytest
from django.core.exceptions import PermissionDenied
from django.db import connection, transaction

from tests.site.telemetry import events, placed, take_in
from tests.site.world import World, make_world
from tests.waiting import until
from webapp.accounts.models import AuditEntry
from webapp.jobs.models import Run
from webapp.live.models import KeptRange, SpanBatch
from webapp.live.services import NotKept, compact_iterations, delete_range, forget_old_spans, keep_range
from webapp.live.services import ranges as bounds
from webapp.live.tasks import retention


@pytest.fixture
def run(world: World) -> Run:
    run = placed(world)
    take_in(events(run, 8))
    return run


def spans(client: Any, run: Run, first: int, last: int) -> dict[str, Any]:
    answer: dict[str, Any] = client.get(f"/runs/{run.pk}/spans.json", {"from": first, "to": last}).json()
    return answer


def test_a_kept_range_opens_after_the_clean_up_as_it_did_before(world: World, run: Run) -> None:
    client = world.client("operator")
    before = spans(client, run, 2, 3)
    assert len(before["spans"]) == 2 * 12
    trace = client.get(f"/runs/{run.pk}/trace.json", {"from": 2, "to": 3}).json()
    answer = client.post(f"/runs/{run.pk}/ranges/", {"from": 2, "to": 3})
    assert answer.json()["range"]["iterations"] == "iterations 3 to 4"
    assert forget_old_spans(2) == 4 * 12
    compact_iterations(2)
    assert spans(client, run, 2, 3) == before
    assert client.get(f"/runs/{run.pk}/trace.json", {"from": 2, "to": 3}).json() == trace
    assert forget_old_spans(2) == 0


def test_the_task_that_cleans_up_leaves_kept_ranges_alone(world: World, run: Run, settings: Any) -> None:
    settings.KEEP_SPAN_ITERATIONS = 2
    keep_range(world.users["operator"], run, 0, 1)
    retention()
    iterations = SpanBatch.objects.filter(run=run).values_list("iteration", flat=True)
    assert sorted(set(iterations)) == [0, 1, 6, 7]


def test_a_deleted_range_goes_with_the_next_clean_up(world: World, run: Run) -> None:
    client = world.client("operator")
    span_range = keep_range(world.users["operator"], run, 2, 3)
    there = f"/runs/{run.pk}/ranges/{span_range.pk}/delete/"
    assert world.client("viewer").post(there).status_code == 403
    answer = client.post(there, follow=True)
    assert "Deleted the kept range: iterations 3 to 4." in answer.content.decode()
    assert AuditEntry.objects.get(verb="delete", object_type="keptrange").before["first"] == 2
    assert forget_old_spans(2) == 6 * 12
    assert client.post(there).status_code == 404


def test_a_range_of_another_run_is_not_deleted(world: World, run: Run) -> None:
    span_range = keep_range(world.users["operator"], run, 2, 3)
    other = world.launch()
    assert (
        world.client("operator").post(f"/runs/{other.pk}/ranges/{span_range.pk}/delete/").status_code == 404
    )
    assert KeptRange.objects.filter(pk=span_range.pk).exists()


def test_a_range_says_who_keeps_how_much_of_what(world: World, run: Run) -> None:
    client, url = world.client("operator"), f"/runs/{run.pk}/ranges/"
    assert client.get(url).json() == {"ranges": []}
    assert 'aria-labelledby="kept-ranges-title"' in page_of(client, run)
    response = client.post(url, {"from": 5, "to": 99}).json()["range"]
    assert (response["from"], response["to"], response["by"]) == (
        5,
        7,
        "operator",
    )  # as far as they are there
    assert 0 < response["bytes"] < 100_000
    [listed] = world.client("viewer").get(url).json()["ranges"]
    assert listed == {name: value for name, value in response.items() if name != "iterations"}
    page = page_of(world.client("viewer"), run)
    assert f'<a href="#it=6&amp;last=8&amp;attempt={run.generation}">Iterations 6 to 8</a>' in page
    assert "data-keep " not in page
    assert f"/ranges/{response['id']}/delete/" not in page
    assert f"/ranges/{response['id']}/delete/" in page_of(client, run)
    entry = AuditEntry.objects.get(verb="keep")
    assert (entry.object_label, entry.after) == (
        f"iterations 6 to 8 of {run}",
        {"first": 5, "last": 7, "bytes": response["bytes"]},
    )


def page_of(client: Any, run: Run) -> str:
    return " ".join(client.get(f"/runs/{run.pk}/").content.decode().split())


def test_what_is_kept_already_is_not_kept_twice(world: World, run: Run) -> None:
    operator = world.users["operator"]
    span_range = keep_range(operator, run, 1, 5)
    assert keep_range(world.users["admin"], run, 1, 5) == span_range
    assert keep_range(operator, run, 2, 3) == span_range
    assert keep_range(operator, run, 5, 6) != span_range
    assert AuditEntry.objects.filter(verb="keep").count() == 2


def test_only_operators_keep(world: World, run: Run) -> None:
    with pytest.raises(PermissionDenied):
        keep_range(world.users["viewer"], run, 0, 1)
    span_range = keep_range(world.users["operator"], run, 0, 1)
    with pytest.raises(PermissionDenied):
        delete_range(world.users["viewer"], span_range)


@pytest.mark.parametrize("data", [{}, {"from": "2"}, {"from": "3", "to": "2"}, {"from": "x", "to": "9"}])
def test_what_is_no_range_is_refused(world: World, run: Run, data: dict[str, str]) -> None:
    answer = world.client("operator").post(f"/runs/{run.pk}/ranges/", data)
    assert answer.status_code == 400
    assert "counted from 0" in answer.json()["error"]


def test_of_a_range_that_is_gone_nothing_is_kept(world: World, run: Run) -> None:
    forget_old_spans(2)
    answer = world.client("operator").post(f"/runs/{run.pk}/ranges/", {"from": 0, "to": 3})
    assert (answer.status_code, answer.json()["error"]) == (409, "No span of these iterations is left.")


def test_a_run_keeps_so_many_ranges(world: World, run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bounds, "MOST_RANGES", 2)
    for iteration in (0, 1):
        keep_range(world.users["operator"], run, iteration, iteration)
    answer = world.client("operator").post(f"/runs/{run.pk}/ranges/", {"from": 3, "to": 3})
    assert answer.status_code == 409
    assert "keeps 2 ranges with " in answer.json()["error"]
    assert "of at most 2 ranges and 64 MB. Delete a kept range first." in answer.json()["error"]
    delete_range(world.users["operator"], KeptRange.objects.latest("pk"))
    assert keep_range(world.users["operator"], run, 3, 3)


def test_a_run_keeps_so_many_bytes(world: World, run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    size = keep_range(world.users["operator"], run, 0, 1).bytes
    monkeypatch.setattr(bounds, "MOST_BYTES", 2 * size - 1)
    with pytest.raises(NotKept, match=r"of at most 20 ranges and .*B\. Delete a kept range first"):
        keep_range(world.users["operator"], run, 2, 3)
    monkeypatch.setattr(bounds, "MOST_BYTES", 2 * size + size)
    assert keep_range(world.users["operator"], run, 2, 3)


def test_the_nearest_range_is_offered_in_place_of_one_that_is_gone(world: World, run: Run) -> None:
    client = world.client("viewer")
    assert spans(client, run, 2, 3)["nearest"] is None  # there they are
    keep_range(world.users["operator"], run, 1, 2)
    forget_old_spans(2)  # 1 and 2 are kept, 6 and 7 are the last
    assert spans(client, run, 0, 0)["nearest"] == {"from": 1, "to": 2}
    assert spans(client, run, 3, 3)["nearest"] == {"from": 1, "to": 2}
    assert spans(client, run, 4, 5)["nearest"] == {"from": 6, "to": 6}
    assert spans(client, run, 90, 99)["nearest"] == {"from": 7, "to": 7}
    SpanBatch.objects.filter(run=run).delete()
    assert spans(client, run, 0, 0)["nearest"] is None


def somebody_waits_for_a_lock() -> bool:
    with connection.cursor() as cursor:
        cursor.execute("SELECT EXISTS (SELECT FROM pg_locks WHERE NOT granted)")
        return bool(cursor.fetchone()[0])


@pytest.mark.django_db(transaction=True)
def test_a_clean_up_at_the_same_time_takes_nothing_that_was_kept() -> None:
    """Whoever comes first: what a range says that it holds is there afterwards."""
    world = make_world()
    run = placed(world)
    take_in(events(run, 8))

    def clean_up() -> None:
        try:
            forget_old_spans(2)
        finally:
            connection.close()

    thread = threading.Thread(target=clean_up)
    with transaction.atomic():
        span_range = keep_range(world.users["operator"], run, 0, 3)
        thread.start()
        until(lambda: not thread.is_alive() or somebody_waits_for_a_lock())
    thread.join()
    left = SpanBatch.objects.filter(run=run, iteration__range=(span_range.first, span_range.last)).count()
    assert left == 4 * 12
