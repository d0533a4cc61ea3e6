"""/healthz and /readyz: what they say when each part is away, and that they say no more than that."""

import re
from collections.abc import Iterator
from datetime import timedelta
from typing import Any

import pytest
from django.db import connection
from django.test import Client
from django.utils import timezone

from webapp import health
from webapp.common import broker
from webapp.computations import liveness
from webapp.computations.models import Beat

CHECKS = {"broker", "database", "disk", "ingest", "migrations", "nodes", "reconciler"}


@pytest.fixture(autouse=True)
def forget() -> Iterator[None]:
    """No test sees what another found."""
    health._last = None
    broker._last = None
    broker.client.cache_clear()
    yield
    health._last = None
    broker._last = None
    broker.client.cache_clear()


@pytest.fixture
def beating(transactional_db: Any) -> None:
    """Ingest and reconciler at work, committed: the checks look over a connection of their own."""
    liveness.beat(liveness.INGEST)
    liveness.beat(liveness.RECONCILER)


def ready() -> tuple[int, dict[str, Any]]:
    health._last = None
    answer = Client().get("/readyz")
    assert answer["Cache-Control"].startswith("max-age=0, no-cache, no-store")
    body = answer.json()
    assert body["checks"].keys() == CHECKS
    assert body["ok"] == all(check["ok"] for check in body["checks"].values())
    assert all(
        check.keys() == {"ok", "detail", "since"} and check["since"] for check in body["checks"].values()
    )
    return answer.status_code, body["checks"]


def unwell(checks: dict[str, Any]) -> set[str]:
    return {name for name, check in checks.items() if not check["ok"]}


def _nothing_at(monkeypatch: pytest.MonkeyPatch) -> None:
    """The database's address becomes one where nobody listens."""
    params = {**connection.get_connection_params(), "host": "127.0.0.1", "port": "1"}
    monkeypatch.setattr(connection, "get_connection_params", lambda: dict(params))


def test_ready_where_everything_answers(beating: None) -> None:
    status, checks = ready()
    assert (status, unwell(checks)) == (200, set())


def test_alive_whatever_is_away(monkeypatch: pytest.MonkeyPatch, settings: Any) -> None:
    # No `db` fixture: pytest-django fails the test where the view touches the database.
    settings.VALKEY_URL = "redis://127.0.0.1:1/0"
    answer = Client().get("/healthz")
    assert (answer.status_code, answer.json()["ok"]) == (200, True)
    assert "no-store" in answer["Cache-Control"]


