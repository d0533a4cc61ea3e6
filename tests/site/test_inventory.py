"""Data centres, pools, links: names in plans, history and what is in use, protected deletion, pages."""

import itertools
from datetime import timedelta
from typing import Any
from zoneinfo import ZoneInfo

import pytest
from django.core.exceptions import PermissionDenied, ValidationError
from django.db import IntegrityError, connection, transaction
from django.test.utils import CaptureQueriesContext
from django.utils import timezone

from engine.inputs import parse
from engine.plan.request import PlanRequest
from tests.site.world import VALUES, make_dc, make_node
from webapp.accounts.models import AuditEntry
from webapp.inventory import services
from webapp.inventory.models import DataCenter, GpuPool, LinkMeasurement, Node, WanLink
from webapp.inventory.selectors import named_pools, pools
from webapp.inventory.selectors.matrix import MEASURES, link_matrix
from webapp.jobs.allocate import allocate
from webapp.jobs.models import Job, RankState
from webapp.jobs.services import launch_run
from webapp.planning import compose
from webapp.planning.document import train_document
from webapp.planning.services import create_plan


def test_a_pool_alone_goes_by_its_data_centre_and_several_by_type(world: Any) -> None:
    east, mid = world.dcs[:2]
    GpuPool.objects.create(dc=east, gpu_type="h100")
    named = named_pools([east, mid])
    assert list(named) == ["east:a100-80g", "east:h100", "mid"]
    assert list(named_pools([mid, east])) == ["mid", "east:a100-80g", "east:h100"], "in the order asked for"
    assert pools(world.team, named) == named
    assert pools(world.team, ["east", "mid:a100-80g", "east:v100", "nowhere"]) == {
        "east": named["east:a100-80g"],  # the one that had the name when it was alone
        "mid:a100-80g": named["mid"],
    }


def test_pools_of_one_data_centre_are_planned_and_placed_apart(world: Any) -> None:
    """Two types in `east`: each a member of the plan, joined inside, and ranks stand on the right nodes."""
    east = world.dcs[0]
    second = GpuPool.objects.create(dc=east, gpu_type="h100", price_per_gpu_hour="6.88")
    make_node(east, "east-h", pool=second, gpus=4, device="emulated", acl_sha256="0" * 64)
    request = compose.request_of({**VALUES, "datacenters": world.dcs[:2]})
    by_name = {dc["name"]: dc for dc in request["datacenters"]}
    assert {name: (dc["gpu_type"], dc["gpus"]) for name, dc in by_name.items()} == {
        "east:a100-80g": ("a100-80g", 4),
        "east:h100": ("h100", 4),
        "mid": ("a100-80g", 4),
    }
    inside = next(link for link in request["links"] if set(link["between"]) == {"east:a100-80g", "east:h100"})
    assert (inside["latency_ms"], inside["bandwidth_gbps"]) == (0, east.intra_gbps)
    assert {frozenset(link["between"]) for link in request["links"]} >= {
        frozenset(("east:h100", "mid")),
        frozenset(("east:a100-80g", "mid")),
    }
    parse(PlanRequest, request)
    plan = create_plan(
        world.users["operator"],
        team=world.team,
        name="mixed",
        request=request,
        training=compose.training_of({**VALUES, "datacenters": world.dcs[:2]}),
    )
    document = train_document(request, plan.best, plan.training)
    job = Job.objects.create(team=world.team, name="mixed", document=document)
    world.hear(*Node.objects.all())
    run = launch_run(world.users["operator"], job)
    assert allocate(run)
    names = [document["datacenters"][dc]["name"] for dc in document["cell"]["dc_of_stage"]]
    for rank in RankState.objects.filter(run=run).select_related("node__pool__dc"):
        assert names[rank.stage] in (str(rank.node.pool), rank.node.pool.dc.name)


