"""The audit's pages: who sees which rows, what is shown is what is exported, what ids they carry."""

import csv
import io
import json
from datetime import UTC, datetime
from typing import Any

import pytest
from django.db import transaction
from django.test import Client

from tests.site.house import PASSWORD
from webapp.accounts import services
from webapp.accounts.models import AuditEntry, Role
from webapp.accounts.services import record


def write(house: Any, actor: str | None, verb: str, *, team: Any = None, **more: Any) -> AuditEntry:
    with transaction.atomic():
        return record(actor and house.users[actor], verb, house.team, team=team, **more)


def shown(client: Any, query: str = "") -> list[int]:
    return [row.record.pk for row in client.get(f"/audit/?{query}").context["table"].paginated_rows]


@pytest.fixture
def some(house: Any) -> dict[str, AuditEntry]:
    return {
        "ours": write(house, "operator", "launch", team=house.team, after={"a": 1}, message="=cmd()"),
        "theirs": write(house, "stranger", "launch", team=house.other),
        "own": write(house, "admin", "poke"),
        "nobody's": write(house, None, "upkeep"),
        "by both": write(house, "both", "launch", team=house.other),
    }


@pytest.mark.filterwarnings("ignore:StreamingHttpResponse must consume")
def test_a_value_that_nothing_has_shows_and_exports_nothing(house: Any, some: dict[str, AuditEntry]) -> None:
    """A filter that makes no sense is not left out: its rows would be every row."""
    client = house.client("root")
    assert len(shown(client)) == len(some)
    for query in ("verb=fly", "object_type=moon", "actor=999999", "since=yesterday", "verb=launch&team=x"):
        page = client.get(f"/audit/?{query}")
        assert (page.status_code, list(page.context["table"].rows)) == (200, []), query
        assert "Nothing matches this filter." in page.content.decode()
        assert exported(client, "jsonl", query) == "", query


def test_a_verb_that_was_written_just_now_is_found(house: Any, some: dict[str, AuditEntry]) -> None:
    """The choices are remembered for a minute, and the filter knows newer ones all the same."""
    client = house.client("root")
    assert len(shown(client, "verb=launch")) == 3
    new = write(house, "operator", "fly", team=house.team)
    assert shown(client, "verb=fly") == [new.pk]


def test_the_first_verb_of_all_is_found(house: Any) -> None:
    """Where nothing was written yet, there is nothing to remember."""
    client = house.client("root")
    assert shown(client, "verb=swim") == []
    new = write(house, "operator", "swim", team=house.team)
    assert shown(client, "verb=swim") == [new.pk]


def test_admins_see_their_teams_rows_and_their_own(house: Any, some: dict[str, AuditEntry]) -> None:
    assert set(shown(house.client("admin"))) == {some["ours"].pk, some["own"].pk}
    assert set(shown(house.client("stranger"))) == {some["theirs"].pk, some["by both"].pk}
    assert set(shown(house.client("root"))) == {entry.pk for entry in some.values()}
    assert house.client("admin").get(f"/audit/{some['theirs'].pk}/").status_code == 404
    assert house.client("operator").get(f"/audit/{some['ours'].pk}/").status_code == 403


def test_admins_see_the_accounts_of_their_members(house: Any) -> None:
    mine = services.note_failed_login("viewer", address="192.0.2.1", locked=False)
    theirs = services.note_failed_login("stranger", address="192.0.2.1", locked=False)
    assert mine
    assert theirs
    assert shown(house.client("admin")) == [mine.pk]


@pytest.mark.parametrize(
    ("query", "names"),
    [
        ("verb=launch", {"ours", "theirs", "by both"}),
        ("q=cmd", {"ours"}),
        ("object_type=team", {"ours", "theirs", "own", "nobody's", "by both"}),
        ("object_type=run", set()),
        ("until=2020-01-01", set()),
        ("since=2020-01-01", {"ours", "theirs", "own", "nobody's", "by both"}),
        ("team=2nd", {"theirs", "by both"}),
        ("actor=operator", {"ours"}),
    ],
)
def test_the_filter(house: Any, some: dict[str, AuditEntry], query: str, names: set[str]) -> None:
    from django.core.cache import cache

    cache.clear()
    query = query.replace("2nd", str(house.other.pk)).replace("=operator", f"={house.users['operator'].pk}")
    if query == "object_type=run":
        with transaction.atomic():
            AuditEntry.objects.create(verb="x", object_type="run", object_label="gone", team=house.other)
        assert len(shown(house.client("root"), query)) == 1
        return
    assert set(shown(house.client("root"), query)) == {some[name].pk for name in names}


