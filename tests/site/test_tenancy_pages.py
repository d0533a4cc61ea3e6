"""Pages of tenancies, keys and usage, as each side sees them."""

import ast
import csv
import html
import io
import json
import re
import shlex
from datetime import timedelta
from typing import Any

import pytest
from asgiref.sync import async_to_sync
from django.utils import timezone

from tests.site.house import rows
from tests.site.tenancies import MODEL, ask, give_key, grant, second_tenant, serve, use
from webapp.inventory.models import Node
from webapp.jobs.allocate import allocate
from webapp.jobs.models import Job, Run
from webapp.jobs.services import set_status
from webapp.prefill import services
from webapp.prefill.cells import SETTINGS
from webapp.prefill.gateway.answer_stream import OF_THE_REQUEST
from webapp.prefill.models import ApiKey, Outcome, Tenancy

REQUEST = {
    "name": "Fathom Search",
    "model": MODEL,
    "asked_tokens_per_min": 90_000,
    "asked_ttft_ms": 2_000,
    "asked_days": 90,
    "typical_prompt": 1_024,
    "asked_longest_prompt": 4_096,
}
GRANT = {
    "tokens_per_min": 75_000,
    "ttft_ms": 2_000,
    "longest_prompt": 4_096,
    "price": "0.06",
    "days": 30,
    "reason": "",
    "decision": "approve",
}


def text(page: Any) -> str:
    return page.content.decode()


def train(world: Any) -> Any:
    """A run that trains in all three data centres."""
    world.hear()
    run = world.launch()
    assert allocate(run)
    Run.objects.filter(pk=run.pk).update(steps=10**7)  # it trains for longer than the forecast looks ahead
    run.refresh_from_db()
    set_status(run, "running", "")
    return run


def asked(world: Any, **values: Any) -> Any:
    chosen = [dc.pk for dc in world.dcs[:2]]
    data = {**REQUEST, "team": world.team.pk, "datacenters": chosen, **values}
    return world.client("tenant").post("/tenancies/new/", data)


def test_a_tenants_login_lands_on_its_own_page(world: Any) -> None:
    client = world.client("tenant")
    assert client.get("/").headers["Location"] == "/prefill/"
    page = text(client.get("/prefill/"))
    assert "You have no tenancy yet" in page
    for hidden in ("/runs/", "/plans/", "/datacenters/", "/audit/"):
        assert f'href="{hidden}"' not in page


def test_the_page_says_the_refusals_of_long_prompts_as_the_api_gives_them(world: Any) -> None:
    grant(world)
    page = text(world.client("tenant").get("/prefill/"))
    assert OF_THE_REQUEST["context_length_exceeded"] == 400
    assert "400: the prompt is longer than the model's context" in page
    assert OF_THE_REQUEST["prompt_too_long"] == 413
    assert "413: it is longer than the tenancy allows" in page


def test_a_request_is_asked_for_on_the_page(world: Any) -> None:
    answer = asked(world)
    tenancy = Tenancy.objects.get()
    assert answer.headers["Location"] == f"/tenancies/{tenancy.pk}/"
    assert (tenancy.tenant, tenancy.asked_tokens_per_min) == (world.users["tenant"], 90_000)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("asked_tokens_per_min", "0"),
        ("asked_tokens_per_min", "many"),
        ("asked_ttft_ms", "-1"),
        ("asked_longest_prompt", "9000"),
        ("model", "gpt-5"),
        ("datacenters", "999999"),
        ("datacenters", []),
        ("name", ""),
    ],
)
def test_a_wrong_field_is_named(world: Any, field: str, value: Any) -> None:
    answer = asked(world, **{field: value})
    assert answer.status_code == 422
    assert field in answer.context["form"].errors
    assert not Tenancy.objects.exists()


def test_the_form_offers_only_data_centres_of_the_team_that_the_model_runs_on(world: Any) -> None:
    from tests.site.world import make_dc

    make_dc(world.team, "old", gpu_types=("v100",))
    make_dc(world.users["stranger"].memberships.get().team, "theirs")
    field = world.client("tenant").get("/tenancies/new/").context["form"].fields["datacenters"]
    assert [dc.name for dc in field.queryset] == ["east", "mid", "west"]


def test_a_tenant_is_told_of_no_keys_to_pages_that_it_has_not(world: Any) -> None:
    own_page, tenant_page = (
        world.client(who).get("/account/").content.decode() for who in ("tenant", "viewer")
    )
    assert "On a timeline" in tenant_page
    assert "On a timeline" not in own_page
    assert "<dd>nodes</dd>" not in own_page


