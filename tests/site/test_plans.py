"""The plan page: what-ifs that the address holds, refinement, saving, names, copies, comparison, files."""

import csv
import io
import json
from typing import Any

import pytest
from django.test import Client
from django.urls import reverse
from hypothesis import given
from hypothesis import strategies as st

from engine.commands.plan_what_if import what_ifs
from engine.errors import InputError
from engine.inputs import parse
from engine.job.shape import shape_of
from engine.plan.answer import WHAT_IF_S
from engine.plan.answer import plan as solve
from engine.plan.request import PlanRequest
from engine.plan.what_if import transfer_to_forward
from tests.site.world import VALUES, World
from webapp.accounts.models import AuditEntry
from webapp.computations import services as computations
from webapp.computations.computing import work_at
from webapp.computations.models import Computation
from webapp.computations.wires import Wires
from webapp.inventory.models import Node
from webapp.jobs.allocate import allocate
from webapp.jobs.services import launch_plan
from webapp.planning import compose, services, work
from webapp.planning import work as plan_work
from webapp.planning.models import Plan
from webapp.planning.what_if import changed, differences, sliders, what_if_of

DOCUMENT: dict[str, Any] = {
    "method": "search",
    "datacenters": [
        {"name": "us", "gpus": 12, "gpu_type": "a100-80g", "price_per_gpu_hour": 2.0},
        {"name": "eu", "gpus": 8, "gpu_type": "a100-80g", "price_per_gpu_hour": 3.0},
    ],
    "links": [
        {"between": ["us", "eu"], "latency_ms": 20.0, "bandwidth_gbps": 5.0, "egress_price_per_gb": 0.02}
    ],
    "job": {
        "partitions": 6,
        "microbatches": 4,
        "forward_ms": 10.0,
        "backward_ms": 20.0,
        "recompute_ms": 10.0,
        "comm_to_compute": 2.0,
        "activation_bytes": 5e6,
    },
    "allreduce": False,
}


def made(world: World, name: str = "searched", **more: Any) -> Plan:
    return services.create_plan(
        world.users["operator"], team=world.team, name=name, request={**DOCUMENT, **more}, training=None
    )


def page(client: Client, plan: Plan, **query: Any) -> Any:
    return client.get(reverse("planning:plan-detail", args=[plan.pk]), query, headers={"HX-Request": "true"})


@pytest.fixture
def operator(world: World) -> Client:
    return world.client("operator")


@given(
    gpus=st.tuples(st.integers(0, 40), st.integers(0, 40)),
    latency=st.integers(0, 100),
    bandwidth=st.integers(1, 100),
    price=st.floats(0, 100),
)
def test_what_a_slider_says_is_what_the_document_holds(
    gpus: tuple[int, int], latency: int, bandwidth: int, price: float
) -> None:
    query = {
        "gpus-0": str(gpus[0]),
        "gpus-1": str(gpus[1]),
        "latency-0": str(latency),
        "bandwidth-0": str(bandwidth),
        "option": "3",
        "budget": "",
        "price-1": str(price),
    }
    document, used = changed(DOCUMENT, query)
    assert [dc["gpus"] for dc in document["datacenters"]] == list(gpus)
    assert document["datacenters"][1]["price_per_gpu_hour"] == price
    if gpus[0] and gpus[1]:
        link = document["links"][0]
        assert (link["latency_ms"], link["bandwidth_gbps"]) == (latency, bandwidth)
    else:  # a data centre is lost, and its link
        assert document["links"] == []
    # The changed document, asked with what was used alone, is the same; nothing used, nothing changed.
    assert changed(DOCUMENT, used) == (document, used)
    assert (document == DOCUMENT) == (not used)
    shown = sliders(DOCUMENT, document)
    if not document["links"]:
        assert f"without {DOCUMENT['datacenters'][gpus.index(0)]['name']}" in differences(DOCUMENT, document)
        return
    assert len(differences(DOCUMENT, document)) == len(used)
    for slider in [*shown["gpus"], *shown["links"][0][1], *shown["job"]]:
        assert slider.least <= slider.value <= slider.most
        assert slider.is_changed == (slider.name in used)