def test_days_begin_where_the_reader_is(house: Any) -> None:
    entry = write(house, "operator", "launch", team=house.team)
    AuditEntry.objects.filter(pk=entry.pk).update(at=datetime(2026, 3, 1, 23, 30, tzinfo=UTC))
    client = house.client("admin")
    assert shown(client, "since=2026-03-01&until=2026-03-01") == [entry.pk]
    type(house.users["admin"]).objects.filter(username="admin").update(time_zone="Asia/Tokyo")
    assert shown(client, "since=2026-03-01&until=2026-03-01") == []
    assert shown(client, "since=2026-03-02&until=2026-03-02") == [entry.pk]


@pytest.mark.filterwarnings("ignore:StreamingHttpResponse must consume")
def test_days_are_the_browsers_where_the_account_has_no_zone(house: Any) -> None:
    entry = write(house, "operator", "launch", team=house.team)
    AuditEntry.objects.filter(pk=entry.pk).update(at=datetime(2026, 3, 1, 23, 30, tzinfo=UTC))
    client, first, second = house.client("admin"), "since=2026-03-01&until=2026-03-01", "since=2026-03-02"
    assert 'form="filter" name="zone" data-zone-name' in client.get("/audit/").content.decode()
    assert shown(client, f"{first}&zone=Asia/Tokyo") == []
    assert shown(client, f"{second}&zone=Asia/Tokyo") == [entry.pk]
    assert len(exported(client, "jsonl", f"{second}&zone=Asia/Tokyo").splitlines()) == 1
    for zone in ("", "Asia", "Mars/Olympus", "../etc/passwd", "/etc/passwd", "%00", "%ed%a0%80", "x" * 5000):
        assert shown(client, f"{first}&zone={zone}") == [entry.pk], zone
    type(house.users["admin"]).objects.filter(username="admin").update(time_zone="America/Lima")
    assert shown(client, f"{first}&zone=Asia/Tokyo") == [entry.pk], "the account's zone comes first"
    assert "data-zone-name" not in client.get("/audit/").content.decode()


def exported(client: Any, kind: str, query: str = "") -> str:
    answer = client.get(f"/audit/export.{kind}?{query}")
    assert answer.streaming
    assert f".{kind}" in answer["Content-Disposition"]
    return b"".join(answer).decode()


@pytest.mark.filterwarnings("ignore:StreamingHttpResponse must consume")
@pytest.mark.parametrize("query", ["", "verb=launch", "sort=verb", "q=cmd", "sort=-actor&verb=launch"])
@pytest.mark.parametrize("who", ["admin", "stranger", "root"])
def test_an_export_holds_what_the_filter_shows(
    house: Any, some: dict[str, AuditEntry], query: str, who: str
) -> None:
    client = house.client(who)
    wanted = shown(client, query)
    lines = [json.loads(line) for line in exported(client, "jsonl", query).splitlines()]
    assert [line["id"] for line in lines] == wanted
    table = list(csv.DictReader(io.StringIO(exported(client, "csv", query))))
    assert [int(line["id"]) for line in table] == wanted
    for line, row in zip(lines, table, strict=True):
        assert (json.loads(row["after"]) if row["after"] else None) == line["after"]
        assert not any(value.startswith(("=", "+", "@")) for value in row.values())


@pytest.mark.filterwarnings("ignore:StreamingHttpResponse must consume")
def test_an_export_has_all_pages(house: Any) -> None:
    with transaction.atomic():
        for number in range(120):
            record(house.users["admin"], "step", house.team, team=house.team, after={"n": number})
    client = house.client("admin")
    assert len(shown(client, "verb=step")) == 50
    lines = exported(client, "jsonl", "verb=step&sort=at").splitlines()
    assert [json.loads(line)["after"]["n"] for line in lines] == list(range(120))
    assert client.get("/audit/export.xml").status_code == 404