def test_another_tenants_ids_do_not_exist(world: Any) -> None:
    second_tenant(world)
    key, _ = give_key(world)
    client = world.client("rival")
    pk = key.tenancy_id
    for path in (
        f"/tenancies/{pk}/",
        f"/tenancies/{pk}/review/",
        f"/tenancies/{pk}/renew/",
        f"/keys/{key.pk}/replace/",
    ):
        assert client.get(path).status_code == 404, path
    for path in (f"/tenancies/{pk}/withdraw/", f"/tenancies/{pk}/suspend/", f"/keys/{key.pk}/revoke/"):
        assert client.post(path, {"reason": "x"}).status_code == 404, path
    use(key.tenancy)
    for path in ("/tenancies/", "/keys/", "/usage/", "/usage/statement/", "/prefill/"):
        page = text(client.get(path))
        assert "Fathom" not in page, path
        assert key.prefix not in page, path
    assert client.post("/keys/new/", {"tenancy": pk, "name": "mine"}).status_code == 422
    assert "Fathom" not in text(client.get(f"/usage/?tenancy={pk}"))
    assert whole(client.get("/usage/export.jsonl")) == ""


def test_the_review_shows_what_running_and_planned_runs_leave(world: Any) -> None:
    tenancy = ask(world)
    run = serve(train(world))
    page = world.client("admin").get(f"/tenancies/{tenancy.pk}/review/")
    forecast = page.context["forecast"]
    cells = forecast.supply.cells
    east = next(row for row in cells if row.cell.dc == world.dcs[0])
    assert {row.cell.dc.name for row in cells} == {"east", "mid"}
    assert {row.cell.run.pk for row in cells} == {run.pk}
    pattern = east.cell.fleet.pattern
    most = (pattern.gpus * pattern.period_ms - pattern.busy_ms) / pattern.period_ms * 60_000
    assert 0 < east.tokens_per_min <= most / east.cell.latency.ms(1024) * 1024
    assert forecast.running == pytest.approx(sum(row.tokens_per_min for row in cells))
    assert forecast.new.after["p95"] is not None
    assert f'href="/runs/{run.pk}/"' in text(page)
    Node.objects.update(gpus=4)
    planned = serve(world.launch())
    page = world.client("admin").get(f"/tenancies/{tenancy.pk}/review/")
    rows = [row for row in page.context["forecast"].supply.cells if row.cell.planned]
    assert {row.cell.run.pk for row in rows} == {planned.pk}
    assert page.context["forecast"].supply.planned > 0


def test_more_sold_means_later_or_refused(world: Any) -> None:
    serve(train(world))
    tenancy = ask(world)
    client = world.client("admin")

    def after(tokens: int) -> Any:
        page = client.get(f"/tenancies/{tenancy.pk}/review/?tokens_per_min={tokens}&ttft_ms=400")
        return page.context["forecast"]

    little, much = after(10_000), after(50_000_000)
    assert much.new.after["refused"] > little.new.after["refused"]
    assert much.left < 0 < little.left
    grant(world)
    assert after(10_000).sold == 60_000


def test_a_run_that_keeps_places_ahead_refuses_fewer(world: Any) -> None:
    run, tenancy, client = train(world), ask(world), world.client("admin")
    request = {
        "latency": {"a_ms": 1, "b_ms": 1, "c_ms": 0},
        "queue": 1,
        "guard_ms": 3,
        "chunk_tokens": 64,
    }

    def forecast(**changes: Any) -> Any:
        serve(run, **request, **changes)
        page = client.get(f"/tenancies/{tenancy.pk}/review/?tokens_per_min=1000000&ttft_ms=60000")
        return page.context["forecast"]

    without, ahead = forecast(), forecast(reserve_ms=20_000)
    settings = ahead.supply.cells[0].cell.settings
    assert (settings.guard_ms, settings.queue, settings.chunk_tokens) == (3.0, 1, 64)
    assert settings.reserve_ms == 20_000
    assert ahead.new.after["refused"] < without.new.after["refused"]


def test_a_job_of_another_version_breaks_no_page(world: Any) -> None:
    run, tenancy = train(world), ask(world)
    Job.objects.filter(pk=run.job_id).update(
        document={**run.job.document, "prefill": {"checkpoint": "/models/m", "of_tomorrow": 1}}
    )
    review = world.client("admin").get(f"/tenancies/{tenancy.pk}/review/?tokens_per_min=1000&ttft_ms=60000")
    assert review.status_code == 200
    assert review.context["forecast"].supply.others[0].cell.settings == SETTINGS
    asking = world.client("tenant").get("/tenancies/new/")
    assert asking.status_code == 200
    assert "/models/m" not in text(asking)


