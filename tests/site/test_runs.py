"""Launching once, again and with other values; what the pages of runs list, filter and hand out."""

import json
import threading
from collections.abc import Callable
from typing import Any

import pytest
from django.db import connection, connections
from django.test.utils import CaptureQueriesContext

from engine.errors import InputError
from engine.inputs import parse
from engine.job.changed import changed, fields_of, value_at
from engine.job.job import TrainJob
from engine.job.sections.paths import PATHS
from engine.schedule.contention import RULES, contention_name
from engine.simulate import simulate
from tests.site.world import World, make_world
from tests.waiting import LIMIT_S
from webapp.accounts.models import AuditEntry
from webapp.inventory.models import Node
from webapp.jobs import services
from webapp.jobs.dry import dry_run_document
from webapp.jobs.models import Job, Run, Status


def best(world: World) -> int:
    return int(world.plan.result["best"])


def test_the_same_key_of_the_same_user_gives_the_first_run(world: World) -> None:
    operator, admin = world.users["operator"], world.users["admin"]
    first = services.launch_plan(operator, world.plan, best(world), key="a")
    assert services.launch_plan(operator, world.plan, best(world), key="a") == first
    assert services.launch_plan(operator, world.plan, best(world), key="b") != first
    assert services.launch_plan(admin, world.plan, best(world), key="a") != first
    assert services.launch_plan(operator, world.plan, best(world)) != first
    assert Job.objects.count() == Run.objects.count() == 4


def test_a_key_holds_for_retry_and_clone_too(world: World) -> None:
    operator = world.users["operator"]
    run = services.fail_run(world.launch(), "Broken.")
    again = services.retry_run(operator, run, key="r")
    assert services.retry_run(operator, run, key="r") == again
    document = changed(run.job.document, {"optimizer.steps": 3})
    other = services.clone_run(operator, run, name="other", document=document, key="c")
    assert services.clone_run(operator, run, name="other", document=document, key="c") == other
    assert Run.objects.count() == 3


