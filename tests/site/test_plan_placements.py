"""Plans whose nodes or links are not alike say so and offer a placement of the option's GPUs."""

from collections import Counter
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.inputs import parse
from engine.job.changed import fields_of
from engine.plan.placement.request import PlacementRequest
from tests.site.world import World
from webapp.computations.computing import work_at
from webapp.computations.models import Computation
from webapp.inventory.models import WanLink
from webapp.jobs.models import Job, Run
from webapp.jobs.services import launch_plan
from webapp.placement.forms import document_of
from webapp.placement.options import what_differs
from webapp.placement.placing import SEVERAL_TYPES, latest_of, placing_of

SITES = [{"name": name, "gpus": 8, "gpu_type": "a100-80g", "intra_gbps": 100.0} for name in "abc"]
OPTION = {"partitions": [{"dc": name, "stages": 1} for name in "abc"], "pipelines": 2}


def links(*figures: tuple[float, float]) -> list[dict[str, Any]]:
    pairs = [["a", "b"], ["b", "c"], ["a", "c"]]
    return [
        {"between": pair, "latency_ms": latency, "bandwidth_gbps": gbps}
        for pair, (latency, gbps) in zip(pairs, figures, strict=False)
    ]


@given(latency=st.floats(0, 500), gbps=st.floats(0.01, 400))
def test_what_is_alike_is_not_told(latency: float, gbps: float) -> None:
    alike = {"datacenters": SITES, "links": links(*[(latency, gbps)] * 3)}
    assert what_differs(alike, OPTION) == []
    assert what_differs({**alike, "links": alike["links"][:2]}, OPTION) != []  # one pair has no link
    slower = {**alike, "links": links(*[(latency, gbps)] * 2, (latency + 1, gbps))}
    assert [text.partition(":")[0] for text in what_differs(slower, OPTION)] == ["Links differ"]
    assert what_differs(slower, {**OPTION, "pipelines": 1}) == []
    assert what_differs(slower, {**OPTION, "partitions": [{"dc": "a", "stages": 3}]}) == []


@pytest.mark.parametrize(("field", "value"), [("gpu_type", "v100-16g"), ("intra_gbps", 10.0)])
def test_nodes_and_networks_that_differ_are_told(field: str, value: Any) -> None:
    sites = [*SITES[:2], {**SITES[2], field: value}]
    differences = what_differs({"datacenters": sites, "links": links(*[(10, 1)] * 3)}, OPTION)
    assert len(differences) == 1
    assert "c " in differences[0]


def test_from_a_plan_to_a_run_on_its_placement(world: World) -> None:
    world.hear()
    WanLink.objects.create(a=world.dcs[0], b=world.dcs[2], latency_ms=40, bandwidth_gbps=1)
    plan, client = world.plan, world.client("operator")
    best = plan.result["best"]
    option = plan.result["options"][best]
    page = client.get(f"/plans/{plan.pk}/").content.decode()
    assert "Links differ: east – mid 10 ms" in page
    offered = f"/placement/new/?plan={plan.pk}&option={best}"
    assert offered.replace("&", "&amp;") in page
    form = client.get(offered).context["form"]
    values = {name: form[name].value() for name in form.fields if form[name].value() is not None}
    values |= {"evaluations": 200, "baselines": ""}
    response = client.post("/placement/new/", values)
    assert response.status_code == 302, response.context["form"].errors
    placement = Computation.objects.get(kind="placement")
    request = parse(PlacementRequest, document_of(placement.request))
    assert request.stages == 6
    assert request.data_parallel == option["pipelines"]
    places = placement.request["network"]["place_of"]
    assert sorted(Counter(places).values()) == sorted(option["gpus_used"].values())
    work_at(placement.pk)
    placement.refresh_from_db()
    run = placement.answer["run"]
    assert run["plan_ms"] == option["iteration_ms"]
    shown = client.get(f"/placement/{placement.pk}/").content.decode()
    assert f"{run['placed_ms']:,.1f}" in shown
    table = client.get(f"/placement/{placement.pk}/iteration.csv").content.decode()
    assert float(table.splitlines()[-1].split(",")[1]) == run["placed_ms"]
    url = f"/placement/{placement.pk}/launch/"
    launch = client.get(url).context["form"]
    assert launch["policy"].value() == option["policy"]
    assert launch["forward_ms"].value() == 20
    filled = {name: launch[name].value() for name in launch.fields if launch[name].value() is not None}
    assert client.post(url, filled).status_code == 302
    job = Job.objects.get()
    assert job.plan == plan
    assert len(job.gpu_of_rank) == 6 * option["pipelines"]
    assert placement.name in client.get(f"/plans/{plan.pk}/").content.decode()
    # What was said beforehand is what the launch predicts, of the placement as of the option itself.
    assert Run.objects.get().predicted["iteration_ms"] == pytest.approx(run["placed_ms"], abs=1e-3)
    direct = launch_plan(world.users["operator"], plan, best)
    assert direct.predicted["iteration_ms"] == pytest.approx(run["planned_ms"], abs=1e-3)


