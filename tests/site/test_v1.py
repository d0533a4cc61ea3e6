"""The API under /v1/: who gets in, what is said, what is refused and how."""

import json
import logging
import time
from datetime import timedelta
from typing import Any

import pytest
from django.db import connection
from django.test import Client
from django.utils import timezone
from redis import RedisError

from engine.prefill.placement import Refusal
from tests.site.coordinators import coordinator_event, prefill_event, say
from tests.site.tenancies import ask, end, give_key, grant, limits, second_tenant
from tests.site.test_tenancy_pages import train
from webapp.accounts.models import AuditEntry
from webapp.common import broker
from webapp.live.models import IterationStat
from webapp.prefill import quota, quote, services
from webapp.prefill.bearer import caller
from webapp.prefill.gateway.admission import admit, write_usage
from webapp.prefill.gateway.calls import read
from webapp.prefill.models import ApiKey, Outcome, Tenancy
from webapp.prefill.quote import Quote

QUOTE = "/v1/prefill/quote"


@pytest.fixture(autouse=True)
def _fresh(db: Any) -> Any:
    """Counters and controllers of an earlier test, whose rows are gone, are forgotten."""
    quote._found.clear()
    for key in (
        *broker.client().scan_iter("control:quota:*"),
        *broker.client().scan_iter("control:uses:v1:*"),
    ):
        broker.client().delete(key)


def call(key: str, body: Any = None, path: str = QUOTE) -> Any:
    headers = {"Authorization": f"Bearer {key}"} if key else {}
    client = Client(headers=headers)
    if body is None:
        return client.get(path)
    data = body if isinstance(body, str | bytes) else json.dumps(body)
    return client.post(path, data, content_type="application/json")


def ask_for(tokens: Any, name: str = "llama-3-8b@east") -> dict[str, Any]:
    return {"model": name, "prompt_tokens": tokens}


def beat(run: Any, *, ago_s: float = 0.1) -> None:
    """The run has just ended an iteration."""
    now = time.time() - ago_s
    IterationStat.objects.update_or_create(run=run, iteration=3, defaults={"start": now - 0.7, "end": now})
    say(coordinator_event(run))


def code(answer: Any) -> str:
    return str(answer.json()["error"]["code"])


def test_models_are_those_of_the_keys_tenancy(world: Any) -> None:
    _, secret = give_key(world)
    grant(world, ask(world, second_tenant(world), name="Other"))
    answer = call(secret, path="/v1/models")
    names = ["llama-3-8b", "llama-3-8b@east", "llama-3-8b@mid"]
    assert {model["id"]: model["open"] for model in answer.json()["data"]} == dict.fromkeys(names, False)
    say(coordinator_event(train(world)))
    opened = {model["id"]: model["open"] for model in call(secret, path="/v1/models").json()["data"]}
    assert opened == dict(zip(names, (True, True, False), strict=True))
    for name in names:
        one = call(secret, path=f"/v1/models/{name}").json()
        assert (one["id"], one["open"]) == (name, opened[name])
    assert answer.json()["data"][0]["object"] == "model"
    assert answer.headers["x-request-id"]
    for name in ("x", "llama-3-8b@west"):
        answer = call(secret, path=f"/v1/models/{name}")
        assert (answer.status_code, code(answer)) == (404, "model_not_found")


def test_a_quote_is_what_the_controller_would_do(world: Any) -> None:
    _, secret = give_key(world)
    beat(train(world))
    answer = call(secret, ask_for(1_000))
    body = answer.json()
    assert answer.status_code == 200, body
    assert body["admitted"] is True
    cell = quote._found["llama-3-8b", world.dcs[0].pk][1][0].cell
    assert body["ttft_ms"] >= cell.latency.ms(1_000) + cell.cache.transfer_ms(1_000) - 0.01
    assert body["ttft_ms"] <= body["ttft_objective_ms"] == 2_000
    assert (body["charge_microusd"], body["price_microusd_per_million_tokens"]) == (60, 60_000)
    assert answer.headers["x-ratelimit-limit-tokens"] == "60000"
    assert answer.headers["x-ratelimit-remaining-tokens"] == "60000"  # a quote takes nothing
    again = [call(secret, ask_for(1_000)).status_code for _ in range(20)]
    assert set(again) == {200}
    assert not quote._found["llama-3-8b", world.dcs[0].pk][1][0].controller.waiting


def test_a_longer_prompt_takes_longer(world: Any) -> None:
    _, secret = give_key(world)
    beat(train(world))
    short, long = (call(secret, ask_for(tokens)).json()["ttft_ms"] for tokens in (128, 4_000))
    assert short < long