def test_a_node_stands_in_a_pool_of_its_own_data_centre(world: Any) -> None:
    node = world.nodes[0]
    elsewhere = world.dcs[1].pools.get()
    with connection.cursor() as cursor:
        cursor.execute("SET CONSTRAINTS ALL IMMEDIATE")
    with pytest.raises(IntegrityError, match="node_pool_of_dc"), transaction.atomic():
        Node.objects.filter(pk=node.pk).update(pool=elsewhere)


def test_what_is_typed_in_begins_the_history_of_a_link(world: Any) -> None:
    operator = world.users["operator"]
    link = services.save(
        operator, WanLink(a=world.dcs[0], b=world.dcs[2], latency_ms=25, bandwidth_gbps=2, connections=8)
    )
    declared = link.measurements.get()
    assert (declared.latency_ms, declared.bandwidth_gbps, declared.connections) == (25, 2, 8)
    assert (declared.source, declared.actor) == ("declared", operator)
    assert link.latency_from == link.bandwidth_from == declared
    link.latency_ms = 30
    services.save(operator, link)
    link.refresh_from_db()
    assert link.latency_from.latency_ms == 30
    assert link.latency_from.bandwidth_gbps is None  # nobody has said anything new of it
    assert link.bandwidth_from == declared
    link.egress_price_per_gb = 1
    services.save(operator, link)
    assert link.measurements.count() == 2


def test_a_measured_value_is_put_into_use_and_says_so(world: Any) -> None:
    measured = services.record_measurement(
        world.link, latency_ms=12.5, bandwidth_gbps=None, connections=None, source="probe", actor=None
    )
    world.link.refresh_from_db()
    assert world.link.latency_ms == 10  # measuring changes nothing by itself
    url = f"/links/{world.link.pk}/measurements/{measured.pk}/use/"
    assert world.client("viewer").post(url).status_code == 403
    assert world.client("operator").post(url).status_code == 302
    world.link.refresh_from_db()
    assert (world.link.latency_ms, world.link.bandwidth_gbps) == (12.5, 1)
    assert world.link.latency_from == measured
    row = AuditEntry.objects.get(verb="use-measurement")
    assert (row.before, row.after) == ({"latency_ms": 10.0}, {"latency_ms": 12.5})
    other = WanLink.objects.exclude(pk=world.link.pk).get()
    stray = f"/links/{other.pk}/measurements/{measured.pk}/use/"
    assert world.client("operator").post(stray).status_code == 404


@pytest.mark.parametrize(
    "wrong", [{"latency_ms": -1}, {"latency_ms": float("nan")}, {"bandwidth_gbps": 0}, {"latency_ms": None}]
)
def test_a_measurement_is_checked(world: Any, wrong: dict[str, Any]) -> None:
    values = {"latency_ms": None, "bandwidth_gbps": None, "connections": None, **wrong}
    with pytest.raises(ValidationError):
        services.record_measurement(world.link, source="probe", actor=None, **values)
    with pytest.raises(PermissionDenied):
        services.record_measurement(
            world.link,
            latency_ms=1.0,
            bandwidth_gbps=None,
            connections=None,
            source="declared",
            actor=world.users["viewer"],
        )
    assert not LinkMeasurement.objects.exists()


def test_what_nodes_and_links_refer_to_cannot_be_deleted(world: Any) -> None:
    """Each page says what refers to its thing; what nothing but plans refers to goes, with its pools."""
    client = world.client("operator")
    pool = world.dcs[2].pools.get()
    refused = {
        f"/datacenters/{world.dcs[2].pk}/delete/": ("node west-1", "link mid – west"),
        f"/pools/{pool.pk}/delete/": ("node west-1",),
    }
    for url, names in refused.items():
        response = client.post(url)
        assert response.status_code == 409, url
        for name in names:
            assert name in response.context["blocked"], url
    spare = make_dc(world.team, "spare", gpu_types=("h100", "v100"))
    one = spare.pools.get(gpu_type="v100")
    assert client.post(f"/pools/{one.pk}/delete/")["Location"] == f"/datacenters/{spare.pk}/"
    assert client.post(f"/datacenters/{spare.pk}/delete/").status_code == 302
    assert not GpuPool.objects.filter(dc=spare.pk).exists()
    assert client.post(f"/links/{world.link.pk}/delete/").status_code == 302


