"""What the demo's seed sells: a tenancy, asked for by its tenant and granted by its admin, and a key."""

import stat
from pathlib import Path

import pytest
from django.test import override_settings
from django.urls import reverse

from tests.site.world import World
from webapp.accounts.services import token_hash
from webapp.jobs.services import launch_plan
from webapp.prefill import demo
from webapp.prefill.models import ApiKey, Tenancy, TenancyStatus
from webapp.prefill.services import revoke_key, suspend_tenancy
from webapp.servers.places import demo_key, demo_model


@pytest.fixture
def served(world: World, tmp_path: Path) -> World:
    """A queued run of the demo's model, whose coordinators are not open yet."""
    demo_model(tmp_path).mkdir(parents=True)
    (demo_model(tmp_path) / "config.json").touch()
    document = {**world.launch().document, "prefill": demo.section(tmp_path)}
    best = world.plan.result["best"]
    launch_plan(world.users["operator"], world.plan, best, name="sells", document=document)
    return world


def sell(world: World, var: Path) -> None:
    demo.sell(var, world.team, world.users["tenant"], world.users["admin"], world.dcs)


def test_there_is_nothing_to_serve_without_the_model(tmp_path: Path) -> None:
    assert demo.section(tmp_path) is None


def test_a_tenancy_and_a_key_once(served: World, tmp_path: Path) -> None:
    for _ in range(2):
        sell(served, tmp_path)
    tenancy = Tenancy.objects.get()
    assert (tenancy.tenant, tenancy.decided_by) == (served.users["tenant"], served.users["admin"])
    assert tenancy.state == TenancyStatus.ACTIVE
    path = demo_key(tmp_path)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert ApiKey.objects.get().sha256 == token_hash(path.read_text().strip())


def test_what_people_decided_stays(served: World, tmp_path: Path) -> None:
    sell(served, tmp_path)
    tenancy, first = Tenancy.objects.get(), demo_key(tmp_path).read_text()
    revoke_key(served.users["admin"], ApiKey.objects.get())
    sell(served, tmp_path)
    assert demo_key(tmp_path).read_text() != first
    suspend_tenancy(served.users["admin"], tenancy, "enough")
    demo_key(tmp_path).unlink()
    sell(served, tmp_path)
    assert not demo_key(tmp_path).exists()


@pytest.mark.parametrize("in_demo", [True, False])
def test_the_tenants_page_says_where_the_key_is(served: World, tmp_path: Path, in_demo: bool) -> None:
    sell(served, tmp_path)
    with override_settings(DEMO=in_demo, VAR=tmp_path):
        page = served.client("tenant").get(reverse("prefill:home")).content.decode()
    assert (str(demo_key(tmp_path)) in page) == in_demo


def test_a_model_of_a_run_that_is_to_train_can_be_asked_for(served: World) -> None:
    tenant = served.client("tenant")
    assert "llama-tiny" in tenant.get(reverse("prefill:tenancy-request")).content.decode()