def test_a_prompt_is_counted_in_bytes_or_ids(world: Any) -> None:
    _, secret = give_key(world)
    beat(train(world))
    name = "llama-3-8b@east"
    assert call(secret, {"model": name, "prompt": "Grüße"}).json()["prompt_tokens"] == 7
    assert call(secret, {"model": name, "prompt": [1, 2, 3]}).json()["prompt_tokens"] == 3
    assert code(call(secret, {"model": name, "prompt": "x" * 5_000})) == "tokens_unknown"


def test_without_a_run_the_answer_is_503_with_when_to_ask_again(world: Any) -> None:
    _, secret = give_key(world)
    answer = call(secret, ask_for(100))
    assert (answer.status_code, code(answer), answer.headers["Retry-After"]) == (503, "no_bubble", "30")
    assert answer.json()["error"]["retry_after_ms"] == 30_000


def test_without_an_open_coordinator_nothing_is_admitted(world: Any) -> None:
    _, secret = give_key(world)
    run = train(world)
    beat(run)
    assert call(secret, ask_for(100)).json()["basis"] == "schedule"
    say(coordinator_event(run, state="closed"))
    assert code(call(secret, ask_for(100))) == "no_bubble"


def test_a_model_that_only_a_coordinator_knows_can_be_asked_for_and_quoted(world: Any) -> None:
    run = train(world)
    say(coordinator_event(run, model="tiny-bytes"))
    page = world.client("tenant").get("/tenancies/new/").content.decode()
    assert "tiny-bytes" in page
    stranger = world.client("stranger").get("/tenancies/new/").content.decode()
    assert "tiny-bytes" not in stranger
    tenancy = Tenancy(
        team=world.team,
        name="Tiny",
        model="tiny-bytes",
        asked_tokens_per_min=90_000,
        asked_ttft_ms=400,
        asked_days=9,
    )
    services.request_tenancy(world.users["tenant"], tenancy, world.dcs[:1])
    assert world.client("admin").get(f"/tenancies/{tenancy.pk}/review/").status_code == 200
    granted = services.approve_tenancy(world.users["admin"], tenancy, limits(), world.dcs[:1], oversell=True)
    _, secret = give_key(world, granted)
    body = call(secret, ask_for(100, "tiny-bytes@east")).json()
    assert (body["admitted"], body["basis"], body["ttft_ms"]) == (True, "coordinator", None)
    say(prefill_event(run, paused=True))
    assert code(call(secret, ask_for(100, "tiny-bytes@east"))) == "training_paused"


def test_a_bare_model_is_quoted_where_it_would_be_done_first(world: Any) -> None:
    _, secret = give_key(world)
    assert code(call(secret, ask_for(500, "llama-3-8b"))) == "no_bubble"
    beat(train(world))  # it trains in both of the tenancy's data centres, and sells in the east alone
    bare, east = (call(secret, ask_for(500, name)).json() for name in ("llama-3-8b", "llama-3-8b@east"))
    assert (bare["model"], bare["datacenter"]) == ("llama-3-8b", "east")
    assert (bare["admitted"], bare["basis"]) == (True, "schedule")
    assert east["datacenter"] == "east"
    assert call(secret, ask_for(500, "llama-3-8b@mid")).status_code == 503


def test_of_several_answers_the_soonest_place_counts_else_the_soonest_try() -> None:
    place, later, untimed = (Quote(queue_ms=0.0, ttft_ms=ms) for ms in (30.0, 70.0, None))
    soon, never = (Refusal(reason="no_bubble", retry_after_ms=ms) for ms in (200.0, None))
    assert quote.soonest([never, later, soon, untimed, place]) is place
    assert quote.soonest([soon, untimed]) is untimed
    assert quote.soonest([never, soon]) is soon
    assert quote.soonest([never]) is never


def test_a_run_that_is_not_heard_of_is_not_counted_on(world: Any) -> None:
    _, secret = give_key(world)
    beat(train(world), ago_s=60)
    assert code(call(secret, ask_for(100))) == "no_bubble"


def test_a_run_that_has_ended_is_not_counted_on_although_it_was_a_moment_ago(world: Any) -> None:
    _, secret = give_key(world)
    run = train(world)
    beat(run)
    assert call(secret, ask_for(100)).status_code == 200
    type(run).objects.filter(pk=run.pk).update(status="failed", finished_at=timezone.now())
    assert code(call(secret, ask_for(100))) == "no_bubble"


def test_what_cannot_be_in_time_is_refused_as_503_ttft(world: Any) -> None:
    _, secret = give_key(world, grant(world, ttft_ms=5))
    beat(train(world))
    answer = call(secret, ask_for(4_000))
    assert (answer.status_code, code(answer)) == (503, "ttft")


