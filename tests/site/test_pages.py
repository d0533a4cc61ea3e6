"""Who sees what: every page by role, other teams' things do not exist, and lists cost no query per row."""

import re
from typing import Any

import pytest
from django.db import connection
from django.test import Client
from django.test.utils import CaptureQueriesContext

from tests.site.world import make_dc, make_node
from webapp.accounts.models import AuditEntry, Role
from webapp.inventory.models import Node
from webapp.inventory.services import save
from webapp.jobs.models import Job, Run

LISTS = ["/", "/datacenters/", "/nodes/", "/links/", "/plans/", "/runs/"]


def pages(world: Any, run: Run) -> list[str]:
    dc, node, link = world.dcs[0].pk, world.nodes[0].pk, world.link.pk
    return [
        f"/datacenters/{dc}/",
        f"/nodes/{node}/",
        f"/links/{link}/",
        f"/plans/{world.plan.pk}/",
        f"/runs/{run.pk}/",
        f"/runs/{run.pk}/live.json",
    ]


def changes(world: Any, run: Run) -> list[str]:
    dc, node, link = world.dcs[0].pk, world.nodes[0].pk, world.link.pk
    return [
        f"/datacenters/{dc}/edit/",
        f"/datacenters/{dc}/delete/",
        f"/nodes/{node}/edit/",
        f"/nodes/{node}/delete/",
        f"/nodes/{node}/enrol/",
        f"/links/{link}/edit/",
        f"/links/{link}/delete/",
        f"/plans/{world.plan.pk}/launch/",
        f"/runs/{run.pk}/cancel/",
    ]


@pytest.mark.parametrize("role", [Role.VIEWER, Role.OPERATOR, Role.ADMIN])
def test_readers_see_their_teams_pages(world: Any, role: str) -> None:
    client = world.client(role)
    for url in LISTS + pages(world, world.launch()):
        assert client.get(url).status_code == 200, url


@pytest.mark.parametrize("who", ["stranger", "tenant"])
def test_what_one_may_not_see_does_not_exist(world: Any, who: str) -> None:
    run = world.launch()
    client = world.client(who)
    for url in pages(world, run):
        assert client.get(url).status_code == 404, url
    for url in changes(world, run):
        assert client.post(url).status_code == 404, url
    for url in LISTS:
        text = client.get(url).content.decode()
        assert "east-1" not in text
        assert ">three<" not in text


def test_a_viewer_may_not_change_what_he_sees(world: Any) -> None:
    run = world.launch()
    before = AuditEntry.objects.count()
    for url in changes(world, run):
        assert world.client("viewer").post(url, {"option": 0}).status_code == 403, url
    assert AuditEntry.objects.count() == before
    assert world.client("operator").post(f"/runs/{run.pk}/cancel/").status_code == 302


def test_everything_wants_a_login_but_health(db: Any) -> None:
    for url in [*LISTS, "/runs/1/live.json", "/plans/new/"]:
        response = Client().get(url)
        assert response.status_code == 302, url
        assert response["Location"].startswith("/login/")
    assert Client().get("/healthz").status_code == 200


def test_no_page_allows_inline_scripts(world: Any) -> None:
    for url in [*LISTS, f"/plans/{world.plan.pk}/", "/login/"]:
        policy = world.client("operator").get(url)["Content-Security-Policy"]
        scripts = next(part for part in policy.split(";") if part.strip().startswith("script-src"))
        assert "unsafe" not in scripts


def test_a_list_costs_the_same_with_more_rows(world: Any) -> None:
    client = world.client("viewer")

    def queries(url: str) -> int:
        with CaptureQueriesContext(connection) as captured:
            assert client.get(url).status_code == 200
        return len(captured)

    few = {url: queries(url) for url in LISTS[1:]}
    for i in range(12):
        make_node(make_dc(world.team, f"more-{i}", gpu_types=("h100",)), f"more-{i}", gpus=2)
        world.plan.pk, world.plan.name = None, f"more-{i}"
        world.plan._state.adding = True
        world.plan.save()
    assert {url: queries(url) for url in LISTS[1:]} == few
    assert max(few.values()) <= 16, few


def test_lockout_is_named(world: Any) -> None:
    client = Client()
    for _ in range(9):
        response = client.post("/login/", {"username": "operator", "password": "wrong"})
    assert response.status_code == 429
    assert "10 min" in response.content.decode()


def test_forms_show_errors_at_their_fields(world: Any) -> None:
    client = world.client("operator")
    same = client.post(
        "/links/new/", {"a": world.dcs[1].pk, "b": world.dcs[0].pk, "latency_ms": 1, "bandwidth_gbps": 1}
    )
    assert same.status_code == 422
    assert "already" in same.context["form"].errors["b"][0]
    bad = client.post(
        "/datacenters/new/", {"name": "North Pole", "gpu_type": "abacus", "price_per_gpu_hour": -1}
    )
    assert {"name", "gpu_type", "price_per_gpu_hour"} <= set(bad.context["form"].errors)
    form = {
        "name": "p",
        "source": "times",
        "forward_ms": "nan",
        "backward_ms": 1,
        "datacenters": [world.dcs[0].pk],
    }
    assert "forward_ms" in client.post("/plans/new/", form).context["form"].errors


