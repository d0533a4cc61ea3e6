"""Completions end to end: the official client, the site behind uvicorn, a coordinator that computes."""

import asyncio
import ipaddress
import json
import logging
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from io import StringIO
from typing import TYPE_CHECKING, Any

import httpx2 as httpx
import pytest
from django.core.management import call_command
from django.db import connections, transaction

from engine.control.coordinator_wire import COORDINATOR_RANK
from engine.serve.pipeline import PrefillPipeline
from tests.runtime.prefill.checkpoints import pipeline, save
from tests.site.coordinators import coordinator_event, say
from tests.site.live_coordinator import CONTEXT, LiveCoordinator, expected, live_coordinator, text_of
from tests.site.live_site import live_site
from tests.site.tenancies import give_key, grant
from tests.site.test_tenancy_pages import train
from tests.waiting import LIMIT_S, until
from webapp.common import broker
from webapp.edge.bodies import InMemory
from webapp.jobs.models import Run
from webapp.prefill import quota, services
from webapp.prefill.gateway import batches
from webapp.prefill.gateway.views import open_answers
from webapp.prefill.models import ApiKey, Outcome, UsageEvent, charge_of

if TYPE_CHECKING:
    import openai  # tests that use it import it themselves: every test process would

PROMPT = "The quick brown fox, unheard of elsewhere,"
MODEL = "llama-3-8b"
LIMIT = 1_500  # tokens a minute


@dataclass
class Shop:
    """A site that sells, with a coordinator in east. client : has the tenant's key and never retries."""

    url: str
    world: Any
    run: Run
    key: ApiKey
    secret: str
    coordinator: LiveCoordinator
    client: "openai.OpenAI"
    open_coordinator: Callable[..., LiveCoordinator]

    def post(self, path: str, body: Any, *, key: str | None = None, **headers: str) -> Any:
        token = self.secret if key is None else key
        sent = {"content": body} if isinstance(body, bytes) else {"json": body}
        return httpx.post(
            self.url + path,
            headers={**({"Authorization": f"Bearer {token}"} if token else {}), **headers},
            timeout=LIMIT_S,
            **sent,
        )

    def usage(self, count: int = 1) -> list[UsageEvent]:
        """The events, once there are `count`."""
        return until(
            lambda: (rows := list(UsageEvent.objects.order_by("pk"))) and len(rows) >= count and rows
        )


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> PrefillPipeline:
    return pipeline(save(tmp_path_factory.mktemp("model")), 2)


@pytest.fixture
def shop(transactional_db: Any, model: PrefillPipeline, monkeypatch: pytest.MonkeyPatch) -> Iterator[Shop]:
    import openai

    from tests.site.world import make_world

    # Coordinators are heard of once here: on a slow machine they would be silent before all is asked.
    monkeypatch.setattr("webapp.live.models.COORDINATOR_SILENT_S", 10 * LIMIT_S)
    for key in (
        *broker.client().scan_iter("control:quota:*"),
        *broker.client().scan_iter("control:uses:v1:*"),
    ):
        broker.client().delete(key)
    with transaction.atomic():
        world = make_world()
        run = train(world)
    key, secret = give_key(world, grant(world, longest_prompt=200, tokens_per_min=LIMIT, ttft_ms=5_000))
    with ExitStack() as stack:

        def open_coordinator(dc: str = "east", **settings: Any) -> LiveCoordinator:
            rank = COORDINATOR_RANK + ["east", "mid", "west"].index(dc)
            coordinator = stack.enter_context(live_coordinator(run, model, rank=rank, **settings))
            say(coordinator_event(run, dc=dc, port=coordinator.port, rank=rank), node=f"{dc}-1")
            return coordinator

        coordinator = open_coordinator()
        url = stack.enter_context(live_site())
        client = openai.OpenAI(api_key=secret, base_url=f"{url}/v1", max_retries=0, timeout=LIMIT_S)
        yield Shop(url, world, run, key, secret, coordinator, client, open_coordinator)
        client.close()
    connections.close_all()


