"""Labels and notes of runs and plans: who may write them, what is refused, and how they are found."""

from typing import Any

import pytest
from django.core.exceptions import ValidationError

from tests.site.world import World
from webapp.accounts.models import AuditEntry
from webapp.accounts.services import describe
from webapp.common.described import parsed_labels
from webapp.common.search import SearchText, search

pytestmark = pytest.mark.django_db


@pytest.fixture(params=["run", "plan"])
def thing(request: pytest.FixtureRequest, world: World) -> Any:
    return world.launch() if request.param == "run" else world.plan


def url(thing: Any) -> str:
    return f"/{type(thing).__name__.lower()}s/{thing.pk}/"


@pytest.mark.parametrize(
    ("typed", "unit"),
    [
        ("", ""),
        (" B  a,A ", "a b"),
        ("lr-sweep,v1.2 über_9", "lr-sweep v1.2 über_9"),
        ("-x", None),
        ("a/b", None),
        ("x" * 31, None),
        (" ".join(f"l{i}" for i in range(11)), None),
    ],
)
def test_labels_are_short_words(typed: str, unit: str | None) -> None:
    if unit is None:
        with pytest.raises(ValidationError):
            parsed_labels(typed)
    else:
        assert parsed_labels(typed) == unit


def test_an_operator_writes_them_and_the_audit_says_what_changed(world: World, thing: Any) -> None:
    client = world.client("operator")
    form = client.get(f"{url(thing)}describe/").context["form"]
    sent = {field.name: field.value() for field in form}
    note = "First line <b>\r\nsecond line"
    done = client.post(f"{url(thing)}describe/", {**sent, "labels": "Sweep baseline", "note": note})
    assert (done.status_code, done["Location"]) == (302, url(thing))
    thing.refresh_from_db()
    assert (thing.labels, thing.note) == ("baseline sweep", "First line <b>\nsecond line")
    entry = AuditEntry.objects.filter(verb="describe").get()
    assert (entry.before["labels"], entry.after["labels"]) == ("", "baseline sweep")
    page = world.client("viewer").get(url(thing)).content.decode()
    assert "First line &lt;b&gt;<br>second line" in page
    assert "?label=sweep" in page
    assert "Edit labels and note" not in page
    assert not describe(world.users["operator"], thing, labels=thing.labels, note=thing.note)
    assert AuditEntry.objects.filter(verb="describe").count() == 1


def test_an_edit_that_another_has_overtaken_is_told(world: World, thing: Any) -> None:
    client = world.client("operator")
    form = client.get(f"{url(thing)}describe/").context["form"]
    began = {field.name: field.value() for field in form}
    describe(None, thing, labels="theirs", note="")
    refused = client.post(f"{url(thing)}describe/", {**began, "labels": "mine", "note": ""})
    assert refused.status_code == 422
    assert "Somebody changed this to theirs. You entered mine." in refused.content.decode()


def test_a_note_has_2000_characters_however_its_lines_end(world: World, thing: Any) -> None:
    client, full = world.client("operator"), "a\r\n" * 999
    assert client.post(f"{url(thing)}describe/", {"labels": "", "note": "x" * 2_001}).status_code == 422
    assert client.post(f"{url(thing)}describe/", {"labels": "", "note": f"{full}bb"}).status_code == 302
    with pytest.raises(ValidationError):
        describe(None, thing, labels="", note="x" * 2_001)


def test_lists_filter_by_a_whole_label_and_find_in_both(world: World) -> None:
    first, second = world.launch(), world.launch()
    describe(None, first, labels="base-1 sweep", note="the slow link")
    describe(None, second, labels="base", note="")
    client = world.client("viewer")

    def found(query: str) -> set[int]:
        return {row.record.pk for row in client.get(f"/runs/?{query}").context["table"].rows}

    assert found("label=base") == {second.pk}
    assert found("label=sweep") == {first.pk}
    assert found("q=slow") == {first.pk}
    assert found("q=base") == {first.pk, second.pk}
    text = client.get("/runs/").content.decode()
    assert all(f'<option value="{label}">' in text for label in ("base", "base-1", "sweep"))
    assert '<option value="base">' not in world.client("stranger").get("/runs/").content.decode()
    describe(None, world.plan, labels="best", note="for June")
    rows = client.get("/plans/?label=best").context["table"].rows
    assert [row.record.pk for row in rows] == [world.plan.pk]
    assert len(client.get("/plans/?q=june").context["table"].rows) == 1


def test_the_sites_search_finds_labels_and_notes(world: World) -> None:
    run = world.launch()
    describe(None, run, labels="lr-sweep", note="Compare with Tuesday")
    describe(None, world.plan, labels="lr-sweep", note="")

    def names(name: str, typed: str) -> set[str]:
        groups = search(world.users[name], SearchText.of(typed), 5)
        return {group.name for group in groups}

    assert {"run", "plan"} <= names("viewer", "lr-swe")
    assert "run" in names("viewer", "tues")
    assert not {"run", "plan"} & names("stranger", "lr-swe")
