"""What pages say of prefill that is there to sell: the same of the same runs, and never more than is there
without a question."""

import re
from typing import Any

import pytest
from django.core.exceptions import ValidationError

from tests.site.coordinators import coordinator_event, prefill_event, say
from tests.site.house import rows
from tests.site.tenancies import MODEL, SECTION, ask, grant, limits, second_tenant, serve
from tests.site.test_tenancy_pages import GRANT, text, train
from webapp.common.markup import thousands
from webapp.live.models import PrefillCoordinator
from webapp.prefill import services
from webapp.prefill.cells import cells
from webapp.prefill.models import Tenancy, TenancyStatus
from webapp.prefill.offers import oversold, served_now
from webapp.prefill.supply import supply

MINE = {"name": "mine", "latency": {"a_ms": 1, "b_ms": 0.1, "c_ms": 0}}


def open_coordinators(run: Any, **values: Any) -> None:
    """The run takes prompts in the data centres east and mid."""
    say(coordinator_event(run, **values))
    say(coordinator_event(run, dc="mid", rank=1_000_001, **values), node="mid-1")
    assert PrefillCoordinator.objects.usable().count() == 2


def ticked(page: Any) -> str:
    """What the box of a page that asks for a confirmation sends."""
    box = re.search(r'<input type="checkbox" name="oversell" value="([^"]+)"[^>]*>', text(page))
    assert box, text(page)
    assert "checked" not in box[0]
    return box[1]


def review(world: Any, tenancy: Tenancy) -> Any:
    return world.client("admin").get(f"/tenancies/{tenancy.pk}/review/")


def test_a_run_counts_for_the_model_that_it_serves_and_for_no_other(world: Any) -> None:
    run = serve(train(world), **MINE)
    page = review(world, ask(world, model="mine"))
    forecast = page.context["forecast"].supply
    assert forecast.running > 0
    assert {(row.cell.run.pk, row.cell.latency.b_ms) for row in forecast.cells} == {(run.pk, 0.1)}
    assert "nothing to sell" not in text(page)
    assert cells(MODEL, world.dcs[:2]) == []
    other = review(world, ask(world))
    assert other.context["forecast"].running == 0
    assert "nothing to sell now" in text(other)


def test_a_run_that_serves_nothing_is_told_of_and_not_counted(world: Any) -> None:
    train(world)
    page = review(world, ask(world))
    forecast = page.context["forecast"].supply
    assert (forecast.running, forecast.cells) == (0, [])
    assert forecast.possible > 0
    assert "serves no model, not counted" in text(page)
    assert "add a prefill section to their jobs" in text(page)


def test_a_run_that_delivers_is_never_nothing_to_sell(world: Any) -> None:
    """Not where its schedule or its model's times are unknown, and not where prompts are too long."""
    run = train(world)
    open_coordinators(run, model="mine")
    unknown = review(world, ask(world, model="mine"))
    assert [each.pk for each in unknown.context["forecast"].supply.unforeseen] == [run.pk]
    assert "how much is not known" in text(unknown)
    serve(run, **MINE, chunk_tokens=None)
    longest = supply("mine", world.dcs[:2], 1).longest
    tokens = {"asked_longest_prompt": longest + 1, "asked_tokens_per_min": 10 * longest}
    long = review(world, ask(world, model="mine", typical_prompt=longest + 1, **tokens))
    assert long.context["forecast"].running == 0
    assert f"the longest that fits has {longest:,}." in text(long)
    for page in (unknown, long):
        assert "nothing to sell" not in text(page)
    (offer,) = served_now([world.team])
    assert offer.supply > 0


def test_a_kv_budget_bounds_the_longest_prompt(world: Any) -> None:
    run = serve(train(world), chunk_tokens=64)
    free = supply(MODEL, world.dcs[:2], 1_024)
    serve(run, chunk_tokens=64, kv_budget_gb=0.1)  # of 131,072 bytes a token
    tight = supply(MODEL, world.dcs[:2], 1_024)
    assert tight.longest == 762 < free.longest
    assert tight.running == 0 < free.running


def test_all_pages_say_the_same_of_a_run(world: Any) -> None:
    """Review, overview and live page: the supply in each data centre, of all, and what is sold of it."""
    run = serve(train(world), **MINE)
    open_coordinators(run, model="mine")
    sold = grant(world, ask(world, model="mine"))
    page = review(world, ask(world, second_tenant(world), model="mine"))
    weighed = page.context["forecast"]
    rates = {(row.cell.run.pk, row.cell.dc.pk): row.tokens_per_min for row in weighed.supply.cells}
    overview = world.client("admin").get("/")
    live = world.client("admin").get("/prefill/live/")
    (there,), (watched,) = overview.context["served"], live.context["watched"].served
    assert there == watched
    here = {key: rate for key, rate in there.rates.items() if key[1] != world.dcs[2].pk}
    assert here == rates == {key: pytest.approx(rate) for key, rate in here.items()}
    coordinators = {
        (row.coordinator.run_id, row.coordinator.dc_id): row.supply for row in live.context["watched"].rows
    }
    assert coordinators == rates
    assert there.tokens == sold.typical_prompt
    assert there.sold == weighed.sold == sold.tokens_per_min
    for shown in (overview, live):
        assert f">{thousands(there.supply)}<" in text(shown)
        assert f">{thousands(there.sold)}<" in text(shown)
    for rate in rates.values():
        assert f">{thousands(rate)}<" in text(live)
        assert f">{thousands(rate)}<" in text(page)