@pytest.mark.django_db(transaction=True)
def test_two_requests_at_once_with_one_key_launch_one_run() -> None:
    world = make_world()
    got: list[int] = []
    together = threading.Barrier(2)

    def ask() -> None:
        together.wait(LIMIT_S)
        try:
            got.append(services.launch_plan(world.users["operator"], world.plan, best(world), key="twice").pk)
        finally:
            connections.close_all()

    threads = [threading.Thread(target=ask) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(LIMIT_S)
    assert len(got) == 2
    assert got[0] == got[1]
    assert Run.objects.count() == Job.objects.count() == 1


@pytest.mark.parametrize("choice", [None, "best", "fifo"])
def test_a_launch_names_the_rule_that_wins(world: World, choice: str | None) -> None:
    """By the simulated time of each rule; one that is asked for stays."""
    first, client = world.launch(), world.client("operator")
    varuna = {**form_of(client, first), "policy": "varuna", "steps": 7}
    client.post(f"/runs/{first.pk}/clone/", varuna)
    run = Run.objects.get(job__name="three v2")
    values = form_of(client, run) | {"policy": "atlas", "sharing": "temporal", "microbatches": 8}
    client.post(f"/runs/{run.pk}/clone/", values if choice is None else {**values, "contention": choice})
    document = Run.objects.get(job__name="three v3").job.document
    scenario = parse(TrainJob, document).pass_scenario
    times = {
        rule: simulate(scenario.model_copy(update={"contention": rule})).makespan or 0.0 for rule in RULES
    }
    rule = document["strategy"]["contention"]
    assert rule == choice if choice == "fifo" else times[rule] == min(times.values())
    page = client.get(f"/runs/{Run.objects.get(job__name='three v3').pk}/").content.decode()
    assert f"links {contention_name(rule)}" in page


@pytest.mark.parametrize("key", ["x" * 65, "line\nbreak", "\x00"])
def test_a_key_that_cannot_be_kept_is_refused(world: World, key: str) -> None:
    with pytest.raises(InputError, match="idempotency_key"):
        services.launch_plan(world.users["operator"], world.plan, best(world), key=key)


def test_retry_is_the_same_document_and_the_next_generation(world: World) -> None:
    run = services.fail_run(world.launch(), "Broken.")
    response = world.client("operator").post(f"/runs/{run.pk}/retry/", {"idempotency_key": "k"})
    again = Run.objects.get(generation=2)
    assert response["Location"] == f"/runs/{again.pk}/"
    assert (again.job, again.status) == (run.job, Status.QUEUED)
    assert again.secret != run.secret


def test_what_still_runs_is_not_tried_again(world: World) -> None:
    run = world.launch()
    client = world.client("operator")
    response = client.post(f"/runs/{run.pk}/retry/", follow=True)
    assert Run.objects.count() == 1
    assert "stop it first" in response.content.decode()


def form_of(client: Any, run: Run) -> dict[str, Any]:
    form = client.get(f"/runs/{run.pk}/clone/").context["form"]
    return {field.name: field.value() for field in form if field.value() is not None}


def test_a_clone_starts_from_the_runs_values_and_takes_what_was_changed(world: World) -> None:
    run, client = world.launch(), world.client("operator")
    values = form_of(client, run)
    assert values["name"] == "three v2"
    assert (values["steps"], values["policy"]) == (50, "atlas")
    values |= {"steps": 7, "lr": 0.02, "policy": "varuna", "clip": ""}
    response = client.post(f"/runs/{run.pk}/clone/", values)
    clone = Run.objects.get(job__name="three v2")
    assert response["Location"] == f"/runs/{clone.pk}/"
    document = clone.job.document
    assert (document["optimizer"]["steps"], document["optimizer"]["lr"], document["strategy"]["policy"]) == (
        7,
        0.02,
        "varuna",
    )
    made_of, copied = fields_of(document), fields_of(run.job.document)
    same = made_of.keys() - {"optimizer.steps", "optimizer.lr", "strategy.policy", "strategy.contention"}
    assert {path: made_of[path] for path in same & copied.keys()} == {
        path: copied[path] for path in same & copied.keys()
    }
    # Varuna's pipelines share no link.
    assert (copied["strategy.contention"], made_of.get("strategy.contention")) == ("rank", None)
    assert same - copied.keys() <= {"cell.microbatches", "cell.micro_batch", "optimizer.seed"}
    parse(TrainJob, document)
    row = AuditEntry.objects.get(verb="clone")
    assert (row.before["optimizer.steps"], row.after["optimizer.steps"]) == (50, 7)
    assert form_of(client, clone)["name"] == "three v3"


def test_a_clone_takes_a_limit_for_each_stage_and_offers_it_again(world: World) -> None:
    run, client = world.launch(), world.client("operator")
    each = list(range(3, 3 + run.job.document["cell"]["stages"]))
    limits = ", ".join(map(str, each))
    client.post(f"/runs/{run.pk}/clone/", {**form_of(client, run), "memory_limit": limits})
    clone = Run.objects.get(job__name="three v2")
    assert clone.job.document["strategy"]["memory_limit"] == each
    assert form_of(client, clone)["memory_limit"] == limits


@pytest.mark.parametrize(
    ("changes", "field"),
    [
        ({"steps": 0}, "steps"),
        ({"lr": "nan"}, "lr"),
        ({"memory_limit": "2, 2, 2, 2, 2, 2, 2"}, "memory_limit"),
        ({"memory_limit": "2, x"}, "memory_limit"),
        ({"name": ""}, "name"),
        ({"memory_limit": 1, "policy": "gpipe"}, None),
        ({"policy": "nonsense"}, "policy"),
    ],
)
def test_a_clone_that_cannot_run_is_refused_in_place(
    world: World, changes: dict[str, Any], field: str | None
) -> None:
    run, client = world.launch(), world.client("operator")
    response = client.post(f"/runs/{run.pk}/clone/", {**form_of(client, run), **changes})
    assert response.status_code == 422
    assert field is None or field in response.context["form"].errors
    assert Run.objects.count() == 1


def near_the_limit(world: World) -> Run:
    """A run whose GPUs hold all four microbatches at once: 9 GiB, a hundred times as many 130 GiB."""
    large = {"strategy.policy": "gpipe", "cell.micro_batch": 80_000, "cell.activation_bytes": None}
    document = changed(world.launch().job.document, large)
    return services.clone_run(world.users["operator"], Run.objects.get(), name="large", document=document)


def test_a_clone_that_needs_more_memory_than_there_is_says_so_at_the_field(world: World) -> None:
    run, client = near_the_limit(world), world.client("operator")
    values = {**form_of(client, run), "microbatches": 400}
    for extra in ({}, {"check": "1"}):
        response = client.post(f"/runs/{run.pk}/clone/", {**values, **extra})
        assert response.status_code == 422
        (error,) = response.context["form"].errors["microbatches"]
        assert "of 80 GiB (a100-80g)" in error
        assert "of 400 microbatches" in error
        assert 'data-state="failed">Memory' in response.content.decode()
    assert Run.objects.count() == 2


def test_a_clone_is_checked_before_it_is_launched(world: World) -> None:
    run, client = near_the_limit(world), world.client("operator")
    page = client.get(f"/runs/{run.pk}/clone/")
    planned = run.job.plan_copy["request"]
    assert page.context["form"].dry == dry_run_document(run.job.document, world.team, planned=planned)
    assert "of 4 microbatches" in page.content.decode()
    values = {**form_of(client, run), "micro_batch": 10, "check": "1"}
    checked = client.post(f"/runs/{run.pk}/clone/", values)
    assert checked.status_code == 200
    assert 'data-state="ready">Memory' in checked.content.decode()
    assert 'data-state="waiting">GPUs in east' in checked.content.decode(), "keeps no run from the queue"
    assert form_value(checked, "idempotency_key") == values["idempotency_key"]
    assert Run.objects.count() == 2
    del values["check"]
    assert client.post(f"/runs/{run.pk}/clone/", values).status_code == 302


def test_a_clone_whose_pool_is_gone_is_refused_on_top(world: World) -> None:
    run, client = world.launch(), world.client("operator")
    values = form_of(client, run)
    Node.objects.all().delete()
    world.dcs[1].pools.all().delete()
    response = client.post(f"/runs/{run.pk}/clone/", values)
    assert "GPUs in mid: " in " ".join(response.context["form"].non_field_errors())
    assert Run.objects.count() == 1


def form_value(response: Any, name: str) -> Any:
    return response.context["form"][name].value()


def test_documents_are_what_the_commands_take(world: World) -> None:
    from engine.plan.request import PlanRequest

    run, client = world.launch(), world.client("viewer")
    job = client.get(f"/runs/{run.pk}/document.json")
    assert f'filename="run-{run.pk}.json"' in job["Content-Disposition"]
    assert parse(TrainJob, json.loads(job.content)).optimizer.steps == 50
    plan = client.get(f"/plans/{world.plan.pk}/document.json")
    assert parse(PlanRequest, json.loads(plan.content)).job.partitions == 6


def test_a_row_of_before_documents_had_sections_is_read_in_sections(world: World) -> None:
    run, client = world.launch(), world.client("operator")
    sections = run.job.document
    name_of = {path: name for name, path in PATHS.items()}
    flat: dict[str, Any] = {}
    for section, part in sections.items():
        if section in ("datacenters", "links", "model"):
            flat[section] = part
        else:
            flat |= {name_of[f"{section}.{name}"]: value for name, value in part.items()}
    assert flat["steps"] == 50
    Job.objects.filter(pk=run.job_id).update(document=flat)
    assert Run.objects.get(pk=run.pk).document == sections
    assert client.get(f"/runs/{run.pk}/document.json").json() == sections
    assert client.get(f"/runs/{run.pk}/").status_code == 200
    assert Job.objects.values_list("document__device", flat=True).get() == flat["device"], "as it was written"


def test_the_document_of_a_resumed_attempt_goes_on_from_the_checkpoint(world: World) -> None:
    run = world.launch()
    Run.objects.filter(pk=run.pk).update(saved_step=4, saved_where="/c/step-000000004-ab")
    services.fail_run(run, "Broken.")
    run.refresh_from_db()
    again = services.retry_run(world.users["operator"], run, resume=True)
    client = world.client("viewer")
    for attempt, begins in ((run, None), (again, "/c/step-*-ab")):
        copied = client.get(f"/runs/{attempt.pk}/document.json").json()
        shown = json.loads(client.get(f"/runs/{attempt.pk}/").context["document"])
        assert value_at(copied, "persistence.resume") == value_at(shown, "persistence.resume") == begins
        parse(TrainJob, copied)


def queries(ask: Callable[[], Any]) -> int:
    with CaptureQueriesContext(connection) as captured:
        assert ask().status_code == 200
    return len(captured)


def test_the_list_of_runs_costs_the_same_with_many(world: World) -> None:
    client = world.client("viewer")
    job = world.launch().job
    few = queries(lambda: client.get("/runs/"))
    run = Run.objects.get()
    copies = [Run(**{**values_of(run), "generation": number}) for number in range(2, 302)]
    Run.objects.bulk_create(copies)
    assert job.runs.count() == 301
    assert queries(lambda: client.get("/runs/")) == few
    assert queries(lambda: client.get("/runs/?status=queued&q=three&dc=east")) <= few + 3


def values_of(run: Run) -> dict[str, Any]:
    left_out = {"id", "generation"}
    return {
        f.attname: getattr(run, f.attname) for f in Run._meta.concrete_fields if f.attname not in left_out
    }


def names(client: Any, query: str) -> set[str]:
    return {str(row.record) for row in client.get(f"/runs/?{query}").context["table"].rows}


def test_the_list_of_runs_is_filtered_by_state_plan_dc_who_and_text(world: World) -> None:
    client = world.client("viewer")
    first = world.launch()
    second = services.clone_run(
        world.users["admin"], first, name="warm", document=changed(first.job.document, {"optimizer.steps": 2})
    )
    services.fail_run(first, "Broken badly.")
    one, two = {"three #1"}, {"warm #1"}
    assert names(client, "") == one | two
    assert names(client, "status=failed") == one
    assert names(client, "status=queued&status=failed") == one | two
    assert names(client, "q=warm") == two
    assert names(client, "q=badly") == one
    assert names(client, f"who={world.users['admin'].pk}") == two
    assert names(client, f"plan={world.plan.pk}") == one | two
    assert names(client, "dc=east") == one | two
    assert names(client, "dc=nowhere") == set()
    assert second.job.plan == first.job.plan


def test_filters_offer_nothing_of_other_teams(world: World) -> None:
    world.launch()
    text = world.client("stranger").get("/runs/").content.decode()
    for word in ("three", "operator", "east"):
        assert f">{word}<" not in text


def test_the_run_page_knows_all_attempts(world: World) -> None:
    run = services.fail_run(world.launch(), "Broken.")
    again = services.retry_run(world.users["operator"], run)
    context = world.client("viewer").get(f"/runs/{again.pk}/").context
    assert [attempt.generation for attempt in context["generations"]] == [1, 2]
    assert context["command"] == f"meridian train run-{again.pk}.json"
    assert context["launch_key"] != world.client("viewer").get(f"/runs/{again.pk}/").context["launch_key"]