def test_the_official_client_completes_and_chats(shop: Shop, caplog: Any) -> None:
    caplog.set_level(logging.DEBUG)
    east = f"{MODEL}@east"
    raw = shop.client.completions.with_raw_response.create(
        model=east, prompt=PROMPT, max_tokens=5, temperature=0, user="u"
    )
    one = raw.parse()
    text = expected(PROMPT, 5)
    assert (one.choices[0].text, one.choices[0].finish_reason, one.model) == (text, "length", east)
    used = len(PROMPT.encode())
    assert one.usage is not None
    assert (one.usage.prompt_tokens, one.usage.completion_tokens, one.usage.total_tokens) == (
        used,
        5,
        used + 5,
    )
    assert int(raw.headers["x-ratelimit-limit-tokens"]) == LIMIT
    assert raw.headers["x-content-type-options"] == "nosniff"
    assert "set-cookie" not in raw.headers
    assert int(raw.headers["content-length"]) > 0
    assert abs(int(raw.headers["x-ratelimit-remaining-tokens"]) - (LIMIT - used)) <= 100
    pieces = list(
        shop.client.completions.create(
            model=MODEL, prompt=PROMPT, max_tokens=5, stream=True, stream_options={"include_usage": True}
        )
    )
    assert "".join(piece.choices[0].text for piece in pieces if piece.choices) == text
    assert [piece.choices[0].finish_reason for piece in pieces if piece.choices][-1] == "length"
    assert pieces[-1].usage is not None
    assert pieces[-1].usage.prompt_tokens == used
    running = shop.client.completions.create(
        model=MODEL,
        prompt=PROMPT,
        max_tokens=3,
        stream=True,
        stream_options={"include_usage": True, "continuous_usage_stats": True},  # type: ignore[call-overload]
    )
    counts = [(piece.usage.prompt_tokens, piece.usage.completion_tokens) for piece in running if piece.usage]
    assert counts == [(used, 1), (used, 2), (used, 3), (used, 3)]
    messages: Any = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": PROMPT}]
    chat = shop.client.chat.completions.create(model=MODEL, messages=messages, max_completion_tokens=4)
    first_text = expected(f"<system>Be brief.<user>{PROMPT}", 4)
    assert (chat.choices[0].message.content, chat.choices[0].message.role) == (first_text, "assistant")
    with shop.client.chat.completions.create(
        model=MODEL, messages=messages, max_tokens=4, stream=True
    ) as stream:
        deltas = [chunk.choices[0].delta for chunk in stream]
    assert "".join(delta.content or "" for delta in deltas) == first_text
    assert [delta.role for delta in deltas][:2] == ["assistant", None]
    messages += [chat.choices[0].message, {"role": "user", "content": "On."}]  # as its own library has it
    second = shop.client.chat.completions.create(model=MODEL, messages=messages, max_tokens=2)
    second_text = f"<system>Be brief.<user>{PROMPT}<assistant>{first_text}<user>On."
    assert second.choices[0].message.content == expected(second_text, 2)
    assert {names.id for names in shop.client.models.list()} == {MODEL, east, f"{MODEL}@mid"}
    assert shop.client.models.retrieve(east).id == east

    events = shop.usage(6)
    assert [event.outcome for event in events] == [Outcome.DELIVERED] * 6
    assert events[0].request_id == raw.headers["x-request-id"]
    assert [event.charge for event in events] == [charge_of(e.prompt_tokens, 60_000) for e in events]
    assert all(event.ttft_ms is not None and 0 < event.ttft_ms < 5_000 for event in events)
    assert shop.coordinator.lines == 1  # all on one connection
    assert all(0 < (ask.ttft_objective_ms or 0) <= 5_000 for ask in shop.coordinator.asked)
    assert_nowhere(["unheard of", text, first_text], caplog.text)


def assert_nowhere(words: list[str], logged: str) -> None:
    """Neither database, Valkey nor logs hold any of `words`."""
    dump = StringIO()
    call_command("dumpdata", stdout=dump)
    client = broker.client()
    values = [_value(client, key) for key in client.scan_iter("*")]
    for word in words:
        for place, text in (("database", dump.getvalue()), ("logs", logged), ("valkey", "\n".join(values))):
            assert word not in text, place
            assert json.dumps(word)[1:-1] not in text, place