def test_c_follows_the_links_where_it_came_from_them() -> None:
    derived = json.loads(json.dumps(DOCUMENT))
    derived["job"]["comm_to_compute"] = transfer_to_forward(derived["job"], derived["links"])
    document, _ = changed(derived, {"bandwidth-0": "2.5"})
    assert document["job"]["comm_to_compute"] == pytest.approx(2 * derived["job"]["comm_to_compute"])
    assert sliders(derived, document)["job"] == []
    for name, text, field in (("bandwidth-0", "0", "bandwidth_gbps"), ("latency-0", "-1", "latency_ms")):
        with pytest.raises(InputError) as refused:
            changed(derived, {name: text})
        assert refused.value.field == f"links[0].{field}"
    given_c, used = changed(DOCUMENT, {"bandwidth-0": "2.5", "c": "3"})
    assert (given_c["job"]["comm_to_compute"], set(used)) == (3.0, {"bandwidth-0", "c"})


@pytest.mark.django_db
@pytest.mark.parametrize(
    ("query", "says"),
    [
        ({"gpus-0": "-1"}, "gpus-0"),
        ({"gpus-0": "1e9"}, "gpus-0"),
        ({"gpus-0": "999999999"}, "gpus"),
        ({"price-0": "-1"}, "price_per_gpu_hour"),
        ({"price-0": ""}, "price-0"),
        ({"latency-0": "nan"}, "latency_ms"),
        ({"bandwidth-0": "0"}, "bandwidth_gbps"),
        ({"bandwidth-0": "fast"}, "bandwidth-0"),
        ({"budget": "-3"}, "budget_per_iteration"),
        ({"c": "inf"}, "comm_to_compute"),
    ],
)
def test_what_cannot_be_is_said_and_the_plan_stays(
    world: World, operator: Client, query: dict[str, str], says: str
) -> None:
    plan = made(world)
    answer = page(operator, plan, **query)
    assert says in answer.context["what"].error
    assert answer.context["what"].at == next(iter(query))  # said beside the field that asked for it
    assert answer.context["result"] == plan.result


@pytest.mark.django_db
def test_a_what_if_is_the_answer_of_the_command(world: World, operator: Client) -> None:
    plan = made(world)
    answer = page(operator, plan, **{"gpus-1": "20", "budget": "0.05"})
    file = reverse("planning:plan-document", args=[plan.pk])
    document = operator.get(file, {"gpus-1": "20", "budget": "0.05"})
    expected = solve(parse(PlanRequest, document.json()), budget_s=WHAT_IF_S).as_dict()
    timeless = {name: value for name, value in expected.items() if name != "search"}
    assert {name: answer.context["result"][name] for name in timeless} == json.loads(json.dumps(timeless))
    assert answer["HX-Replace-Url"].endswith(f"/plans/{plan.pk}/?gpus-1=20&budget=0.05")
    assert answer.context["plan_json"]["before"]
    plan.refresh_from_db()
    assert plan.request["datacenters"][1]["gpus"] == 8