def test_the_overview_says_nothing_of_prefill_where_none_is_served(world: Any) -> None:
    run = train(world)
    page = world.client("viewer").get("/")
    assert page.context["served"] == []
    assert "<h2>Prefill</h2>" not in text(page)
    open_coordinators(serve(run))
    assert "<h2>Prefill</h2>" in text(world.client("viewer").get("/"))
    assert "<h2>Prefill</h2>" not in text(world.client("stranger").get("/"))


def test_granting_more_than_is_there_is_confirmed_with_all_figures(world: Any) -> None:
    serve(train(world))
    grant(world, ask(world, second_tenant(world)), tokens_per_min=50_000)
    tenancy, client = ask(world), world.client("admin")
    url = f"/tenancies/{tenancy.pk}/review/"
    there = int(supply(MODEL, world.dcs[:2], tenancy.typical_prompt).running)
    much = {**GRANT, "tokens_per_min": there, "datacenters": [dc.pk for dc in world.dcs[:2]]}
    assert 'type="checkbox" name="oversell"' not in text(client.get(url))
    refused = client.post(url, much)
    assert refused.status_code == 422
    for figure in (f"grants {there:,}", "hold 50,000", f"supply {there:,} tokens/min now"):
        assert figure in text(refused)
    assert 'type="checkbox" name="oversell"' in text(refused)
    confirmed = much | {"oversell": ticked(refused)}
    more = client.post(url, confirmed | {"tokens_per_min": there + 1})
    assert more.status_code == 422, "other figures are asked about again"
    tenancy.refresh_from_db()
    assert tenancy.status == TenancyStatus.REQUESTED
    assert client.post(url, confirmed).status_code == 302
    tenancy.refresh_from_db()
    assert (tenancy.status, tenancy.tokens_per_min) == (TenancyStatus.ACTIVE, there)


def test_with_no_supply_every_grant_is_confirmed(world: Any) -> None:
    tenancy = ask(world)
    data = {**GRANT, "datacenters": [world.dcs[0].pk]}
    refused = world.client("admin").post(f"/tenancies/{tenancy.pk}/review/", data)
    assert list(refused.context["form"].errors) == ["oversell"]
    assert "no run there supplies any now" in text(refused)
    confirmed = data | {"oversell": ticked(refused)}
    assert world.client("admin").post(f"/tenancies/{tenancy.pk}/review/", confirmed).status_code == 302


def test_what_is_there_is_granted_without_a_question(world: Any) -> None:
    serve(train(world))
    data = {**GRANT, "tokens_per_min": 5_000, "datacenters": [dc.pk for dc in world.dcs[:2]]}
    assert world.client("admin").post(f"/tenancies/{ask(world).pk}/review/", data).status_code == 302


def test_the_service_refuses_too_much_unless_told_to(world: Any) -> None:
    """A new tenancy, and a renewal that raises the quota; what is sold to others counts."""
    serve(train(world))
    there = int(supply(MODEL, world.dcs[:2], 1_024).running)
    first, second = ask(world), ask(world, second_tenant(world))
    admin, half = world.users["admin"], limits(tokens_per_min=there * 2 // 3)
    services.approve_tenancy(admin, first, half, world.dcs[:2])
    with pytest.raises(ValidationError) as refused:
        services.approve_tenancy(admin, second, half, world.dcs[:2])
    assert list(refused.value.message_dict) == ["oversell"]
    assert not rows("approve").filter(object_id=second.pk).exists()
    assert services.approve_tenancy(admin, second, half, world.dcs[:2], oversell=True).state == "active"
    services.ask_renewal(first.tenant, first, 30)
    with pytest.raises(ValidationError, match="Other tenancies hold"):
        services.approve_tenancy(admin, first, limits(tokens_per_min=there), world.dcs[:2])


def test_a_suspended_tenancy_comes_back_to_what_is_there_or_after_a_question(world: Any) -> None:
    serve(train(world))
    there = int(supply(MODEL, world.dcs[:2], 1_024).running)
    tenancy, admin = grant(world, tokens_per_min=there * 2 // 3), world.users["admin"]
    services.suspend_tenancy(admin, tenancy, "Bursts.")
    assert services.resume_tenancy(admin, tenancy).state == TenancyStatus.ACTIVE
    services.suspend_tenancy(admin, tenancy, "Bursts.")
    grant(world, ask(world, second_tenant(world)), tokens_per_min=there * 2 // 3)
    client, url = world.client("admin"), f"/tenancies/{tenancy.pk}/resume/"
    response = client.post(url)
    assert response.status_code == 409
    assert f"hold {there * 2 // 3:,} tokens/min" in text(response)
    assert 'name="confirmed"' in text(response)
    assert Tenancy.objects.get(pk=tenancy.pk).state == TenancyStatus.SUSPENDED
    assert client.post(url, {"confirmed": "yes"}).status_code == 302
    assert Tenancy.objects.get(pk=tenancy.pk).state == TenancyStatus.ACTIVE


def test_the_figures_are_those_of_the_data_centres_that_are_granted(world: Any) -> None:
    serve(train(world))
    tenancy = ask(world)
    both, east = (oversold(tenancy, world.dcs[:n], 10**9) for n in (2, 1))
    assert both is not None
    assert east is not None
    assert 0 < east.supply < both.supply


def test_a_model_of_a_section_that_nobody_can_read_breaks_nothing(world: Any) -> None:
    run = serve(train(world), of_tomorrow=1)
    assert SECTION["checkpoint"] == run.job.document["prefill"]["checkpoint"]
    assert supply(MODEL, world.dcs[:2], 1_024).running == 0
    open_coordinators(run)
    assert supply(MODEL, world.dcs[:2], 1_024).running > 0  # its coordinators say what it serves
    say(prefill_event(run, paused=True))
    assert world.client("operator").get("/prefill/live/").status_code == 200