def test_a_region_of_the_catalogue_fills_in_the_form(world: Any) -> None:
    client = world.client("operator")
    page = client.get("/datacenters/new/?region=aws:eu-north-1&gpu_type=h100")
    assert "Stockholm" in page.content.decode()
    form = page.context["form"]
    sent = {name: form[name].value() for name in form.fields if form[name].value() is not None}
    assert sent["country"] == "SE"
    response = client.post("/datacenters/new/", sent | {"team": world.team.pk})
    assert response.status_code == 302, response.context["form"].errors
    dc = DataCenter.objects.get(name="eu-north-1")
    assert (dc.time_zone, dc.pools.get().gpu_type) == ("Europe/Stockholm", "h100")
    assert float(dc.pools.get().price_per_gpu_hour) == 7.3616
    text = client.get(response["Location"]).content.decode()
    assert f"{timezone.now().astimezone(ZoneInfo(dc.time_zone)):%H:}" in text
    assert "59.33° N, 18.07° E" in text


def test_the_link_form_is_offered_what_was_measured_there(world: Any) -> None:
    east, mid, west = world.dcs
    DataCenter.objects.filter(pk=east.pk).update(latitude=39.04, longitude=-77.49)
    DataCenter.objects.filter(pk=west.pk).update(latitude=45.59, longitude=-121.18)
    client = world.client("operator")
    known = client.get(f"/links/suggestion/?a={east.pk}&b={west.pk}").content.decode()
    assert 'data-fill-latency_ms="28.7' in known
    assert "Skyplane" in known
    assert (
        "mid has no coordinates" in client.get(f"/links/suggestion/?a={east.pk}&b={mid.pk}").content.decode()
    )
    assert client.get("/links/suggestion/?a=x&b=").content.strip() == b""
    hidden = world.client("stranger").get(f"/links/suggestion/?a={east.pk}&b={west.pk}")
    assert b"28.7" not in hidden.content


def test_the_matrix_is_symmetric_and_shades_by_size(world: Any) -> None:
    for name, measure in MEASURES.items():
        matrix = link_matrix(world.users["viewer"], measure, DataCenter.objects.all(), may_add=True)
        cells = [[cell.text for cell in row] for _, row in matrix.rows]
        assert cells == [list(column) for column in zip(*cells, strict=True)], name
    latency = link_matrix(world.users["viewer"], MEASURES["latency"], DataCenter.objects.all(), may_add=False)
    shades = {cell.text: cell.level for _, row in latency.rows for cell in row if cell.text}
    assert shades == {"10.0": 3, "15.0": 4}
    missing = [cell for _, row in latency.rows for cell in row if cell.level is None and not cell.same]
    assert [cell.url for cell in missing] == ["", ""]


def test_others_see_nothing_of_it(world: Any) -> None:
    for url in ("/map/", "/links/matrix/", "/gpu-types/a100-80g/", "/datacenters/"):
        text = world.client("stranger").get(url).content.decode()
        assert ">east<" not in text, url
        assert "east:" not in text, url


@pytest.mark.parametrize("state", ["silent", "never", "answering", "empty"])
def test_data_centres_are_filtered_by_what_their_nodes_say(world: Any, state: str) -> None:
    west = world.dcs[2]
    make_node(west, "west-2")
    make_dc(world.team, "bare")
    world.hear(world.nodes[0], world.nodes[2])
    Node.objects.filter(name="west-2").update(last_seen=timezone.now() - timedelta(hours=1))
    names = world.client("viewer").get(f"/datacenters/?state={state}").context["table"].data
    expected = {"silent": {"west"}, "never": {"mid"}, "answering": {"east"}, "empty": {"bare"}}[state]
    assert {dc.name for dc in names} == expected


