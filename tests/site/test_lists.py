"""The list page (counts, pages, filters that can be taken off), and the markup that every page has."""

import re
from datetime import UTC, datetime, timedelta, timezone
from html import unescape
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pytest
from django.template import Context, Template
from hypothesis import given
from hypothesis import strategies as st

from webapp.common import lists
from webapp.common.markup import bar, when
from webapp.common.tables import NumberColumn, StateColumn, Table
from webapp.inventory.models import DataCenter

URL = "/datacenters/"


def more(world: Any, n: int) -> None:
    DataCenter.objects.bulk_create(
        DataCenter(team=world.team, name=f"more-{i:03}", place="Kiruna") for i in range(n)
    )


def shown(text: str) -> str:
    """The line that says what of the list is shown."""
    match = re.search(r'<span role="status">(Showing[^<]*)</span>', text)
    assert match
    return match[1]


@pytest.mark.parametrize(
    ("query", "line"),
    [
        ("", "Showing 1–50 of 63"),
        ("?page=2", "Showing 51–63 of 63"),
        ("?per_page=25&page=3", "Showing 51–63 of 63"),
        ("?per_page=100", "Showing 63"),
        ("?per_page=7", "Showing 1–50 of 63"),  # not offered
        ("?per_page=x&page=999", "Showing 51–63 of 63"),
        ("?q=more-00", "Showing 10"),
    ],
)
def test_the_line_says_what_is_shown(world: Any, query: str, line: str) -> None:
    more(world, 60)
    assert shown(world.client("viewer").get(URL + query).content.decode()) == line


def test_every_filter_in_use_can_be_taken_off(world: Any) -> None:
    more(world, 60)
    page = world.client("viewer").get(f"{URL}?q=more&page=2&sort=-name").context
    (chip,) = page["selected"]
    assert (chip.label, chip.text) == ("Find", "more")
    assert parse_qs(urlsplit(chip.url).query) == {"sort": ["-name"]}  # from the first page, in the same order
    assert world.client("viewer").get(URL).context["selected"] == []


def test_a_filter_of_several_values_has_a_chip_for_each(world: Any) -> None:
    page = world.client("viewer").get("/runs/?status=running&status=failed").context
    chips = {chip.text: parse_qs(urlsplit(chip.url).query) for chip in page["selected"]}
    assert chips == {"Running": {"status": ["failed"]}, "Failed": {"status": ["running"]}}


def test_what_is_found_stays_found_over_sorting_and_paging(world: Any) -> None:
    more(world, 60)
    text = world.client("viewer").get(f"{URL}?q=more&per_page=25&sort=name").content.decode()
    queries = [parse_qs(urlsplit(unescape(path)).query) for path in re.findall(r'hx-get="(\?[^"]+)"', text)]
    assert queries
    assert all(query["q"] == ["more"] for query in queries)
    sizes = {query["per_page"][0]: query for query in queries if "page" not in query}
    assert {"50", "100", "200"} <= set(sizes)


def test_a_select_of_things_has_them_all_and_marks_the_chosen(world: Any) -> None:
    dc = world.dcs[1]
    text = world.client("viewer").get(f"/nodes/?dc={dc.pk}").content.decode()
    match = re.search(r'<select[^>]*name="dc"[^>]*>(.*?)</select>', text, re.S)
    assert match
    options = re.findall(r'<option value="([^"]*)"( selected)?>([^<]*)<', match[1])
    assert {(value, name) for value, _, name in options} == {
        ("", "Any"),
        *((str(each.pk), each.name) for each in world.dcs),
    }
    assert [value for value, selected, _ in options if selected] == [str(dc.pk)]


def test_nothing_found_says_so_and_offers_the_way_back(world: Any) -> None:
    text = world.client("viewer").get(f"{URL}?q=nowhere").content.decode()
    assert "Nothing matches this filter." in text
    assert f'href="{URL}">Clear the filter' in text
    assert shown(text) == "Showing none"


def test_a_viewer_is_offered_nothing_to_add(world: Any) -> None:
    assert f"{URL}new/" not in world.client("viewer").get(f"{URL}?q=nowhere").content.decode()
    assert f"{URL}new/" in world.client("operator").get(URL).content.decode()


def test_past_the_limit_the_count_is_an_estimate(world: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lists, "COUNT_EXACTLY_TO", 40)
    more(world, 60)
    page = world.client("viewer").get(f"{URL}?per_page=25")
    paginator = page.context["table"].paginator
    assert paginator.estimated
    assert paginator.count > 40
    assert "of about " in shown(page.content.decode())
    few = world.client("viewer").get(f"{URL}?q=more-00").context["table"].paginator
    assert (few.estimated, few.count) == (False, 10)