def _value(client: Any, key: str) -> str:
    read = {
        "string": client.get,
        "hash": client.hgetall,
        "list": lambda k: client.lrange(k, 0, -1),
        "set": client.smembers,
        "zset": lambda k: client.zrange(k, 0, -1),
        "stream": client.xrange,
    }
    return f"{key} {read[client.type(key)](key)}"


@contextmanager
def _bucket_that_does_not_fill() -> Iterator[None]:
    """Where the machine is slow, a minute's tokens come back while a test uses them up."""
    fills = "* size / 60"
    assert fills in quota.SCRIPT
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(quota, "SCRIPT", quota.SCRIPT.replace(fills, "* 0"))
        yield


def test_what_is_wrong_has_its_status_and_costs_nothing(shop: Shop, caplog: Any) -> None:
    import openai

    caplog.set_level(logging.DEBUG)
    ask = {"model": MODEL, "prompt": PROMPT, "max_tokens": 2}

    def refused(body: Any, status: int, code: str, path: str = "/v1/completions", **more: Any) -> Any:
        answer = shop.post(path, body, **more)
        error = answer.json()["error"]
        assert (answer.status_code, error["code"]) == (status, code), answer.text
        assert answer.headers["x-request-id"]
        assert PROMPT not in answer.text
        return answer

    refused(ask, 401, "missing_api_key", key="")
    refused(ask, 401, "invalid_api_key", key="mrd-nobody")
    refused({**ask, "model": f"{MODEL}@west"}, 404, "model_not_found")
    refused(b"{", 400, "invalid_json")
    refused(b"[" * 100_000, 400, "invalid_json")
    refused({"model": MODEL, "messages": []}, 400, "unknown_field")
    refused({"model": MODEL, "messages": []}, 400, "invalid_value", "/v1/chat/completions")
    for name, value in (("n", 2), ("logprobs", 1), ("echo", True), ("suffix", PROMPT), ("best_of", 3)):
        assert refused({**ask, name: value}, 400, "unsupported_field").json()["error"]["param"] == name
    chat = {"model": MODEL, "messages": [{"role": "user", "content": PROMPT}]}
    refused({**chat, "tools": [{"type": "function"}]}, 400, "unsupported_field", "/v1/chat/completions")
    calls = {"role": "assistant", "content": "x", "tool_calls": [{"id": "1", "type": "function"}]}
    refused({**chat, "messages": [calls]}, 400, "unsupported_field", "/v1/chat/completions")
    hint = refused({**ask, "stops": "x"}, 400, "unknown_field").json()["error"]["message"]
    assert hint == "Unknown field 'stops': did you mean 'stop'?"
    refused({**ask, "prompt": [PROMPT, PROMPT]}, 400, "invalid_value")
    refused({**ask, "prompt": [1] * 201}, 413, "prompt_too_long")
    refused({**ask, "prompt": "x" * 3_000_000}, 413, "request_too_large")
    assert not UsageEvent.objects.exists()
    refused({**ask, "prompt": PROMPT * 5}, 413, "prompt_too_long")  # the coordinator has counted
    assert shop.usage()[0].reason == "prompt_too_long"
    answer = refused({**ask, "prompt": "y" * 190, "max_tokens": 100}, 400, "context_length_exceeded")
    long = answer.json()["error"]
    text = f"This model's maximum context length is {CONTEXT} tokens. However, you requested 290 tokens"
    assert long["message"].startswith(text)
    assert (long["type"], long["param"]) == ("invalid_request_error", "prompt")
    with pytest.raises(openai.BadRequestError, match="maximum context length") as caught:
        shop.client.completions.create(**{**ask, "prompt": "y" * 190, "max_tokens": 100})
    assert caught.value.code == "context_length_exceeded"
    with pytest.raises(openai.AuthenticationError):
        shop.client.with_options(api_key="mrd-other").completions.create(**ask)
    with pytest.raises(openai.NotFoundError):
        shop.client.completions.create(**{**ask, "model": "gpt-5"})
    with pytest.raises(openai.BadRequestError, match="n is not supported"):
        shop.client.completions.create(**ask, n=2)

    # Bytes hold the quota until the coordinator has counted; what was refused is given back.
    left = int(shop.post("/v1/completions", ask).headers["x-ratelimit-remaining-tokens"])
    assert left >= LIMIT - len(PROMPT.encode()) - 5
    with _bucket_that_does_not_fill():
        burst = [
            shop.post("/v1/completions", {**ask, "prompt": "z" * 190, "max_tokens": 1}) for _ in range(12)
        ]
    limited = [answer for answer in burst if answer.status_code == 429]
    assert 1 <= len(limited) < 12
    assert int(limited[0].headers["Retry-After"]) >= 1
    assert {answer.status_code for answer in burst} <= {200, 429}
    services.revoke_key(shop.key.tenancy.tenant, shop.key)
    refused(ask, 401, "invalid_api_key")
    charged = UsageEvent.objects.exclude(charge=0).count()
    assert charged == 1 + sum(answer.status_code == 200 for answer in burst)
    assert_nowhere(["unheard of", "zzzzzz"], caplog.text)