def test_options_that_are_none_and_plans_of_others_are_not_offered(world: World) -> None:
    plan = world.plan.pk
    assert world.client("operator").get(f"/placement/new/?plan={plan}&option=99").status_code == 404
    assert world.client("stranger").get(f"/placement/new/?plan={plan}&option=0").status_code == 404
    assert world.client("operator").get("/placement/new/?plan=x&option=0").status_code == 404


def uneven_and_placed(world: World) -> tuple[Any, Any, Computation]:
    """The client of an operator, the world's plan, and what its page had placed by itself."""
    world.hear()
    WanLink.objects.create(a=world.dcs[0], b=world.dcs[2], latency_ms=40, bandwidth_gbps=1)
    plan, client = world.plan, world.client("operator")
    page = client.get(f"/plans/{plan.pk}/").content.decode()
    assert 'data-placing="wanted"' in page
    sent = {"option": plan.result["best"], "idempotency_key": "one"}
    for _ in range(2):  # a page that is there twice asks once
        assert 'data-placing="open"' in client.post(f"/plans/{plan.pk}/place/", sent).content.decode()
    placement = Computation.objects.get(kind="placement")
    work_at(placement.pk)
    return client, plan, placement


def predicted(placement: Computation, placed_ms: float, planned_ms: float) -> None:
    """As if the search worker had predicted these."""
    placement.refresh_from_db()
    placement.answer["run"] |= {"placed_ms": placed_ms, "planned_ms": planned_ms}
    placement.save()


def test_an_uneven_plan_is_placed_by_itself_and_launched_on_the_faster_placement(world: World) -> None:
    client, plan, placement = uneven_and_placed(world)
    best = plan.result["best"]
    ended = client.get(f"/plans/{plan.pk}/placing/?option={best}").content.decode()
    assert 'hx-target="#answer"' in ended  # the page reads its answer anew
    placement.refresh_from_db()
    run = placement.answer["run"]
    option = plan.result["options"][best]
    assert run["plan_ms"] == option["iteration_ms"]
    predicted(placement, run["placed_ms"], run["placed_ms"] + 20)
    context = client.get(f"/plans/{plan.pk}/").context
    assert context["placing"].used == placement
    assert context["launch"]["label"] == "Launch D = 1, placed"
    assert [check["name"] for check in context["dry"]["checks"] if check["name"] == "Placement"]
    sent = {"option": best, "placement": placement.pk, "idempotency_key": "launch"}
    assert client.post(f"/plans/{plan.pk}/launch/", sent).status_code == 302
    job = Job.objects.get()
    assert job.plan == plan
    assert len(job.gpu_of_rank) == sum(option["gpus_used"].values())
    assert job.plan_copy["placement"]["id"] == str(placement.pk)
    assert Run.objects.get().predicted["iteration_ms"] == pytest.approx(run["placed_ms"], abs=1e-3)
    # Everything else of the job is what the plan says of it.
    own = launch_plan(world.users["operator"], plan, best).job.document
    placed_at = (
        "cell.stages",
        "cell.pipelines",
        "cell.dc_of_stage",
        "cell.devices",
        "cell.all_reduce",
        "links",
        "datacenters",
    )
    placed, planned = fields_of(job.document), fields_of(own)
    places = (placed.keys() | planned.keys()) - set(placed_at)
    assert {path: placed.get(path) for path in places} == {path: planned.get(path) for path in places}


