"""What a tenant sees of models: which are served now, and for how much."""

from typing import Any

import pytest

from tests.site.coordinators import coordinator_event, say
from tests.site.tenancies import MODEL, ask, give_key, grant, second_tenant, serve
from tests.site.test_tenancy_pages import text, train
from tests.site.test_v1 import call
from webapp.common.money import exact_dollars


def request_form(world: Any) -> Any:
    return world.client("tenant").get("/tenancies/new/").context["form"]


def test_the_tenants_page_lists_its_models_with_prices_and_where_they_are_served(world: Any) -> None:
    run = train(world)
    say(coordinator_event(run))
    mine = grant(world, price=61_200)
    grant(world, ask(world, second_tenant(world), name="Rival"), price=99_000)
    page = world.client("tenant").get("/prefill/")
    (row,) = page.context["models"]
    assert (row.tenancy, row.price, row.where) == (mine, 61_200, ["east"])
    assert row.names == [MODEL, f"{MODEL}@east", f"{MODEL}@mid"]
    assert ">0.0612<" in text(page)
    assert "0.099" not in text(page)
    detail = text(world.client("tenant").get(f"/tenancies/{mine.pk}/"))
    assert "<dt>Served now</dt><dd>in east</dd>" in detail
    assert "0.0612 $/M prompt tokens" in detail


def test_a_model_that_others_buy_can_be_asked_for_and_has_no_price_yet(world: Any) -> None:
    say(coordinator_event(serve(train(world), name="mine"), model="mine"))
    grant(world, ask(world, second_tenant(world), model="mine"), price=99_000)
    page = world.client("tenant").get("/prefill/")
    (row,) = page.context["models"]
    assert (row.model, row.tenancy, row.price, row.where) == ("mine", None, None, ["east"])
    assert "set with the approval" in text(page)
    assert 'href="/tenancies/new/?model=mine"' in text(page)
    tenancy = ask(world)
    assert "<dt>Price</dt><dd>set with the approval</dd>" in text(
        world.client("tenant").get(f"/tenancies/{tenancy.pk}/")
    )


def test_a_request_begins_with_a_model_that_is_served(world: Any) -> None:
    assert "No run serves a model now." in request_form(world).fields["model"].help_text
    run = serve(train(world), name="mine")
    grant(world, price=61_200)
    assert request_form(world)["model"].value() == "mine"  # the run will serve it
    assert "No run serves a model now." in request_form(world).fields["model"].help_text
    say(coordinator_event(run, model="mine"))
    form = request_form(world)
    assert form["model"].value() == "mine"
    assert "No run serves" not in form.fields["model"].help_text
    labels = dict(form.fields["model"].choices)
    assert labels["mine"] == "mine, served now"
    assert labels[MODEL] == f"{MODEL}, 0.0612 $/M prompt tokens before"
    rival = second_tenant(world)
    assert rival is world.users["rival"]
    theirs = world.client("rival").get("/tenancies/new/").context["form"].fields["model"]
    assert dict(theirs.choices)[MODEL] == MODEL  # what others pay is theirs
    chosen = world.client("tenant").get(f"/tenancies/new/?model={MODEL}").context["form"]
    assert chosen["model"].value() == MODEL


def test_examples_and_keys_are_of_a_tenancy_that_is_served(world: Any) -> None:
    run = serve(train(world), name="mine")
    say(coordinator_event(run, model="mine"))
    served = grant(world, ask(world, model="mine"))
    idle = grant(world)  # newer, and its model is served by no run
    client = world.client("tenant")
    home = client.get("/prefill/")
    assert home.context["in_force"] == served
    assert all('"mine"' in example for _, _, example in home.context["examples"])
    assert "No run serves" not in text(home)
    form = client.get("/keys/new/").context["form"]
    assert form["tenancy"].value() == served.pk
    labels = {str(label) for _, label in form.fields["tenancy"].choices}
    assert labels == {f"{served}: mine, served now", f"{idle}: {MODEL}, served by no run now"}
    assert client.get(f"/keys/new/?tenancy={idle.pk}").context["form"]["tenancy"].value() == str(idle.pk)
    shown = client.post("/keys/new/", {"tenancy": served.pk, "name": "a"}, follow=True)
    assert "Its model is mine, served now in east." in text(shown)


@pytest.mark.parametrize("opened", [False, True])
def test_the_page_says_when_no_run_serves_the_tenants_model(world: Any, opened: bool) -> None:
    run = train(world)
    if opened:
        say(coordinator_event(run))
    tenancy = grant(world)
    page = text(world.client("tenant").get("/prefill/"))
    assert (f"No run serves {MODEL} for you now." in page) != opened
    shown = world.client("tenant").post("/keys/new/", {"tenancy": tenancy.pk, "name": "a"}, follow=True)
    assert ("No run serves it now" in text(shown)) != opened


def test_the_api_lists_the_price_of_the_keys_tenancy(world: Any) -> None:
    _, secret = give_key(world, grant(world, price=61_200))
    listed = call(secret, path="/v1/models").json()["data"]
    assert {model["price_microusd_per_million_tokens"] for model in listed} == {61_200}


@pytest.mark.parametrize(
    ("micro", "shown"),
    [(60_000, "0.06"), (61_234, "0.061234"), (1_500_000, "1.50"), (1, "0.000001"), (0, "0.00"), (None, "–")],
)
def test_prices_are_shown_as_they_are(micro: int | None, shown: str) -> None:
    assert exact_dollars(micro) == shown