def test_a_tenancy_has_so_many_answers_open(shop: Shop, settings: Any) -> None:
    """Those that ended, broke off or were refused are no longer open."""
    settings.STREAMS_PER_TENANCY = 1
    ask: Any = {"model": MODEL, "prompt": PROMPT, "max_tokens": 4}
    close = open_answers.open(shop.key.tenancy_id, 1)
    assert close is not None
    refused = shop.post("/v1/completions", ask)
    assert (refused.status_code, refused.json()["error"]["code"]) == (429, "rate_limit_exceeded")
    assert refused.headers["Retry-After"] == "1"
    close()
    with shop.client.completions.create(**ask, stream=True) as stream:
        assert next(iter(stream)).choices
    until(lambda: shop.post("/v1/completions", ask).status_code == 200)
    assert shop.post("/v1/completions", {**ask, "model": "none"}).status_code == 404
    assert shop.post("/v1/completions", ask).status_code == 200


def test_anothers_request_id_changes_nothing(shop: Shop) -> None:
    """Ids are the site's own: what a client sends as one is not looked at."""
    ask = {"model": MODEL, "prompt": PROMPT, "max_tokens": 1}
    first = shop.post("/v1/completions", ask).headers["x-request-id"]
    again = shop.post("/v1/completions", ask, **{"X-Request-ID": first})
    assert again.status_code == 200
    assert again.headers["x-request-id"] != first
    assert len({event.request_id for event in shop.usage(2)}) == 2


def test_a_coordinator_that_dies_is_said_and_not_charged(shop: Shop) -> None:
    import openai

    ask = {"model": MODEL, "prompt": PROMPT, "max_tokens": 8}
    shop.coordinator.broken = 3
    answer = shop.post("/v1/completions", ask)
    assert (answer.status_code, answer.json()["error"]["code"]) == (502, "coordinator_lost")
    assert answer.headers["Retry-After"] == "1"
    stream = shop.client.completions.create(**ask, stream=True)
    pieces = [next(stream) for _ in range(3)]
    assert "".join(piece.choices[0].text for piece in pieces) == expected(PROMPT, 3)
    with pytest.raises(openai.APIError, match="connection to the run was lost"):
        next(stream)
    shop.coordinator.broken = None
    shop.coordinator.fails = "training"
    answer = shop.post("/v1/completions", ask)
    assert (answer.status_code, answer.json()["error"]["code"]) == (503, "training")
    shop.coordinator.fails = ""
    assert shop.post("/v1/completions", ask).status_code == 200  # over a new line
    events = shop.usage(4)
    assert [event.reason for event in events] == ["coordinator_lost", "coordinator_lost", "training", ""]
    assert [event.charge > 0 for event in events] == [False, False, False, True]
    assert shop.coordinator.lines == 3
    shop.coordinator.close_port()
    answer = shop.post("/v1/completions", ask)
    assert (answer.status_code, answer.json()["error"]["code"]) == (502, "coordinator_lost")