def test_the_plan_form_makes_a_plan_and_launches_it(world: Any) -> None:
    client = world.client("operator")
    form = {
        "name": "fresh",
        "team": world.team.pk,
        "source": "times",
        "forward_ms": 20,
        "backward_ms": 40,
        "recompute_ms": 20,
        "activation_bytes": 5_000_000,
        "partitions": 6,
        "microbatches": 4,
        "policy": "atlas",
        "order": "gpus",
        "objective": "throughput",
        "bill": "used",
        "layers": 6,
        "hidden": 32,
        "heads": 2,
        "seq": 32,
        "micro_batch": 1,
        "steps": 10,
        "lr": 0.001,
        "seed": 0,
        "datacenters": [dc.pk for dc in world.dcs],
    }
    response = client.post("/plans/new/", form)
    assert response.status_code == 302, response.context["form"].errors
    page = client.get(response["Location"])
    assert page.context["plan_json"]["timeline"]["predicted"]["iteration_ms"] > 0
    assert page.context["launch"]["ok"]
    again = client.post("/plans/new/", form)
    assert again.status_code == 422
    launched = client.post(response["Location"] + "launch/", {"option": 0})
    assert launched["Location"].startswith("/runs/")
    job = Job.objects.get(name="fresh")
    assert job.document["cell"]["dc_of_stage"] == [0, 0, 1, 1, 2, 2]
    assert job.document["cell"]["pipelines"] == 2


def test_what_runs_used_cannot_be_deleted(world: Any) -> None:
    from webapp.jobs.allocate import allocate

    world.hear()
    assert allocate(world.launch())
    response = world.client("operator").post(f"/nodes/{world.nodes[0].pk}/delete/")
    assert response.status_code == 409
    assert "three #1" in response.context["blocked"]
    assert Node.objects.filter(pk=world.nodes[0].pk).exists()


def side_bar(world: Any, person: str, path: str = "/") -> tuple[str, list[str]]:
    """The side bar on a page: its HTML, and its headings, entries and buttons in order."""
    text = world.client(person).get(path).content.decode()
    bar = text[text.index('<nav aria-label="Main">') : text.index("</header>")]
    return bar, re.findall(r'class="(?:nav-group|nav-item|link-button)"[^>]*>([^<]+?) *<', bar)


def test_the_side_bar_has_groups_and_no_name_twice(world: Any) -> None:
    bar, names = side_bar(world, "admin")
    assert re.findall(r'aria-current="(\w+)">([^<]+)', bar) == [("page", "Overview")]
    assert len(names) == len(set(names)), names
    at = names.index("Calculators")
    assert names[at + 1 : at + 5] == ["Schedules", "Placement", "Network design", "Swap plan"]
    assert names[names.index("Train") + 1 : at] == ["Plans", "Runs"]
    bar, names = side_bar(world, "viewer", f"/plans/{world.plan.pk}/")
    assert re.findall(r'aria-current="(\w+)">([^<]+)', bar) == [("true", "Plans ")]
    at = names.index("Prefill")
    assert names[at + 1 : at + 4] == ["Replays", "Tenancies", "Keys"]
    assert side_bar(world, "tenant", "/prefill/")[0].count("nav-group") == 0


def test_the_parts_of_a_run_are_tabs_on_each_of_its_pages(world: Any) -> None:
    run, client = world.launch(), world.client("operator")
    for part, label in (("", None), ("metrics/", "Metrics"), ("logs/", "Logs")):
        text = client.get(f"/runs/{run.pk}/{part}").content.decode()
        tabs = text[text.index('<div class="tabs">') :]
        tabs = tabs[: tabs.index('<div id="panel' if not part else "</div>")]
        for name in ("Watch", "Events", "GPUs", "Job", "Metrics", "Logs"):
            assert re.search(rf">{name}\b", tabs), (part, name)
        assert "Compare schedules" not in tabs
        assert (label is None) == ("aria-current" not in tabs)


def test_audit_rows_of_the_inventory_and_of_launches_have_names(world: Any) -> None:
    node = make_node(world.dcs[0], "audited", host="10.9.9.9")
    node.pool = world.dcs[1].pools.get()
    save(world.users["operator"], node)
    world.launch()
    moved = AuditEntry.objects.filter(object_type="node", object_label="audited").latest("pk")
    assert (moved.before["dc"], moved.after["dc"], moved.after["pool"]) == ("east", "mid", "mid:a100-80g")
    launched = AuditEntry.objects.filter(object_type="job").latest("pk")
    assert launched.after["plan"] == "three"