def test_without_a_run_there_is_nothing_to_sell(world: Any) -> None:
    page = world.client("admin").get(f"/tenancies/{ask(world).pk}/review/")
    assert "nothing to sell now" in text(page)
    assert page.context["forecast"].new.after["p95"] is None


def test_an_admin_approves_on_the_page_with_a_price_in_whole_micro_dollars(world: Any) -> None:
    tenancy = ask(world)
    data = {**GRANT, "price": "0.0612345", "datacenters": [world.dcs[0].pk]}
    client = world.client("admin")
    answer = client.post(f"/tenancies/{tenancy.pk}/review/", data)
    assert answer.status_code == 422
    assert list(answer.context["form"].errors) == ["price"]
    serve(train(world))
    client.post(f"/tenancies/{tenancy.pk}/review/", {**data, "price": "0.061234"})
    tenancy.refresh_from_db()
    assert (tenancy.price, tenancy.tokens_per_min, tenancy.status) == (61_234, 75_000, "active")


def test_an_admin_refuses_on_the_page_without_filling_limits_in(world: Any) -> None:
    tenancy = ask(world)
    client = world.client("admin")
    answer = client.post(f"/tenancies/{tenancy.pk}/review/", {"decision": "refuse", "reason": ""})
    assert answer.status_code == 422
    assert list(answer.context["form"].errors) == ["reason"]
    client.post(f"/tenancies/{tenancy.pk}/review/", {"decision": "refuse", "reason": "No supply."})
    tenancy.refresh_from_db()
    assert (tenancy.status, tenancy.reason) == ("refused", "No supply.")
    assert "No supply." in text(world.client("tenant").get(f"/tenancies/{tenancy.pk}/"))


def test_nobody_reviews_their_own(world: Any) -> None:
    own = ask(world, world.users["admin"])
    assert world.client("admin").get(f"/tenancies/{own.pk}/review/").status_code == 403
    assert world.client("admin").post(f"/tenancies/{own.pk}/review/", GRANT).status_code == 403


def test_a_key_is_shown_once(world: Any) -> None:
    tenancy = grant(world)
    client = world.client("tenant")
    shown = client.post("/keys/new/", {"tenancy": tenancy.pk, "name": "search"}, follow=True)
    secret = shown.context["text"]
    assert secret in text(shown)
    assert "no-store" in shown.headers["Cache-Control"]
    for path in ("/keys/", f"/tenancies/{tenancy.pk}/", "/prefill/"):
        assert secret not in text(client.get(path))
    key = ApiKey.objects.get()
    replaced = client.post(f"/keys/{key.pk}/replace/", {"overlap_h": "1"}, follow=True)
    assert replaced.context["text"] != secret
    assert client.post(f"/keys/{key.pk}/revoke/").status_code == 302
    assert ApiKey.objects.live().count() == 1


@pytest.mark.parametrize("overlap", ["nan", "-1", "1e9", "soon"])
def test_an_overlap_that_is_none_is_refused(world: Any, overlap: str) -> None:
    key, _ = give_key(world)
    answer = world.client("tenant").post(f"/keys/{key.pk}/replace/", {"overlap_h": overlap})
    assert answer.status_code == 422
    assert "overlap_h" in answer.context["form"].errors


def whole(answer: Any) -> str:
    """An answer that is streamed as the site's server reads it: piece by piece, in an event loop."""

    async def read() -> bytes:
        return b"".join([piece async for piece in answer])

    text: str = async_to_sync(read)().decode()
    return text


def test_exports_have_every_event_of_the_filter(world: Any) -> None:
    tenancy = grant(world, ask(world, name="=SUM(A1)"))
    for i in range(60):
        refused = {"outcome": Outcome.REFUSED, "reason": "no_bubble", "ttft_ms": None}
        use(tenancy, i, **(refused if i % 3 == 0 else {}))
    client = world.client("tenant")
    lines = whole(client.get("/usage/export.jsonl?outcome=delivered")).splitlines()
    assert sum(json.loads(line)["charge_microusd"] for line in lines) == 40 * 60
    table = list(csv.DictReader(io.StringIO(whole(client.get("/usage/export.csv")))))
    assert len(table) == 60
    assert table[0]["tenancy"] == "'=SUM(A1)"
    assert client.get("/usage/export.xls").status_code == 404