@pytest.mark.parametrize(
    ("tokens", "status", "why"), [(8_193, 400, "context_length_exceeded"), (4_097, 413, "prompt_too_long")]
)
def test_prompts_that_are_too_long(world: Any, tokens: int, status: int, why: str) -> None:
    _, secret = give_key(world)
    answer = call(secret, ask_for(tokens))
    assert (answer.status_code, code(answer)) == (status, why)


@pytest.mark.parametrize("key", ["", "mrd-nobody", "x", "mrd-" + "x" * 500, "mrd-\x7f"])
def test_no_key_no_answer(world: Any, key: str) -> None:
    answer = call(key, path="/v1/models")
    assert answer.status_code == 401
    assert answer.headers["WWW-Authenticate"] == "Bearer"
    assert set(answer.json()["error"]) == {"message", "type", "param", "code"}


def test_a_revoked_key_is_refused_at_once_and_a_replaced_one_at_its_end(world: Any) -> None:
    key, secret = give_key(world)
    _, new = services.rotate_key(key.tenancy.tenant, key, 1)
    assert call(secret, path="/v1/models").status_code == 200
    assert call(new, path="/v1/models").status_code == 200
    ApiKey.objects.filter(pk=key.pk).update(expires_at=timezone.now() - timedelta(seconds=1))
    assert call(secret, path="/v1/models").status_code == 401
    services.revoke_key(key.tenancy.tenant, ApiKey.objects.exclude(pk=key.pk).get())
    assert call(new, path="/v1/models").status_code == 401


def test_what_is_not_in_force_is_403(world: Any) -> None:
    key, secret = give_key(world)
    admin, tenancy = world.users["admin"], key.tenancy
    services.suspend_tenancy(admin, tenancy, "Bursts.")
    answer = call(secret, path="/v1/models")
    assert (answer.status_code, code(answer)) == (403, "tenancy_suspended")
    services.resume_tenancy(admin, tenancy, oversell=True)
    assert call(secret, path="/v1/models").status_code == 200
    end(tenancy)
    assert code(call(secret, path="/v1/models")) == "tenancy_ended"
    Tenancy.objects.filter(pk=tenancy.pk).update(ends_at=timezone.now() + timedelta(days=1))
    type(tenancy.tenant).objects.filter(pk=tenancy.tenant_id).update(is_active=False)
    assert code(call(secret, path="/v1/models")) == "account_closed"


def test_what_is_anothers_does_not_exist(world: Any) -> None:
    _, secret = give_key(world)
    for name in ("llama-3-8b@west", "llama-3-8b@nowhere", "gpt-5@east", "east", ""):
        answer = call(secret, ask_for(100, name))
        assert (answer.status_code, code(answer)) == (404, "model_not_found"), name


def test_a_key_opens_nothing_else_and_a_session_not_the_api(world: Any) -> None:
    _, secret = give_key(world)
    for path in ("/", "/tenancies/", "/usage/export.csv", "/runs/", "/account/"):
        answer = Client(headers={"Authorization": f"Bearer {secret}"}).get(path)
        assert answer.headers["Location"].startswith("/login/"), path
    for name in ("tenant", "admin"):
        assert world.client(name).get("/v1/models").status_code == 401


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"{",
        b"[1]",
        b"null",
        b"\xff",
        "[" * 100_000,
        '{"model": 3, "prompt_tokens": 1}',
        {"model": "llama-3-8b@east"},
        {**ask_for(1), "prompt": "x"},
        ask_for(0),
        ask_for(-1),
        ask_for(10**12),
        ask_for("7"),
        ask_for(True),
        ask_for(1.5),
        {**ask_for(1), "temperature": 1},
        {"model": "llama-3-8b@east", "prompt": ""},
        {"model": "llama-3-8b@east", "prompt": ["x"]},
        '{"model": "llama-3-8b@east", "prompt_tokens": NaN}',
    ],
)
def test_what_makes_no_sense_is_400(world: Any, body: Any) -> None:
    _, secret = give_key(world)
    answer = call(secret, body)
    assert answer.status_code == 400, answer.content
    assert answer.json()["error"]["type"] == "invalid_request_error"


def test_a_body_that_is_too_large_is_413(world: Any, settings: Any) -> None:
    _, secret = give_key(world)
    settings.DATA_UPLOAD_MAX_MEMORY_SIZE = 1_000
    answer = call(secret, {"model": "llama-3-8b@east", "prompt": "x" * 2_000})
    assert (answer.status_code, code(answer)) == (413, "request_too_large")


