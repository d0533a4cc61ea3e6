"""A web process that dies in the middle of answers takes no charge with it, and makes none up."""

import os
import random
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta

import httpx2 as httpx
import pytest
from django.urls import reverse
from django.utils import timezone

from engine.prefill.messages import Fate
from engine.serve.delivered import DeliveryRecord
from engine.serve.pipeline import PrefillPipeline
from tests.runtime.prefill.checkpoints import pipeline, save
from tests.site.test_completions import PROMPT, Shop
from tests.site.test_completions import shop as shop
from tests.site.test_ingest import url_of_test_database
from tests.site.test_tenancy_pages import whole
from tests.waiting import LIMIT_S, until
from webapp.live.models import PrefillCoordinator
from webapp.prefill.gateway import settling
from webapp.prefill.models import OpenRequest, Outcome, UsageEvent, charge_of
from webapp.prefill.services import open_request

NOW = timedelta(0)
KILLS, STREAMS = 50, 3


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> PrefillPipeline:
    return pipeline(save(tmp_path_factory.mktemp("model")), 2)


def opened(shop: Shop, request: str, *, ago: timedelta = timedelta(minutes=5)) -> OpenRequest:
    """A request whose web process is gone."""
    dc = shop.key.tenancy.places.get(dc__name="east").dc
    return open_request(shop.key, request_id=request, dc=dc, at=timezone.now() - ago)


FATES: tuple[tuple[Fate, int, str], ...] = (
    ("done", 4, ""),
    ("done", 0, ""),  # the model ended the answer at once
    ("cancelled", 3, ""),
    ("cancelled", 0, "site_lost"),
    ("training", 0, "training"),
    ("decode", 2, "decode"),
    ("stopped", 1, "stopped"),
    ("unknown", 0, "site_lost"),
)


@pytest.mark.parametrize(("fate", "tokens", "reason"), FATES)
def test_what_the_coordinator_delivered_is_charged(shop: Shop, fate: Fate, tokens: int, reason: str) -> None:
    opened(shop, "r")
    record = shop.coordinator.delivered
    if fate != "unknown":
        record.accepted("r", 40)
        for _ in range(tokens):
            record.token("r", 12.5)
        record.ended("r", fate, 12.5 if fate == "done" else None)
    assert settling.settle_open_requests() == 1
    event = UsageEvent.objects.get()
    price = shop.key.tenancy.price or 0
    assert (event.outcome, event.reason) == (Outcome.ABORTED if reason else Outcome.DELIVERED, reason)
    assert event.charge == (0 if reason else charge_of(40, price))
    assert (event.dc.name, event.key, event.ttft_ms) == ("east", shop.key, None if reason else 12.5)
    assert not OpenRequest.objects.exists()
    assert settling.settle_open_requests() == 0
    assert UsageEvent.objects.count() == 1


def test_what_is_under_way_or_young_stays_open(shop: Shop) -> None:
    opened(shop, "streams")
    shop.coordinator.delivered.accepted("streams", 40)
    opened(shop, "young", ago=timedelta(seconds=5))
    assert settling.settle_open_requests() == 0
    assert OpenRequest.objects.count() == 2


def test_a_coordinator_that_does_not_answer_is_waited_for_and_then_nothing_is_charged(shop: Shop) -> None:
    opened(shop, "r")
    shop.coordinator.delivered.accepted("r", 40)
    shop.coordinator.delivered.token("r", 1.0)
    shop.coordinator.close_port()
    assert settling.settle_open_requests() == 0, "it may come back"
    assert settling.settle_open_requests(give_up_after=timedelta(minutes=1)) == 1
    event = UsageEvent.objects.get()
    assert (event.outcome, event.reason, event.charge) == (Outcome.ABORTED, "site_lost", 0)


def test_a_request_of_a_clock_that_was_set_back_since_is_closed_too(shop: Shop) -> None:
    opened(shop, "r", ago=-timedelta(hours=1))
    opened(shop, "young", ago=-timedelta(seconds=5))
    assert settling.settle_open_requests() == 1
    assert UsageEvent.objects.get().request_id == "r"


def test_an_open_request_is_shown_and_no_charge(shop: Shop) -> None:
    opened(shop, "r")
    page = shop.world.client("tenant").get("/usage/").content.decode()
    assert "1 request in progress" in page
    assert "No requests yet" in page
    csv = whole(shop.world.client("tenant").get(reverse("prefill:usage-export", args=["csv"])))
    assert csv.count("\n") == 1, "the head alone"