def test_a_dead_database_is_named_and_what_hangs_on_it_unknown(
    beating: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    _nothing_at(monkeypatch)
    status, checks = ready()
    assert status == 503
    assert unwell(checks) == {"database", "migrations", "ingest", "nodes", "reconciler"}
    assert "unknown" in checks["ingest"]["detail"]


def test_a_dead_broker(beating: None, settings: Any) -> None:
    settings.VALKEY_URL = "redis://:hidden@127.0.0.1:1/0"
    status, checks = ready()
    assert (status, unwell(checks)) == (503, {"broker"})


@pytest.mark.parametrize(
    ("part", "late"), [("ingest", liveness.STALE), ("reconciler", health.RECONCILER_LATE)]
)
def test_a_part_that_has_stopped_since_its_last_beat(beating: None, part: str, late: timedelta) -> None:
    last = timezone.now() - late - timedelta(seconds=1)
    Beat.objects.filter(name=part).update(at=last)
    status, checks = ready()
    assert (status, unwell(checks)) == (503, {part})
    assert checks[part]["since"][:19] == last.isoformat()[:19]
    assert "silent for" in checks[part]["detail"]
    Beat.objects.all().delete()
    assert unwell(ready()[1]) == {"ingest", "reconciler"}


def test_a_migration_that_is_not_applied_is_named(beating: None) -> None:
    with connection.cursor() as cursor:
        cursor.execute("DELETE FROM django_migrations WHERE app = 'live' AND name = '0001_initial'")
        try:
            status, checks = ready()
        finally:
            cursor.execute(
                "INSERT INTO django_migrations (app, name, applied) VALUES ('live', '0001_initial', now())"
            )
    assert (status, unwell(checks)) == (503, {"migrations"})
    assert "live.0001_initial" in checks["migrations"]["detail"]


def test_a_disk_that_is_nearly_full(beating: None, settings: Any) -> None:
    settings.LEAST_FREE_BYTES = 1e18
    status, checks = ready()
    assert (status, unwell(checks)) == (503, {"disk"})
    assert re.fullmatch(r"[\d,]+ MB free, under 1,000,000,000,000 MB", checks["disk"]["detail"])


def test_since_stays_while_nothing_changes_and_starts_anew_when_it_does(beating: None, settings: Any) -> None:
    first = health.readiness(max_age_s=0)["disk"]
    assert health.readiness(max_age_s=0)["disk"].since == first.since
    settings.LEAST_FREE_BYTES = 1e18
    bad = health.readiness(max_age_s=0)["disk"]
    assert not bad.ok
    assert bad.since is not None
    assert first.since is not None
    assert bad.since > first.since
    assert health.readiness(max_age_s=0)["disk"].since == bad.since


def test_many_who_ask_at_once_cost_one_round(beating: None, monkeypatch: pytest.MonkeyPatch) -> None:
    rounds: list[int] = []
    real = health._ask
    monkeypatch.setattr(health, "_ask", lambda: (rounds.append(1), real())[1])
    for _ in range(5):
        Client().get("/readyz")
    assert len(rounds) == 1


def test_no_answer_holds_a_secret_or_an_address(
    beating: None, monkeypatch: pytest.MonkeyPatch, settings: Any
) -> None:
    secret = settings.DATABASES["default"]["PASSWORD"]
    texts = [Client().get("/readyz").content.decode()]
    _nothing_at(monkeypatch)
    broker_url, settings.VALKEY_URL = settings.VALKEY_URL, "redis://:hidden@127.0.0.1:1/0"
    broker.client.cache_clear()
    broker._last = health._last = None
    texts.append(Client().get("/readyz").content.decode())
    for text in texts:
        for word in (
            secret,
            settings.SECRET_KEY,
            "hidden",
            "127.0.0.1",
            "meridian:",
            str(settings.VAR),
            broker_url,
        ):
            assert word not in text


def test_only_reading_is_allowed(db: Any) -> None:
    assert Client().post("/healthz").status_code == 405
    assert Client().post("/readyz").status_code == 405


def test_probes_are_not_logged_but_changes_are(
    beating: None, caplog: pytest.LogCaptureFixture, settings: Any
) -> None:
    from webapp.common.logs import NoProbes

    settings.LEAST_FREE_BYTES = 1e18
    ready()
    records = [record for record in caplog.records if NoProbes().filter(record)]
    assert sum("not ready" in str(record.msg) for record in records) == 1
    assert not any("/readyz" in record.getMessage() for record in records)


def test_the_overview_says_that_the_disk_is_nearly_full_while_it_can(world: Any, settings: Any) -> None:
    assert "Disk nearly full" not in world.client("viewer").get("/").content.decode()
    settings.LEAST_FREE_BYTES = 1e18
    assert "Disk nearly full" in world.client("viewer").get("/").content.decode()


def test_nodes_of_runs_that_are_not_heard_are_counted(transactional_db: Any) -> None:
    """All nodes were locked out once, by a broker that had lost their users, while this said 200."""
    from tests.site.world import make_world
    from webapp.inventory.models import Node
    from webapp.jobs.allocate import allocate
    from webapp.jobs.models import Run, Status

    world = make_world()
    world.hear()
    liveness.beat(liveness.RECONCILER)
    assert ready()[1]["nodes"]["detail"] == "none has a run"
    assert allocate(world.launch())
    Run.objects.update(status=Status.RUNNING)
    assert ready()[1]["nodes"]["detail"] == "3 of 3 with runs are heard"
    Node.objects.filter(name="mid-1").update(last_seen=timezone.now() - timedelta(seconds=30))
    assert ready()[1]["nodes"] | {"since": ""} == {
        "ok": True,
        "detail": "2 of 3 with runs are heard",
        "since": "",
    }
    Node.objects.update(last_seen=timezone.now() - timedelta(seconds=30))
    status, checks = ready()
    assert (status, unwell(checks)) == (503, {"nodes"})