def test_a_client_that_leaves_and_one_that_is_slow_hold_nobody_up(shop: Shop, monkeypatch: Any) -> None:
    monkeypatch.setattr("webapp.prefill.gateway.views.CLIENT_S", 1.0)
    body = {"model": MODEL, "prompt": PROMPT, "max_tokens": 4_000, "stream": True}
    headers = {"Authorization": f"Bearer {shop.secret}"}
    shop.coordinator.endless = True
    with httpx.stream(
        "POST", f"{shop.url}/v1/completions", json=body, headers=headers, timeout=LIMIT_S
    ) as left:
        next(left.iter_bytes())
    until(lambda: shop.coordinator.withdrawn)
    assert shop.usage()[0].outcome == Outcome.DELIVERED  # its prefill was there
    with httpx.stream(
        "POST", f"{shop.url}/v1/completions", json=body, headers=headers, timeout=LIMIT_S
    ) as slow:
        pieces = slow.iter_raw(100)
        next(pieces)  # an iterator that is dropped would close the connection
        until(lambda: len(set(shop.coordinator.withdrawn)) == 2)  # it holds too much that was not taken
        shop.coordinator.endless = False
        other = shop.post("/v1/completions", {"model": MODEL, "prompt": PROMPT, "max_tokens": 2})
        assert other.json()["choices"][0]["text"] == expected(PROMPT, 2)
        # The slow one was hung up on, and is written down; its prefill was there, too.
        assert [event.outcome for event in shop.usage(3)] == [Outcome.DELIVERED] * 3
    assert shop.coordinator.lines == 1


def test_a_tenancy_suspended_in_the_middle_is_served_what_was_accepted(shop: Shop) -> None:
    ask = {"model": MODEL, "prompt": PROMPT, "max_tokens": 30}
    stream = shop.client.completions.create(**ask, stream=True)
    text = next(stream).choices[0].text
    services.suspend_tenancy(shop.world.users["admin"], shop.key.tenancy, "Bursts.")
    answer = shop.post("/v1/completions", ask)
    assert (answer.status_code, answer.json()["error"]["code"]) == (403, "tenancy_suspended")
    text += "".join(piece.choices[0].text for piece in stream)
    assert text == expected(PROMPT, 30)
    assert [event.charge for event in shop.usage()] == [charge_of(len(PROMPT.encode()), 60_000)]


def test_a_fault_of_ours_is_said_without_the_prompt(shop: Shop, monkeypatch: Any, caplog: Any) -> None:
    async def broken(*args: Any) -> None:
        raise ValueError(PROMPT)

    monkeypatch.setattr("webapp.prefill.gateway.views.begin", broken)
    answer = shop.post("/v1/completions", {"model": MODEL, "prompt": PROMPT})
    assert (answer.status_code, answer.json()["error"]["code"]) == (500, "internal_error")
    assert "request failed" in caplog.text
    assert PROMPT not in caplog.text + answer.text


async def test_a_body_that_comes_too_slowly_or_too_large_never_reaches_django(settings: Any) -> None:
    """Django would spool it to a disk."""
    settings.BODY_TIMEOUT_S = LIMIT_S
    reached = []

    async def django(scope: Any, receive: Any, send: Any) -> None:
        reached.append(await receive())

    async def pages(scope: Any, receive: Any, send: Any) -> None:
        raise AssertionError("the API is no page")

    async def ask(parts: list[bytes], *, end: bool = True) -> int:
        sent: list[Any] = []
        left = list(parts)

        async def receive() -> Any:
            if not left:
                await asyncio.Event().wait()
            body = left.pop(0)
            return {"type": "http.request", "body": body, "more_body": bool(left) or not end}

        async def send(message: Any) -> None:
            sent.append(message)

        await InMemory(pages, api=django)({"type": "http", "path": "/v1/completions"}, receive, send)
        return sent[0]["status"] if sent else 0

    assert await ask([b"{", b"}"]) == 0
    assert reached == [{"type": "http.request", "body": b"{}", "more_body": False}]
    assert await ask([b"x" * 1_000_000] * 3) == 413
    settings.BODY_TIMEOUT_S = 0.05
    assert await ask([b"{"], end=False) == 408
    assert len(reached) == 1