def test_a_statement_adds_up_the_month(world: Any) -> None:
    tenancy = grant(world)
    last_month = timezone.now().replace(day=1) - timedelta(days=1)
    use(tenancy, 0)
    use(tenancy, 1, outcome=Outcome.REFUSED, reason="ttft", ttft_ms=None)
    use(tenancy, 2, at=last_month)
    other = grant(world, ask(world, second_tenant(world), name="Halden Labs"))
    use(other)
    client = world.client("tenant")
    row = client.get("/usage/statement/").context["table"].rows[0].record
    assert (row["requests"], row["delivered"], row["tokens"], row["charged"]) == (2, 1, 1_000, 60)
    assert len(client.get("/usage/statement/").context["table"].rows) == 1
    assert len(world.client("admin").get("/usage/statement/").context["table"].rows) == 2
    past = client.get(f"/usage/statement/?month={last_month:%Y-%m}&format=csv")
    assert text(past).splitlines()[1] == f"{last_month:%Y-%m},Fathom Search,tenant,60000,1,1,1000,60"
    for odd in ("2026-13", "x", "0001-01", "9999-12", ""):
        assert client.get(f"/usage/statement/?month={odd}").status_code == 200


def test_the_overview_tells_admins_who_waits(world: Any) -> None:
    tenancy = ask(world)
    shown = world.client("admin").get("/").context["attention"]
    assert any(tenancy.name in item["title"] and item["url"].endswith("/review/") for item in shown)
    shown = world.client("viewer").get("/").context["attention"]
    assert not any(tenancy.name in item["title"] for item in shown)


def test_a_suspension_and_its_end_on_the_page(world: Any) -> None:
    tenancy = grant(world)
    client = world.client("admin")
    client.post(f"/tenancies/{tenancy.pk}/suspend/", {"reason": "Bursts."})
    assert "Suspended" in text(client.get(f"/tenancies/{tenancy.pk}/"))
    client.post(f"/tenancies/{tenancy.pk}/resume/", {"confirmed": "yes"})
    assert rows("resume").count() == 1


def test_a_renewal_is_asked_for_and_taken_back(world: Any) -> None:
    tenancy = grant(world)
    client = world.client("tenant")
    assert client.post(f"/tenancies/{tenancy.pk}/renew/", {"days": "367"}).status_code == 422
    client.post(f"/tenancies/{tenancy.pk}/renew/", {"days": "30"})
    page = world.client("admin").get(f"/tenancies/{tenancy.pk}/review/")
    assert page.context["form"].initial["days"] == 30
    client.post(f"/tenancies/{tenancy.pk}/withdraw/")
    assert not Tenancy.objects.to_decide().exists()


def test_the_example_is_for_a_model_that_the_tenant_has(world: Any) -> None:
    services.make_key(world.users["tenant"], grant(world), "search")
    page = world.client("tenant").get("/prefill/")
    assert all('"llama-3-8b"' in example for _, _, example in page.context["examples"])
    assert "llama-3-8b@east" in text(page)


def test_the_examples_of_the_tenants_page_are_whole(world: Any) -> None:
    """The shell reads the command as it stands, and Python the program."""
    give_key(world)
    page = text(world.client("tenant").get("/prefill/"))
    curl, python = (
        html.unescape(example)
        for example in re.findall(r'<code id="example-[a-z]+"[^>]*>(.*?)</code>', page, re.DOTALL)
    )
    words = shlex.split(curl)
    assert words[:2] == ["curl", "http://testserver/v1/completions"]
    assert json.loads(words[words.index("-d") + 1])["model"] == MODEL
    assert "Authorization: Bearer $MERIDIAN_KEY" in words
    ast.parse(python)
    assert 'base_url="http://testserver/v1"' in python


@pytest.mark.parametrize("name", ["tokens_per_min", "longest_prompt", "ttft_ms", "days"])
def test_a_limit_beyond_all_bounds_is_refused_at_its_field(world: Any, name: str) -> None:
    client, url = world.client("admin"), f"/tenancies/{ask(world).pk}/review/"
    form = client.get(url).context["form"]
    shown = {field.name: field.value() for field in form if field.value() is not None}
    answer = client.post(url, {**shown, "price": "1", "decision": "approve", name: "9" * 400})
    assert answer.status_code == 422
    assert name in answer.context["form"].errors