@pytest.mark.django_db
def test_what_ifs_of_one_click_agree_with_the_command(world: World, operator: Client) -> None:
    plan = made(world, job={**DOCUMENT["job"], "partitions": 9})
    as_planned, *rows = what_ifs(plan.request)
    whole = operator.get(reverse("planning:plan-detail", args=[plan.pk]))
    clicks = [click for _, several in whole.context["one_clicks"] for click in several]
    assert {click.about for click in clicks} == {row["change"] for row in rows}
    names = ("iteration_ms", "throughput", "cost_per_iteration", "cost_per_day", "gpus")
    for click in clicks:
        assert f"?{click.address}".replace("&", "&amp;") in whole.content.decode()
        row = next(row for row in rows if row["change"] == click.about)
        answer = page(operator, plan, **click.query)
        assert [line["before"] for line in answer.context["compared"]] == [as_planned[name] for name in names]
        assert [line["now"] for line in answer.context["compared"]] == [row[name] for name in names]
        assert (answer.context["none_feasible"] or None) == row["reason"]
    lost = page(operator, plan, **{"gpus-0": "0"}).content.decode()
    assert "Without us no plan holds the model: not even one DP-cell fits: 2 GPUs per stage" in lost
    here = operator.get(reverse("planning:plan-detail", args=[plan.pk]), {"gpus-0": "0"}).content.decode()
    assert '?gpus-0=0" aria-current="true"' in here


@pytest.mark.django_db
def test_a_what_if_is_compared_with_the_plan_at_the_same_effort(world: World, operator: Client) -> None:
    plan = made(world)
    fast = plan.best["iteration_ms"]
    refined = json.loads(json.dumps(plan.result))
    refined["options"][refined["best"]]["iteration_ms"] = fast - 1
    Plan.objects.filter(pk=plan.pk).update(result=refined)
    answer = page(operator, plan, **{"price-0": "4"})
    assert answer.context["compared"][0]["before"] == fast
    assert answer.context["compared"][0]["percent"] == 0
    assert b"Both with fast schedules" in answer.content