def test_an_answered_request_leaves_nothing_open(shop: Shop) -> None:
    answer = shop.post("/v1/completions", {"model": "llama-3-8b", "prompt": PROMPT, "max_tokens": 2})
    assert answer.status_code == 200
    shop.usage()
    shop.post("/v1/completions", {"model": "llama-3-8b", "prompt": "x" * 500, "max_tokens": 2})
    shop.usage(2)
    assert not OpenRequest.objects.exists()


def test_the_record_of_a_coordinator_is_bounded() -> None:
    record = DeliveryRecord(most=3)
    for number in range(5):
        record.accepted(str(number), 1)
        record.token(str(number), 1.0)
    assert [record.account(str(number)).tokens for number in range(5)] == [0, 0, 1, 1, 1]
    record.token("0", 1.0)
    record.ended("0", "done")
    assert record.account("0").fate == "unknown"


class WebProcess:
    """Web processes of the site, one at a time."""

    def __init__(self) -> None:
        environment = {**os.environ, "DATABASE_URL": url_of_test_database(), "MERIDIAN_DEBUG": ""}
        self._forks = subprocess.Popen(
            [sys.executable, "-m", "tests.security.gateway_process"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env=environment,
        )

    def start(self) -> tuple[int, str]:
        """(process, address) of a new one."""
        assert self._forks.stdin is not None
        assert self._forks.stdout is not None
        self._forks.stdin.write("\n")
        self._forks.stdin.flush()
        pid, port = self._forks.stdout.readline().split()
        return int(pid), f"http://127.0.0.1:{port}"

    def close(self) -> None:
        assert self._forks.stdin is not None
        self._forks.stdin.close()
        self._forks.wait(LIMIT_S)


@contextmanager
def web_processes() -> Iterator[WebProcess]:
    process = WebProcess()
    try:
        yield process
    finally:
        process.close()


def _stream(url: str, secret: str, taken: list[int], number: int) -> None:
    """Read an answer until the site is gone; counts the tokens that came."""
    body = {"model": "llama-3-8b", "prompt": PROMPT, "max_tokens": 24, "stream": True}
    headers = {"Authorization": f"Bearer {secret}"}
    try:
        with httpx.stream(
            "POST", f"{url}/v1/completions", json=body, headers=headers, timeout=LIMIT_S
        ) as answer:
            for line in answer.iter_lines():
                taken[number] += line.startswith("data: {") and '"choices"' in line
    except httpx.HTTPError:
        pass  # killed


@pytest.mark.long
@pytest.mark.timeout(1200)
def test_over_random_kills_delivered_is_charged(shop: Shop) -> None:
    """50 web processes die while three clients read; each request that delivered a token is charged, once."""
    random_s = random.Random(7)
    tenancy = shop.key.tenancy
    type(tenancy).objects.filter(pk=tenancy.pk).update(tokens_per_min=1_000_000)
    tenancy.refresh_from_db()
    # Nobody repeats that the coordinator is there; it must count as heard of however long this takes.
    PrefillCoordinator.objects.update(heard_at=timezone.now() + timedelta(days=1))
    came: list[int] = []
    with web_processes() as web:
        for _ in range(KILLS):
            pid, url = web.start()
            taken = [0] * STREAMS
            before = len(shop.coordinator.asked)
            readers = [
                threading.Thread(target=_stream, args=(url, shop.secret, taken, number), daemon=True)
                for number in range(STREAMS)
            ]
            for reader in readers:
                reader.start()
            until(lambda before=before: len(shop.coordinator.asked) > before, "a request")
            threading.Event().wait(random_s.uniform(0.0, 0.4))
            os.kill(pid, signal.SIGKILL)
            for reader in readers:
                reader.join(LIMIT_S)
                assert not reader.is_alive()
            came += taken
    record = shop.coordinator.delivered
    requests = [one.request for one in shop.coordinator.asked]
    until(lambda: all(record.account(one).fate != "open" for one in requests), "the coordinator's end")
    until(lambda: not settling.settle_open_requests(after=NOW) and not OpenRequest.objects.exists())
    accounts = {one: record.account(one) for one in requests}
    delivered = {one for one, account in accounts.items() if account.is_delivered}
    charged = set(UsageEvent.objects.filter(outcome=Outcome.DELIVERED).values_list("request_id", flat=True))
    assert charged == delivered
    assert UsageEvent.objects.filter(request_id__in=delivered, charge=0).count() == 0
    tokens = sum(accounts[one].prompt_tokens for one in delivered)
    assert sum(UsageEvent.objects.filter(charge__gt=0).values_list("prompt_tokens", flat=True)) == tokens
    assert sum(count > 0 for count in came) <= len(delivered), "nobody read what is not charged"
    assert len(delivered) > KILLS // 2, "the kills came in the middle of answers"
    assert any(account.fate == "cancelled" and account.tokens for account in accounts.values())