def test_pages_name_what_is_above_them(world: Any) -> None:
    def trail(path: str) -> list[str]:
        text = world.client("operator").get(path).content.decode()
        match = re.search(r'aria-label="Breadcrumb">(.*?)</nav>', text)
        return re.findall(r">([^<]+)</a>", match[1]) if match else []

    dc = world.dcs[0]
    assert trail("/") == []
    assert trail(URL) == ["Overview"]
    assert trail(f"{URL}{dc.pk}/edit/") == ["Data centres", dc.name]
    assert trail(f"{URL}{dc.pk}/delete/") == ["Data centres", dc.name]
    assert trail(f"/plans/{world.plan.pk}/") == ["Plans"]


@given(st.datetimes(datetime(2000, 1, 1), datetime(2100, 1, 1)), st.integers(-12, 14))
def test_a_time_is_the_same_moment_whatever_zone_it_came_in(naive: datetime, hours: int) -> None:
    moment = naive.replace(tzinfo=timezone(timedelta(hours=hours)), microsecond=0)
    text = str(when(moment))
    match = re.search(r'datetime="([^"]+)"', text)
    assert match
    assert datetime.fromisoformat(match[1]) == moment
    assert f">{moment.astimezone(UTC):%Y-%m-%d %H:%M:%S} UTC<" in text


def test_an_absent_time_is_a_dash() -> None:
    assert Template("{{ x|when }}").render(Context({"x": None})) == "–"


@given(st.floats(0.001, 1e6), st.lists(st.floats(0, 1e6), min_size=1, max_size=4))
def test_the_parts_of_a_bar_fill_it_and_never_leave_it(whole: float, values: list[float]) -> None:
    parts = [entry for value in values for entry in ("used", value)]
    widths = [float(w) for w in re.findall(r' width="([\d.]+)"', str(bar(whole, *parts)))]
    lefts = [float(x) for x in re.findall(r'<rect x="([\d.]+)"', str(bar(whole, *parts)))]
    assert sum(widths) == pytest.approx(100, abs=0.1)
    assert all(x + w <= 100.02 for x, w in zip(lefts, widths, strict=True))
    assert widths[0] == pytest.approx(min(100, 100 * values[0] / whole), abs=0.02) or values[0] / whole < 1e-4


def test_a_narrow_window_keeps_name_state_and_first_number() -> None:
    class Things(Table):
        name, place, cost, state, more = _columns()

    class Chosen(Things):
        narrow = ("name", "cost")

    assert set(Things([]).kept) == {"name", "cost", "state"}
    text = Chosen([{"name": "a", "place": "b", "cost": 1, "state": "ok", "more": 2}])
    classes = {column.name: column.attrs["td"].get("class") or "" for column in text.columns}
    assert {name for name, value in classes.items() if "wide-only" not in value} == {"name", "cost"}


def _columns() -> tuple[Any, ...]:
    import django_tables2 as tables

    return tables.Column(), tables.Column(), NumberColumn(), StateColumn(), NumberColumn()


def test_selects_offer_what_django_would_offer(world: Any) -> None:
    """Options are read as columns: they must be the rows' own names, and nothing in them may act as HTML."""
    from django import forms

    from tests.site.tenancies import grant
    from webapp.accounts.models import Team, User
    from webapp.common.formkit import LABELS, plain_selects
    from webapp.planning.models import Plan
    from webapp.prefill.models import Tenancy

    type(world.plan).objects.create(
        team=world.team,
        name='a <b> & "c"',
        request={},
        result={},
        computed_ms=1,
        created_by=world.users["operator"],
    )
    grant(world)
    models = (Plan, DataCenter, Team, Tenancy, User)
    assert {model._meta.model_name for model in models} == set(LABELS)
    for model in models:
        for key in (None, "pk" if model is Plan else LABELS[str(model._meta.model_name)]):
            rows = model._default_manager.order_by("pk")  # not every model has an order of its own
            field = forms.ModelChoiceField(rows, to_field_name=key, empty_label="Any")
            first = model._default_manager.latest("pk")
            chosen = getattr(first, key or "pk")
            theirs = field.widget.render("x", chosen)
            form = type("Form", (forms.Form,), {"x": field})()
            plain_selects(form)
            ours = form.fields["x"].widget.render("x", chosen)
            assert _options(ours) == _options(theirs)
            assert len(_options(ours)) == model._default_manager.count() + 1


def _options(html: str) -> list[tuple[str, str]]:
    return re.findall(r"<option ([^>]*)>([^<]*)</option>", html)


def test_cells_of_a_table_are_escaped(world: Any) -> None:
    DataCenter.objects.create(team=world.team, name="x", place="<script>alert(1)</script> & co")
    page = world.client("viewer").get("/datacenters/").content.decode()
    assert "<script>alert" not in page
    assert "&lt;script&gt;alert(1)&lt;/script&gt; &amp; co" in page


@pytest.mark.django_db
def test_a_list_that_is_no_table_of_the_database_shows_nothing_for_a_choice_that_is_none(world: Any) -> None:
    answer = world.client("viewer").get("/regions/?cloud=nowhere")
    assert answer.status_code == 200
    assert not list(answer.context["table"].rows)
