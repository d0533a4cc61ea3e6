"""Plans whose nodes or links are not alike say so and offer a placement of the option's GPUs."""

from collections import Counter
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.inputs import parse
from engine.plan.placement.request import PlacementRequest
from tests.site.world import World
from webapp.inventory.models import WanLink
from webapp.jobs.models import Job, Run
from webapp.jobs.services import launch_plan
from webapp.planning.computing import work_at
from webapp.planning.models import Computation
from webapp.planning.placement_form import document_of
from webapp.planning.placement_plan import what_differs

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
    told = what_differs({"datacenters": sites, "links": links(*[(10, 1)] * 3)}, OPTION)
    assert len(told) == 1
    assert "c " in told[0]


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
    made = client.post("/placement/new/", values)
    assert made.status_code == 302, made.context["form"].errors
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
    assert len(job.seats) == 6 * option["pipelines"]
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