def test_a_bare_model_goes_to_the_coordinator_that_admits_it(shop: Shop) -> None:
    shop.coordinator.controller.paused = True
    mid = shop.open_coordinator("mid")
    ask = {"prompt": PROMPT, "max_tokens": 1}
    for _ in range(3):
        assert shop.post("/v1/completions", {**ask, "model": MODEL}).status_code == 200
    answer = shop.post("/v1/completions", {**ask, "model": f"{MODEL}@east"})
    assert (answer.status_code, answer.json()["error"]["code"]) == (503, "training_paused")
    assert answer.headers["Retry-After"] == "1"
    assert len(mid.asked) == 3
    assert [event.dc.name for event in shop.usage(4)] == ["mid", "mid", "mid", "east"]
    say(
        coordinator_event(shop.run, state="closed"),
        coordinator_event(shop.run, dc="mid", state="closed"),
        node="east-1",
    )
    say(coordinator_event(shop.run, dc="mid", state="closed"), node="mid-1")
    answer = shop.post("/v1/completions", {**ask, "model": MODEL})
    assert (answer.status_code, answer.json()["error"]["code"]) == (503, "no_bubble")
    assert answer.headers["Retry-After"] == "30"


def test_a_client_that_decodes_itself_is_told_where_the_cache_lies(shop: Shop) -> None:
    import openai

    completion = shop.client.completions.create(
        model=MODEL,
        prompt=[1, 2, 3],
        max_tokens=1,
        extra_body={"kv_transfer_params": {"do_remote_decode": True, "do_remote_prefill": False}},
    )
    params = completion.model_extra["kv_transfer_params"] if completion.model_extra else {}
    assert (params["remote_host"], params["remote_tokens"], params["do_remote_prefill"]) == (
        "10.0.0.1",
        3,
        True,
    )
    assert shop.coordinator.asked[0].hand_over
    with pytest.raises(openai.BadRequestError, match="max_tokens"):
        shop.client.completions.create(
            model=MODEL,
            prompt="x",
            max_tokens=2,
            extra_body={"kv_transfer_params": {"do_remote_decode": True}},
        )


def test_the_data_centre_is_the_one_whose_cache_is_there_soonest(shop: Shop, settings: Any) -> None:
    """Of equal bubbles in east and mid: where the receiver is, if it says where; west has no link to it."""
    settings.DECODE_NETWORKS = [ipaddress.ip_network("10.0.0.0/24")]
    mid = shop.open_coordinator("mid")
    to = {"host": "10.0.0.7", "port": 7100, "request": "theirs", "key": "5a" * 32}

    def sent(datacenter: str) -> Any:
        params = {"do_remote_decode": True, "decode": {**to, "datacenter": datacenter}}
        return shop.post(
            "/v1/completions", {"model": MODEL, "prompt": [1, 2, 3], "kv_transfer_params": params}
        )

    for name in ("east", "mid", "mid", "east"):
        answer = sent(name)
        assert answer.status_code == 200, answer.text
        assert answer.headers["x-meridian-datacenter"] == name
    assert (len(shop.coordinator.asked), len(mid.asked)) == (2, 2), "quotes keep nothing"
    assert [event.dc.name for event in shop.usage(4)] == ["east", "mid", "mid", "east"]
    unknown = sent("nowhere")
    assert (unknown.status_code, unknown.json()["error"]["param"]) == (
        400,
        "kv_transfer_params.decode.datacenter",
    )


def test_a_receiver_is_named_where_the_site_allows_it_and_pays_for_what_it_has(
    shop: Shop, settings: Any
) -> None:
    to = {"host": "10.0.0.7", "port": 7100, "request": "theirs", "key": "5a" * 32}
    params = {"do_remote_decode": True, "decode": to}
    ask = {"model": MODEL, "prompt": [1, 2, 3], "max_tokens": 1, "kv_transfer_params": params}
    refused = shop.post("/v1/completions", ask)
    assert refused.status_code == 400
    assert refused.json()["error"]["param"] == "kv_transfer_params.decode.host"
    assert "10.0.0.7" not in refused.text
    settings.DECODE_NETWORKS = [ipaddress.ip_network("10.0.0.0/24")]
    answer = shop.post("/v1/completions", ask).json()
    handed_over = answer["kv_transfer_params"]
    assert (handed_over["remote_request_id"], handed_over["remote_tokens"]) == ("theirs", 3)
    assert text_of(handed_over["next_token"]) == answer["choices"][0]["text"]
    assert shop.coordinator.asked[0].decode.model_dump(exclude_none=True) == to  # type: ignore[union-attr]
    shop.coordinator.fails, shop.coordinator.says = (
        "decode",
        "the receiver did not take the KV cache: no room",
    )
    lost = shop.post("/v1/completions", ask)
    assert (lost.status_code, lost.json()["error"]["code"]) == (502, "decode")
    assert "did not take the KV cache: no room" in lost.json()["error"]["message"]
    assert [event.charge for event in shop.usage(2)][1] == 0
    assert [event.outcome for event in shop.usage(2)] == [Outcome.DELIVERED, Outcome.ABORTED]


