"""Two sites on one broker would take each other's tasks, events and nodes: the second one is refused."""

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import pytest
import structlog
from django.core.management import call_command
from redis.asyncio import Redis as AsyncRedis

from tests.site.test_ingest import url_of_test_database
from webapp.common import broker
from webapp.computations import claim
from webapp.computations.models import SiteIdentity
from webapp.live.ingest import Ingest

OTHER = {"site": "another", "where": "database shop on db.example"}


@pytest.fixture(autouse=True)
def _unclaimed() -> Iterator[None]:
    broker.client().delete(claim.KEY)
    yield
    broker.client().delete(claim.KEY)


def test_a_site_claims_its_broker_and_finds_it_again(db: Any) -> None:
    claim.claim_broker()
    held = json.loads(broker.client().get(claim.KEY) or "")
    assert held["site"] == str(SiteIdentity.objects.get().identity)
    assert "test" in held["where"]
    claim.claim_broker()
    broker.client().delete(claim.KEY)  # a broker that lost its data
    claim.claim_broker()
    assert json.loads(broker.client().get(claim.KEY) or "") == held


def test_the_broker_of_another_site_is_refused_with_the_remedy(db: Any) -> None:
    broker.client().set(claim.KEY, json.dumps(OTHER))
    with pytest.raises(claim.BrokerTaken, match=r"database shop on db\.example") as error:
        claim.claim_broker()
    assert "claim_broker --take" in str(error.value)
    assert json.loads(broker.client().get(claim.KEY) or "") == OTHER, "the other one keeps it"
    claim.claim_broker(take=True)
    claim.claim_broker()


async def look_again(ingest: Ingest) -> None:
    """What ingest does every few seconds."""
    ingest._looked = 0.0
    await ingest.round()


@pytest.mark.django_db(transaction=True)
async def test_a_broker_that_was_emptied_is_claimed_again(settings: Any) -> None:
    async with AsyncRedis.from_url(settings.VALKEY_URL, decode_responses=True) as client:
        ingest = Ingest(client)
        await look_again(ingest)
        held = await client.get(claim.KEY)
        assert held
        await client.delete(claim.KEY)
        await look_again(ingest)
        assert await client.get(claim.KEY) == held


@pytest.mark.django_db(transaction=True)
async def test_ingest_says_once_that_another_site_took_the_broker(settings: Any) -> None:
    async with AsyncRedis.from_url(settings.VALKEY_URL, decode_responses=True) as client:
        ingest = Ingest(client)
        await client.set(claim.KEY, json.dumps(OTHER))
        with structlog.testing.capture_logs() as logs:
            await look_again(ingest)
            await look_again(ingest)
        errors = [line["error"] for line in logs if line["event"] == "another site uses the broker"]
        assert len(errors) == 1
        assert "database shop on db.example" in errors[0]
        assert json.loads(await client.get(claim.KEY) or "") == OTHER


@pytest.mark.parametrize("command", [("migrate", "--no-input"), ("ingest",), ("claim_broker",)])
def test_no_part_starts_on_the_broker_of_another_site(
    transactional_db: Any, capsys: Any, command: tuple[str, ...]
) -> None:
    broker.client().set(claim.KEY, json.dumps(OTHER))
    with pytest.raises(SystemExit) as error:
        call_command(*command, **({"verbosity": 0} if command[0] == "migrate" else {}))
    assert error.value.code == 2
    output = capsys.readouterr().err
    assert output.count("\n") == 1
    assert output.startswith("meridian: VALKEY_URL: the broker is used by another site")


def test_the_control_worker_does_not_start_on_it_either(transactional_db: Any) -> None:
    broker.client().set(claim.KEY, json.dumps(OTHER))
    done = subprocess.run(
        [sys.executable, "-c", "from webapp.celery import refuse_other_sites as r; r()"],
        env={**os.environ, "DATABASE_URL": url_of_test_database()},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 2, done.stderr
    assert "another site" in done.stderr