def test_a_filter_of_gpu_types_counts_nodes_and_gpus_once(world: Any) -> None:
    east = world.dcs[0]
    GpuPool.objects.create(dc=east, gpu_type="h100")
    make_node(east, "east-2", gpus=2)
    table = world.client("viewer").get("/datacenters/?gpu_type=h100").context["table"]
    (dc,) = list(table.data)
    assert (dc.node_count, dc.gpu_count) == (2, 6)


@pytest.mark.parametrize("url", ["/datacenters/", "/links/", "/links/matrix/", "/map/", "/gpu-types/"])
def test_queries_do_not_grow_with_rows(world: Any, url: str) -> None:
    client = world.client("viewer")

    def queries() -> int:
        client.get(url)
        with CaptureQueriesContext(connection) as captured:
            assert client.get(url).status_code == 200
        return len(captured)

    few = queries()
    rows = DataCenter.objects.bulk_create(
        DataCenter(team=world.team, name=f"many-{i}", latitude=i % 90, longitude=i % 180) for i in range(300)
    )
    GpuPool.objects.bulk_create(GpuPool(dc=dc, gpu_type="h100") for dc in rows)
    WanLink.objects.bulk_create(
        WanLink(a=a, b=b, latency_ms=i + 1, bandwidth_gbps=1)
        for i, (a, b) in enumerate(itertools.pairwise(rows))
    )
    more = (
        1 if url in ("/links/matrix/", "/map/") else 0
    )  # how many there are in all, where some are left out
    assert queries() <= few + more


@pytest.mark.parametrize(
    ("fabric", "hb_domain", "error"),
    [
        ("rail-only", 8, ""),
        ("rail-optimised", 4, ""),
        ("any-to-any", "", ""),
        ("rail-only", "", "Enter the GPUs per HB domain"),
        ("any-to-any", 8, "Leave it empty"),
        ("rail-only", 0, "greater than or equal to 1"),
    ],
)
def test_a_fabric_goes_from_the_form_into_plans(world: Any, fabric: str, hb_domain: Any, error: str) -> None:
    east, client = world.dcs[0], world.client("operator")
    address = f"/datacenters/{east.pk}/edit/"
    values = {name: value for name, value in client.get(address).context["form"].initial.items() if value}
    answer = client.post(address, {**values, "fabric": fabric, "hb_domain": hb_domain})
    if error:
        assert error in str(answer.context["form"].errors["hb_domain"])
        return
    assert answer.status_code == 302
    request = compose.request_of({**VALUES, "datacenters": world.dcs[:1]})
    site = request["datacenters"][0]
    assert (site.get("fabric"), site.get("hb_domain")) == ((fabric, hb_domain) if hb_domain else (None, None))
    parse(PlanRequest, request)
    page = client.get(f"/datacenters/{east.pk}/").content.decode()
    assert fabric in page
    assert (f"HB domains of {hb_domain} GPUs" in page) == bool(hb_domain)
    if hb_domain:
        entry = AuditEntry.objects.order_by("-pk").first()
        assert entry is not None
        assert entry.after["hb_domain"] == hb_domain


def test_the_database_refuses_rails_without_domains(world: Any) -> None:
    with pytest.raises(IntegrityError), transaction.atomic():
        DataCenter.objects.filter(pk=world.dcs[0].pk).update(fabric="rail-only")


def test_a_run_of_a_plan_on_rails_sums_over_its_domains(world: Any) -> None:
    DataCenter.objects.update(fabric="rail-only", hb_domain=2)
    values = {**VALUES, "datacenters": world.dcs}
    request = compose.request_of(values)
    plan = create_plan(
        world.users["operator"],
        team=world.team,
        name="rails",
        request=request,
        training=compose.training_of(values),
    )
    document = train_document(request, plan.best, plan.training)
    assert {dc["hb_domain"] for dc in document["datacenters"]} == {2}
    assert document["cell"].get("all_reduce") == "hierarchical"