@pytest.mark.long
@pytest.mark.django_db
def test_auto_refines_a_plan_and_what_if_apart(
    world: World, operator: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(work, "SHAPE_S", 0.2)
    plan = made(world)
    before = plan.best
    assert before is not None
    assert any(option["refining"] for option in plan.result["options"])
    assert page(operator, plan).context["refining"]["state"] == "wanted"
    ask = reverse("planning:plan-refine", args=[plan.pk])
    assert operator.post(ask).context["refining"]["state"] == "open"
    assert operator.post(ask).context["refining"]["state"] == "open"
    assert Computation.objects.filter(kind="refine").count() == 1
    work_at(Computation.objects.get(kind="refine").pk)
    plan.refresh_from_db()
    after = plan.best
    assert after is not None
    assert after["iteration_ms"] <= before["iteration_ms"]
    assert not any(option["refining"] for option in plan.result["options"])
    assert AuditEntry.objects.filter(verb="refine", object_id=str(plan.pk)).exists()
    answer = page(operator, plan)
    assert answer.context["refining"]["state"] == "refined"
    drawn = answer.context["plan_json"]["timeline"]["predicted"]
    assert drawn["iteration_ms"] == pytest.approx(after["pp_time_ms"])
    # A what-if has a refinement of its own, which the plan does not keep; another takes the first back.
    operator.post(ask, {"gpus-1": "6"})
    operator.post(ask, {"gpus-1": "7"})
    eu = "request__document__datacenters__1__gpus"
    states = dict(Computation.objects.filter(kind="refine").values_list(eu, "state"))
    assert states == {8: "done", 7: "queued"}
    result = plan.result
    work_at(Computation.objects.get(state="queued").pk)
    plan.refresh_from_db()
    assert plan.result == result
    refined = page(operator, plan, **{"gpus-1": "7"})
    assert refined.context["refining"]["state"] == "refined"
    assert refined.context["what"].is_changed
    state = operator.get(reverse("planning:plan-refining", args=[plan.pk]), {"gpus-1": "7"})
    assert b'hx-trigger="load"' in state.content


@pytest.mark.django_db
def test_a_refinement_is_stopped_and_asked_for_again(world: World, operator: Client) -> None:
    """A stopped one is not asked for again by the page itself, as one that nobody has asked for is."""
    plan = made(world)
    ask, stop = (reverse(f"planning:plan-{name}", args=[plan.pk]) for name in ("refine", "refine-stop"))
    shown = operator.post(ask)
    assert b"Stop" in shown.content
    (computation,) = Computation.objects.filter(kind="refine")
    claimed = computations.claim(computation.pk)
    assert claimed is not None
    running = operator.post(stop)  # the worker learns of it with its next beat
    assert running.context["refining"]["state"] == "open"
    assert b"Stopping" in running.content
    assert not computations.note_progress(claimed, {}, None)
    computations.finish(claimed, {})
    stopped = page(operator, plan)
    assert stopped.context["refining"]["state"] == "stopped"
    assert b"load delay" not in operator.get(reverse("planning:plan-refining", args=[plan.pk])).content
    assert operator.post(stop).context["refining"]["state"] == "stopped"
    assert operator.post(ask).context["refining"]["state"] == "open"
    assert operator.post(stop).context["refining"]["state"] == "stopped", "nobody was at it yet"
    assert Computation.objects.filter(kind="refine").count() == 2


@pytest.mark.django_db
def test_a_refinement_that_is_stopped_at_once_leaves_the_answer_as_it_is(
    world: World, operator: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A search that is cut off may find less than the plan has."""
    plan = made(world)
    operator.post(reverse("planning:plan-refine", args=[plan.pk]))
    monkeypatch.setattr(Wires, "cancelled", lambda self: True)
    work_at(Computation.objects.get(kind="refine").pk)
    before = plan.result
    plan.refresh_from_db()
    assert plan.result == before


@pytest.mark.django_db
def test_what_was_found_before_a_stop_is_shown(world: World, operator: Client) -> None:
    """Of a what-if, which keeps nothing but its refinement."""
    plan = made(world)
    change = {"gpus-1": "6"}
    operator.post(reverse("planning:plan-refine", args=[plan.pk]), change)
    claimed = computations.claim(Computation.objects.get(kind="refine").pk)
    assert claimed is not None
    result = {**page(operator, plan, **change).context["result"], "search": None}
    operator.post(reverse("planning:plan-refine-stop", args=[plan.pk]), change)
    computations.finish(claimed, {"result": result})
    after = page(operator, plan, **change)
    assert after.context["refining"]["state"] == "stopped"
    assert after.context["result"]["search"] is None


@pytest.mark.django_db
def test_a_what_if_that_takes_long_is_computed_by_the_worker(
    world: World, operator: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(plan_work, "MOST_WHAT_IF_S", 0.0)
    plan = made(world, policy="atlas")
    change = {"gpus-1": "7"}
    waits = page(operator, plan, **change)
    assert waits.context["refining"] == {"waits": True, "state": "wanted"}
    assert b"The search worker is computing it" in waits.content
    assert waits.context["options"] == []
    table = reverse("planning:plan-table", args=[plan.pk, "options"])
    assert operator.get(table, change).status_code == 200
    asks = operator.post(reverse("planning:plan-refine", args=[plan.pk]), change)
    assert asks.context["refining"]["state"] == "open"
    work_at(Computation.objects.get(kind="refine").pk)
    there = page(operator, plan, **change)
    assert there.context["refining"]["state"] == "refined"
    assert there.context["compared"][0]["now"] is not None
    assert there.context["what"].is_changed
    operator.force_login(world.users["viewer"])
    assert page(operator, plan, **{"gpus-1": "6"}).context["refining"]["state"] == "fast"


@pytest.mark.parametrize(
    ("more", "at_once"),
    [
        ({}, True),
        ({"policy": "optimal"}, False),
        ({"policy": "crosspipe-ud"}, True),
        ({"policy": "crosspipe-ud", "microbatches": 4000}, False),
        ({"sites": 20}, True),
        ({"sites": 21}, False),
        ({"method": "algorithm1", "policy": "atlas"}, True),
        ({"method": "algorithm1", "policy": "atlas", "microbatches": 20_000}, False),
    ],
)
def test_which_what_ifs_are_answered_at_once(more: dict[str, Any], at_once: bool) -> None:
    more = dict(more)
    sites = [
        {"name": f"dc{i}", "gpus": 40, "gpu_type": "a100-80g", "price_per_gpu_hour": 1.0}
        for i in range(more.pop("sites", 2))
    ]
    job = {**DOCUMENT["job"], "microbatches": more.pop("microbatches", 4)}
    document = {**DOCUMENT, "datacenters": sites, "links": [], "job": job, **more}
    assert plan_work.what_if_at_once(parse(PlanRequest, document)) == at_once


@pytest.mark.django_db
def test_a_viewer_sees_and_changes_nothing(world: World, client: Client) -> None:
    plan = made(world)
    client.force_login(world.users["viewer"])
    assert page(client, plan).context["refining"]["state"] == "fast"
    answer = page(client, plan, **{"gpus-0": "20"})
    assert b"plan-save" not in answer.content
    assert b"Save as" not in answer.content
    for name in ("refine", "save", "rename", "clone"):
        address = reverse(f"planning:plan-{name}", args=[plan.pk])
        assert client.post(address, {"name": "x", "gpus-0": "20"}).status_code == 403


@pytest.mark.django_db
def test_a_what_if_is_saved_under_a_name(world: World, operator: Client) -> None:
    plan = made(world)
    save = reverse("planning:plan-save", args=[plan.pk])
    answer = operator.post(save, {"gpus-1": "20", "name": "wider"})
    saved = Plan.objects.get(name="wider")
    assert answer.url == reverse("planning:plan-detail", args=[saved.pk])
    assert saved.request["datacenters"][1]["gpus"] == 20
    for wrong in ({"gpus-1": "20", "name": "wider"}, {"gpus-1": "20", "name": ""}, {"name": "same"}):
        answer = operator.post(save, wrong, follow=True)
        assert "Not saved" in answer.content.decode()
    assert Plan.objects.count() == 3


@pytest.mark.django_db
def test_names_and_copies(world: World, operator: Client) -> None:
    plan = made(world)
    operator.post(reverse("planning:plan-rename", args=[plan.pk]), {"name": " east "})
    plan.refresh_from_db()
    assert plan.name == "east"
    taken = operator.post(reverse("planning:plan-rename", args=[plan.pk]), {"name": "three"}, follow=True)
    assert "Not renamed" in taken.content.decode()
    operator.post(reverse("planning:plan-clone", args=[plan.pk]))
    operator.post(reverse("planning:plan-clone", args=[plan.pk]))
    copies = Plan.objects.filter(name__startswith="east v").order_by("name")
    assert [copy.name for copy in copies] == ["east v2", "east v3"]
    assert all(copy.result == plan.result for copy in copies)


@pytest.mark.django_db
def test_plans_side_by_side(world: World, operator: Client) -> None:
    plans = [made(world), made(world, "dear", job={**DOCUMENT["job"], "microbatches": 8})]
    answer = operator.get(reverse("planning:plan-compare"), {"plan": [plan.pk for plan in plans]})
    lines = {label + unit: cells for label, unit, _, cells in answer.context["lines"]}
    assert lines["Iterationms"] == [f"{plan.best['iteration_ms']:,.1f}" for plan in plans if plan.best]
    assert dict(answer.context["differences"])["job: microbatches"] == ["4", "8"]
    text = operator.get(reverse("planning:plan-compare"), {"plan": [plan.pk for plan in plans], "as": "csv"})
    rows = {row["Figure"] + row["Unit"]: row for row in csv.DictReader(io.StringIO(text.content.decode()))}
    assert float(rows["Iterationms"]["dear"]) == plans[1].best["iteration_ms"]  # type: ignore[index]
    assert operator.get(reverse("planning:plan-compare")).status_code == 200
    other = world.client("stranger").get(reverse("planning:plan-compare"), {"plan": plans[0].pk})
    assert other.context["plans"] == []


@pytest.mark.django_db
def test_every_chart_has_its_file(world: World, operator: Client) -> None:
    plan = made(world)

    def rows(table: str, **query: Any) -> list[dict[str, str]]:
        answer = operator.get(reverse("planning:plan-table", args=[plan.pk, table]), query)
        assert answer.status_code == 200
        return list(csv.DictReader(io.StringIO(answer.content.decode())))

    options = plan.result["options"]
    assert [int(row["D"]) for row in rows("options")] == [option["dp_cells"] for option in options]
    assert len(rows("pareto")) == sum(option["feasible"] for option in options)
    best = plan.best
    assert best is not None
    ops = [row for row in rows("timeline") if row["track"] == "gpu"]
    ends = [float(row["end"]) for row in ops]
    assert max(ends) == pytest.approx(best["pp_time_ms"])
    pipelines = best["pipelines"] // best["dp_cells"]
    stages = rows("stages")
    assert len(stages) == 6
    for number, stage in enumerate(stages):
        own = [row for row in ops if row["stage"] == str(number)]
        busy_ms = sum(float(row["end"]) - float(row["start"]) for row in own) / pipelines
        assert float(stage["Busy ms"]) == pytest.approx(busy_ms)
        assert float(stage["Bubbles %"]) == pytest.approx(100 * (1 - busy_ms / max(ends)))
        assert float(stage["First op ms"]) == pytest.approx(min(float(row["start"]) for row in own))
    assert len(rows("excluded")) == len(plan.result["excluded"])
    wider = rows("options", **{"gpus-0": "40"})  # a file of what the address asks for, not of the plan
    assert max(float(row["Throughput pipelines/s"]) for row in wider) > max(o["throughput"] for o in options)
    assert operator.get(reverse("planning:plan-table", args=[plan.pk, "none"])).status_code == 404


@pytest.mark.django_db
def test_a_plan_without_an_option_says_why(world: World, operator: Client) -> None:
    few = [{**dc, "gpus": 1} for dc in DOCUMENT["datacenters"]]
    plan = made(world, "few", datacenters=few)
    answer = operator.get(reverse("planning:plan-detail", args=[plan.pk]))
    assert plan.result["feasible"] is False
    assert plan.result["reason"][1:] in answer.content.decode()
    more = page(operator, plan, **{"gpus-0": "12"})
    iteration = more.context["compared"][0]
    assert (iteration["before"], iteration["percent"]) == (None, None)
    assert iteration["now"] > 0


@pytest.mark.django_db
def test_the_form_asks_for_the_search_and_starts_refining(world: World, operator: Client) -> None:
    data = {
        "team": world.team.pk,
        "name": "by search",
        "datacenters": [dc.pk for dc in world.dcs],
        "source": "times",
        "forward_ms": 20,
        "backward_ms": 40,
        "recompute_ms": 20,
        "activation_bytes": 5_000_000,
        "partitions": 6,
        "microbatches": 4,
        "method": "search",
        "policy": "auto",
        "order": "gpus",
        "objective": "throughput",
        "bill": "used",
    }
    refused = operator.post(reverse("planning:plan-create"), {**data, "method": "algorithm1"})
    assert "policy" in refused.context["form"].errors
    operator.post(reverse("planning:plan-create"), data)
    plan = Plan.objects.get(name="by search")
    assert plan.request["method"] == "search"
    wanted = any(option["refining"] for option in plan.result["options"])
    assert Computation.objects.filter(kind="refine", of_plan__plan=plan).exists() == wanted
    again = operator.get(reverse("planning:plan-create"), {"from": plan.pk})
    assert again.context["form"].initial["method"] == "search"
    assert what_if_of(plan, {}).document == plan.request


@pytest.mark.django_db
def test_the_form_takes_several_layouts_of_a_model_and_finds_the_best(world: World, operator: Client) -> None:
    data = {
        "team": world.team.pk,
        "name": "layouts",
        "datacenters": [dc.pk for dc in world.dcs],
        "source": "model",
        "model": "gpt-a",
        "model_micro_batch": "1, 2",
        "tp": "1,2",
        "mfu": 0.4,
        "partitions": "2, 4",
        "microbatches": 4,
        "method": "search",
        "policy": "1f1b",
        "order": "gpus",
        "objective": "cost_per_token",
        "bill": "used",
        "weight_budget_gb": 1.5,
        "memory_margin": 7.5,
    }
    answer = operator.post(reverse("planning:plan-create"), data)
    assert answer.status_code == 302, answer.context["form"].errors
    work_at(Computation.objects.get(kind="plan").pk)  # so many layouts are nothing to wait for
    plan = Plan.objects.get(name="layouts")
    job = plan.request["job"]
    assert (job["partitions"], job["tp"], job["micro_batch"]) == ([2, 4], [1, 2], [1, 2])
    assert job["prefill"] == {"weight_budget_gb": 1.5, "kv_budget_gb": 1.0}
    shown = operator.get(answer["Location"], follow=True)
    assert "1.5 + 1 GB per GPU" in shown.content.decode()
    assert job["memory_margin"] == 0.075
    assert "<dt>Memory margin</dt><dd>7.5 %</dd>" in shown.content.decode()
    for option in plan.result["options"]:
        stages = sum(part["stages"] for part in option["partitions"])
        assert f"{stages} · {option['tp']} · {option['micro_batch']}</td>" in shown.content.decode()
    again = operator.get(reverse("planning:plan-create"), {"from": plan.pk}).context["form"]
    assert [again[name].value() for name in ("partitions", "tp", "model_micro_batch")] == [
        "2, 4",
        "1, 2",
        "1, 2",
    ]
    memory = ("weight_budget_gb", "kv_budget_gb", "memory_margin")
    assert [again[name].value() for name in memory] == [1.5, 1.0, 7.5]
    past = operator.post(reverse("planning:plan-create"), {**data, "name": "past", "memory_margin": 101})
    assert "memory_margin" in past.context["form"].errors
    caches = operator.post(
        reverse("planning:plan-create"), {**data, "weight_budget_gb": "", "kv_budget_gb": 1}
    )
    assert "Enter the memory for weights" in str(caches.context["form"].errors["weight_budget_gb"])
    refused = {**data, "source": "times", "forward_ms": 20, "backward_ms": 40, "name": "other"}
    assert "One number" in str(
        operator.post(reverse("planning:plan-create"), refused).context["form"].errors["partitions"]
    )
    for text, message in (("0", "greater than"), ("2, x", "whole numbers"), ("9999", "less than")):
        errors = operator.post(reverse("planning:plan-create"), {**data, "partitions": text}).context["form"]
        assert message in str(errors.errors["partitions"])


def test_an_option_of_several_cells_is_launched_as_it_was_planned(world: World) -> None:
    Node.objects.filter(pk__in=[node.pk for node in world.nodes]).update(gpus=12)
    values = {
        **VALUES,
        "datacenters": world.dcs,
        "activation_bytes": 5_000_000,
        "comm_to_compute": 2.0,
        "method": "algorithm1",
        "max_dp_cells": 2,
        "order": "gpus",
    }
    plan = services.create_plan(
        world.users["operator"],
        team=world.team,
        name="cells",
        request=compose.request_of(values),
        training=compose.training_of(values),
    )
    index, option = next((i, o) for i, o in enumerate(plan.result["options"]) if o["dp_cells"] == 2)
    assert option["feasible"]
    world.hear()
    run = launch_plan(world.users["operator"], plan, index)
    document = run.job.document
    assert (document["cell"]["pipelines"], document["cell"]["cells"]) == (4, 2)
    assert allocate(run)
    assert run.ranks.count() == 4 * 6
    assert shape_of(document).pairs == 2
    page = world.client("operator").get(f"/plans/{plan.pk}/?option={index}").content.decode()
    assert "Launch D = 2" in page
    assert "one DP cell" not in page