def test_a_row_shows_its_differences_and_its_object(house: Any) -> None:
    old, new = {"a": {"b": [1, 2]}, "same": 0}, {"a": {"b": [1, 3]}, "same": 0}
    entry = write(house, "admin", "change", team=house.team, before=old, after=new)
    page = house.client("admin").get(f"/audit/{entry.pk}/")
    changes = {one.path: (one.before, one.after, one.changed) for one in page.context["differences"]}
    assert changes == {"a.b.0": ("1", "1", False), "a.b.1": ("2", "3", True), "same": ("0", "0", False)}
    assert page.context["url"] == f"/teams/{house.team.pk}/"
    gone = write(house, "admin", "delete", team=house.team)
    AuditEntry.objects.filter(pk=gone.pk).update(object_id="987654321")
    assert house.client("admin").get(f"/audit/{gone.pk}/").context["url"] == ""


def test_a_link_to_an_object_is_for_those_who_may_see_it(house: Any) -> None:
    """A row of one's own may name a thing of a team that one has left."""
    with transaction.atomic():
        entry = record(house.users["admin"], "change", house.other, team=None)
    assert house.client("admin").get(f"/audit/{entry.pk}/").context["url"] == ""


def test_a_row_over_http_carries_the_id_of_its_request(house: Any) -> None:
    """All rows of one request carry one id, which is the server's own and no caller's to choose."""
    client, admin = Client(), house.client("admin")
    _, token = services.invite(house.users["admin"], house.team, email="a@example.org", role=Role.VIEWER)
    form = {"username": "ada", "password1": PASSWORD, "password2": PASSWORD}
    client.post(f"/join/{token}/", form, HTTP_X_REQUEST_ID="mine")
    joined = AuditEntry.objects.filter(actor__username="ada")
    assert [row.verb for row in joined] == ["login", "accept", "create"]
    first = {row.request_id for row in joined}
    assert len(first) == 1
    admin.post(f"/people/roles/{house.membership('viewer').pk}/", {"role": "operator"})
    second = {row.request_id for row in AuditEntry.objects.filter(verb="set-role")}
    assert not first & second
    assert all(len(one) == 36 for one in first | second)
    page = admin.get(f"/audit/{joined.get(verb='accept').pk}/")
    assert [row.verb for row in page.context["same"]] == ["create", "login"]
    assert len(shown(admin, f"q={first.pop()}")) == 3


def test_a_row_of_a_control_task_carries_its_id(house: Any) -> None:
    from celery import shared_task

    from webapp.celery import app

    @shared_task(name="tests.audit")
    def change() -> None:
        services.set_role(house.users["viewer"], house.team, Role.OPERATOR)

    done = app.tasks["tests.audit"].apply()
    assert done.successful(), done.traceback
    assert AuditEntry.objects.get(verb="set-role").request_id == done.id
    services.set_role(house.users["viewer"], house.team, Role.VIEWER)
    assert AuditEntry.objects.filter(verb="set-role")[0].request_id == ""  # outside a task there is none


def test_a_row_outside_a_transaction_is_refused(house: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    class Outside:
        in_atomic_block = False

    with monkeypatch.context() as patched:
        patched.setattr(transaction, "get_connection", Outside)
        with pytest.raises(RuntimeError, match="transaction"):
            record(None, "x", house.team, team=house.team)


def test_the_list_costs_the_same_with_more_rows(house: Any) -> None:
    from django.db import connection
    from django.test.utils import CaptureQueriesContext

    client = house.client("admin")

    def queries(url: str) -> int:
        client.get(url)
        with CaptureQueriesContext(connection) as captured:
            client.get(url)
        return len(captured)

    urls = ("/audit/", "/people/", "/teams/", "/invitations/")
    services.invite(house.users["admin"], house.team, email="a@example.org", role=Role.VIEWER)
    few = {url: queries(url) for url in urls}
    for number in range(20):
        write(house, "operator", "step", team=house.team)
        services.invite(house.users["admin"], house.team, email=f"b{number}@example.org", role=Role.VIEWER)
    assert {url: queries(url) for url in urls} == few
    assert max(few.values()) <= 20, few