def test_a_batch_waits_for_its_turn_and_says_what_became_of_each_line(shop: Shop) -> None:
    import openai

    texts = [f"{number} times {PROMPT}" for number in range(12)]
    rows: list[Any] = [
        {
            "custom_id": f"c{i}",
            "method": "POST",
            "url": "/v1/completions",
            "body": {"model": MODEL, "prompt": text, "max_tokens": 2},
        }
        for i, text in enumerate(texts)
    ]
    rows.append({**rows[0], "custom_id": "long", "body": {"model": MODEL, "prompt": "x" * 300}})
    rows.append({**rows[0], "custom_id": "wrong", "body": {"model": MODEL, "prompt": "x", "n": 2}})
    body = "\n".join(map(json.dumps, rows)).encode()
    shop.coordinator.controller.paused = True  # at first nothing is admitted
    threading.Timer(0.7, lambda: setattr(shop.coordinator.controller, "paused", False)).start()
    answer = shop.post("/v1/batches", body, **{"Content-Type": "application/x-ndjson"})
    assert (answer.status_code, answer.headers["content-type"]) == (200, "application/x-ndjson")
    by_id = {row["custom_id"]: row["response"] for row in map(json.loads, answer.text.splitlines())}
    assert len(by_id) == 14
    for i, text in enumerate(texts):
        assert by_id[f"c{i}"]["body"]["choices"][0]["text"] == expected(text, 2)
    assert (by_id["long"]["status_code"], by_id["wrong"]["status_code"]) == (413, 400)
    assert len({row["request_id"] for row in by_id.values()}) == 14
    assert {(ask.priority, ask.ttft_objective_ms) for ask in shop.coordinator.asked} == {(-1, None)}
    events = shop.usage(13)
    assert sorted(event.outcome for event in events) == ["delivered"] * 12 + ["refused"]
    assert {event.ttft_objective_ms for event in events} == {None}
    with pytest.raises(openai.BadRequestError, match="never stored"):
        shop.client.batches.create(
            input_file_id="file-1", endpoint="/v1/completions", completion_window="24h"
        )
    for wrong in (b"", b"{}", b"[]\n", body + b"\n" + body, b"{"):
        assert shop.post("/v1/batches", wrong, **{"Content-Type": "application/x-ndjson"}).status_code == 400


def test_a_batch_whose_client_leaves_while_it_is_sent_ends_at_once(monkeypatch: Any) -> None:
    """Its generator is still held, as it is until garbage is collected: it cannot end by itself."""
    working: list[asyncio.Task[None] | None] = []

    async def answer(*_: Any) -> batches.Answer:
        working.append(asyncio.current_task())
        return batches.Answer(custom_id="a", request="r", status=200, body={})

    async def leave() -> None:
        rows: Any = [object()] * 100
        answers = batches._answers(None, rows)  # type: ignore[arg-type]
        took = asyncio.Event()

        async def send() -> None:
            async for _ in answers:
                took.set()
                await asyncio.Event().wait()  # the client takes nothing

        sending = asyncio.create_task(send())
        await took.wait()
        sending.cancel()
        await asyncio.wait([sending, *{task for task in working if task}], timeout=LIMIT_S)
        assert all(task is not None and task.done() for task in working)
        await answers.aclose()

    monkeypatch.setattr(batches, "_answer", answer)
    asyncio.run(leave())