def test_other_methods_and_addresses(world: Any) -> None:
    _, secret = give_key(world)
    assert call(secret, path=QUOTE).status_code == 405
    assert call(secret, path=QUOTE).headers["Allow"] == "POST"
    assert Client(headers={"Authorization": f"Bearer {secret}"}).head("/v1/models").status_code == 200
    assert call(secret, {}, path="/v1/models").headers["Allow"] == "GET"
    for path in ("/v1/", "/v1/embeddings", "/v1/files", "/v1/chat"):
        answer = call(secret, {"prompt": "x"}, path=path)
        assert (answer.status_code, code(answer)) == (404, "unknown_url")


def test_used_up_tokens_are_429_until_they_are_back(world: Any) -> None:
    key, secret = give_key(world, grant(world, tokens_per_min=6_000))  # 100 a second
    began = time.monotonic()
    assert quota.take(key.tenancy_id, 5_000, 6_000).ok
    answer = call(secret, ask_for(4_000))
    back = 100 * (time.monotonic() - began) + 1
    assert (answer.status_code, code(answer)) == (429, "rate_limit_exceeded")
    left = int(answer.headers["x-ratelimit-remaining-tokens"])
    assert 1_000 <= left <= 1_000 + back
    assert abs(int(answer.headers["Retry-After"]) - (4_000 - left) / 100) <= 1


def test_the_bucket_never_gives_more_than_it_holds(world: Any) -> None:
    from concurrent.futures import ThreadPoolExecutor

    key, _ = give_key(world)
    with ThreadPoolExecutor(8) as pool:
        drawn = list(pool.map(lambda _: quota.take(key.tenancy_id, 1_000, 60_000), range(120)))
    assert sum(one.ok for one in drawn) in (60, 61)  # and what came back meanwhile
    assert all(one.wait_s > 0 for one in drawn if not one.ok)
    assert quota.look(key.tenancy_id, 0, 60_000).remaining < 2_000


def test_without_the_broker_nothing_is_sold(world: Any, monkeypatch: Any) -> None:
    _, secret = give_key(world)

    def away(*args: Any, **kwargs: Any) -> Any:
        raise RedisError("away")

    monkeypatch.setattr(quota, "look", away)
    answer = call(secret, ask_for(100))
    assert (answer.status_code, code(answer), answer.headers["Retry-After"]) == (503, "unavailable", "5")


def test_a_request_asks_the_database_five_times_before_it_is_handed_in(
    world: Any, rf: Any, django_assert_num_queries: Any
) -> None:
    """The key with its tenancy, its data centres, the membership of its owner; the coordinators; it is
    written down as open."""
    _, secret = give_key(world)
    say(coordinator_event(train(world)))
    request = rf.post("/v1/completions", headers={"Authorization": f"Bearer {secret}"})
    caller(request)  # notes that the key was used
    with django_assert_num_queries(3):
        key = caller(request)
    body = read("completion", {"model": "llama-3-8b", "prompt": "Once", "max_tokens": 1})
    with django_assert_num_queries(2):
        admission = admit(key, body)
    assert [coordinator.dc_name for coordinator in admission.coordinators] == ["east"]
    # Was it written; the event, in a savepoint; it is no longer open; all in a transaction, here a savepoint.
    with django_assert_num_queries(7):
        write_usage(admission, outcome=Outcome.REFUSED, reason="no_bubble", tokens=0, ttft_ms=None)


def test_calls_in_a_minute_are_limited(world: Any, monkeypatch: Any) -> None:
    _, secret = give_key(world)
    monkeypatch.setattr("webapp.prefill.bearer.CALLS_PER_MIN", 3)
    assert [call(secret, path="/v1/models").status_code for _ in range(4)] == [200, 200, 200, 429]


def test_no_prompt_and_no_key_is_kept_anywhere(world: Any, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    _, secret = give_key(world)
    beat(train(world))
    marker = "sesquipedalian-marker"
    for body in (
        {"model": "llama-3-8b@east", "prompt": marker},
        {"model": "llama-3-8b@east", "prompt": [marker]},
        f'{{"prompt": "{marker}"',
    ):
        answer = call(secret, body)
        assert marker not in answer.content.decode()
    call(secret, path=f"/v1/{marker}")
    call(secret, path=f"/v1/models/{marker}")
    assert marker not in caplog.text
    assert secret not in caplog.text
    with connection.cursor() as cursor:
        for table in connection.introspection.table_names():
            query = f'SELECT count(*) FROM "{table}" AS t WHERE t::text LIKE %s OR t::text LIKE %s'
            cursor.execute(query, [f"%{marker}%", f"%{secret}%"])
            assert cursor.fetchone() == (0,), table
    assert not AuditEntry.objects.filter(message__contains=marker).exists()