def test_a_placement_that_is_no_faster_is_not_launched(world: World) -> None:
    client, plan, placement = uneven_and_placed(world)
    predicted(placement, 694.0, 700.0)  # less than 1 %
    page = client.get(f"/plans/{plan.pk}/")
    assert page.context["placing"].state == "kept"
    assert 'name="placement"' not in page.content.decode()
    client.post(f"/plans/{plan.pk}/launch/", {"option": plan.result["best"]})
    assert Job.objects.get().gpu_of_rank == []


def test_launch_with_other_values_keeps_the_placement(world: World) -> None:
    client, plan, placement = uneven_and_placed(world)
    predicted(placement, 600.0, 700.0)
    url = f"/plans/{plan.pk}/launch/{plan.result['best']}/"
    assert f"{url}?placement={placement.pk}" in client.get(f"/plans/{plan.pk}/").content.decode()
    form = client.get(f"{url}?placement={placement.pk}").context["form"]
    filled = {name: form[name].value() for name in form.fields if form[name].value() is not None}
    assert client.post(f"{url}?placement={placement.pk}", filled | {"steps": 7}).status_code == 302
    job = Job.objects.get()
    assert job.document["optimizer"]["steps"] == 7
    assert len(job.gpu_of_rank) == 12
    assert client.get(f"{url}?placement=none").status_code == 302  # no placement of this option


def test_a_placement_whose_gpus_are_gone_is_not_launched(world: World) -> None:
    client, plan, placement = uneven_and_placed(world)
    predicted(placement, 600.0, 700.0)
    world.nodes[0].name = "renamed"
    world.nodes[0].save()
    context = client.get(f"/plans/{plan.pk}/").context
    assert context["placing"].state == "failed"
    assert "these are no longer in the inventory" in context["placing"].reason.lower()
    assert context["launch"]["label"] == "Launch D = 1"


def test_what_a_refined_plan_no_longer_has_is_not_launched(world: World) -> None:
    client, plan, placement = uneven_and_placed(world)
    predicted(placement, 600.0, 700.0)
    best = plan.result["best"]
    plan.result["options"][best]["iteration_ms"] -= 1  # as refining it would
    plan.save()
    assert client.get(f"/plans/{plan.pk}/").context["placing"].state == "wanted"
    refused = {"option": best, "placement": placement.pk}
    page = client.post(f"/plans/{plan.pk}/launch/", refused, follow=True).content.decode()
    assert "is not the latest of this option" in page
    assert not Job.objects.exists()


def test_who_may_not_and_what_is_even_or_of_several_types_is_not_placed(world: World) -> None:
    WanLink.objects.create(a=world.dcs[0], b=world.dcs[2], latency_ms=40, bandwidth_gbps=1)
    plan = world.plan
    option = plan.result["options"][plan.result["best"]]
    request = {"option": plan.result["best"]}
    assert world.client("viewer").post(f"/plans/{plan.pk}/place/", request).status_code == 403
    assert world.client("stranger").post(f"/plans/{plan.pk}/place/", request).status_code == 404
    assert placing_of(plan, option, operates=False, refining=False).state == "offered"
    assert placing_of(plan, option, operates=True, refining=True).state == "refining"
    page = world.client("operator").post(f"/plans/{plan.pk}/place/", {"option": "99"}).content.decode()
    assert "must be the index of an option" in page
    assert latest_of(plan, option) is None
    plan.request["job"]["model"] = "gpt-a"
    plan.request["datacenters"][0]["gpu_type"] = "h100"
    told_of = placing_of(plan, option, operates=True, refining=False)
    assert (told_of.state, told_of.reason) == ("offered", SEVERAL_TYPES)
    for link in plan.request["links"]:
        link |= {"latency_ms": 10.0, "bandwidth_gbps": 1.0}
    plan.request["datacenters"][0]["gpu_type"] = "a100-80g"
    plan.request["links"].append({**plan.request["links"][0], "between": ["east", "west"]})
    assert placing_of(plan, option, operates=True, refining=False).state == ""
