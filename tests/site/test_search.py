"""Find or go to: what is found, by whom, in which order, and that nothing typed breaks it."""

import re
from html import unescape
from typing import Any

import pytest
from django.db import connection
from django.test import Client

from tests.site.computations import comparison, placement
from tests.site.tenancies import ask
from tests.site.traces import trace
from tests.site.world import World, make_dc, make_node
from webapp.accounts.models import Team, User
from webapp.common import search as finding
from webapp.common.search import Begin, SearchText
from webapp.inventory.models import DataCenter, Node

PERSONS = ("tenant", "viewer", "operator", "admin", "stranger")


def hits(page: Any) -> list[tuple[str, str]]:
    """(name, address) of what a page of results shows, in order."""
    rows = re.findall(r'<td class="wrap"><a href="([^"]+)">([^<]*)</a></td>', page.content.decode())
    return [(unescape(name), url) for url, name in rows]


def names(world: World, person: str, q: str) -> list[str]:
    page = world.client(person).get("/search", {"q": q})
    assert page.status_code == 200
    return [name for name, _ in hits(page)]


@pytest.fixture
def filled(world: World) -> World:
    """The world with one thing of every kind called zeta."""
    team = world.team
    dc = make_dc(team, "zeta-dc", place="Zeta City")
    make_node(dc, "zeta-node", host="10.77.0.1")
    type(world.link).objects.create(a=world.dcs[0], b=dc, latency_ms=1, bandwidth_gbps=1)
    world.plan.name = "zeta plan"
    world.plan.save()
    world.launch()
    for computation in (comparison(world), placement(world), trace(world)):
        computation.name = f"zeta {computation.kind}"
        computation.save()
    tenancy = ask(world)
    tenancy.name = "zeta tenancy"
    tenancy.save()
    User.objects.filter(pk=world.users["viewer"].pk).update(last_name="Zeta")
    Team.objects.filter(pk=team.pk).update(name="Zeta team")
    return world


def kinds(world: World, person: str, q: str) -> set[str]:
    groups = finding.search(world.users[person], SearchText.of(q), 5)
    return {group.name for group in groups}


def test_each_role_finds_what_it_may_see_and_can_open_it(filled: World) -> None:
    everything = {"datacenter", "node", "link", "plan", "run", "comparison", "placement", "trace", "tenancy"}
    assert kinds(filled, "admin", "zeta") == everything | {"person", "team"}
    assert kinds(filled, "operator", "zeta") == kinds(filled, "viewer", "zeta") == everything
    assert kinds(filled, "tenant", "zeta") == {"tenancy"}
    assert kinds(filled, "stranger", "zeta") == set()
    for person in PERSONS:
        client = filled.client(person)
        for name, url in hits(client.get("/search", {"q": "zeta"})):
            assert client.get(url).status_code == 200, (person, name, url)


def test_nobody_finds_anything_without_a_login_or_an_active_account(filled: World) -> None:
    assert Client().get("/search?q=zeta").status_code == 302
    gone = filled.users["admin"]
    gone.is_active = False
    gone.save()
    assert finding.search(gone, SearchText.of("zeta"), 5) == []


@pytest.mark.parametrize("person", PERSONS)
def test_pages_and_tasks_are_those_of_the_role(world: World, person: str) -> None:
    client = world.client(person)
    for q in ("p", "a", "new", "run", "c", "l", "my"):
        for name, url in hits(client.get("/search", {"q": q})):
            assert client.get(url).status_code == 200, (person, name, url)
    assert ("Plans" in names(world, person, "pla")) == (person != "tenant")
    assert ("Audit" in names(world, person, "aud")) == (person in ("admin", "stranger"))
    assert ("Plan a training job" in names(world, person, "new plan")) == (
        person in ("operator", "admin", "stranger")
    )


def test_the_best_comes_first(world: World) -> None:
    for name in ("alpha-b", "b-alpha", "alpha", "other"):
        make_dc(world.team, name, place="Alpha" if name == "other" else "")
    assert names(world, "viewer", "alpha") == ["alpha", "alpha-b", "b-alpha", "other"]
    assert names(world, "viewer", "ALPHA b") == ["alpha-b", "b-alpha"]


def test_words_are_found_by_their_beginnings(world: World) -> None:
    dc = make_dc(world.team, "Zürich_2", place="Bahnhofstraße 7, 'Alt'")
    make_node(dc, "gpu-a100.rack-3", host="fd00::12:7")
    for q in ("zür", "ZÜRICH", "zürich 2", "2", "bahn", "alt", "'alt'"):
        assert "Zürich_2" in names(world, "viewer", q), q
    for q in ("a100", "rack-3", "gpu-a100.rack-3", "fd00::12", "12:7"):
        assert "gpu-a100.rack-3" in names(world, "viewer", q), q
    assert not names(world, "viewer", "ürich")
    world.launch()
    assert names(world, "viewer", "three #1") == ["three #1"]
    assert names(world, "viewer", "east mid") == ["east – mid"]


HOSTILE = (
    "'",
    "''",
    "\\",
    ":*",
    "&|!",
    "a & b",
    "!a",
    "<->",
    "(",
    "%",
    "_",
    "\0",
    "a\0b",
    "x" * 10_000,
    "a " * 5000,
    "' OR 1=1 --",
    '"',
    "<script>alert(1)</script>",
    "²",
    "\N{GRINNING FACE}",
    "e\u0301",
    "1e400",
    "9" * 20,
    "2147483648",
    "-1",
    "{{7*7}}",
    "\u2028",
)


@pytest.mark.parametrize("q", HOSTILE)
def test_nothing_typed_breaks_it(world: World, q: str) -> None:
    world.launch()
    client = world.client("admin")
    for part in ({}, {"part": 1}):
        assert client.get("/search", {"q": q, **part}).status_code == 200
    assert client.get("/search?q=%ff%00%27").status_code == 200


def test_names_are_escaped(world: World) -> None:
    world.plan.name = '<b onmouseover="x()">zeta</b>'
    world.plan.save()
    for url in ("/search?q=zeta", "/search?q=zeta&part=1"):
        text = world.client("viewer").get(url).content.decode()
        assert "<b onmouseover" not in text
        assert "&lt;b onmouseover" in text
    text = world.client("viewer").get("/search", {"q": "<i>none</i>"}).content.decode()
    assert "<i>none" not in text


def test_python_and_the_database_agree_on_words(world: World) -> None:
    texts = ("east-1", "GPU a100.80g", "Straße 7", "a_b:c", "ÜNÏ x", "tab\there", "1.5e3", "İx", "日本 語")
    for index, text in enumerate(texts):
        dc = DataCenter.objects.create(team=world.team, name=f"dc{index}", place=text)
        for word in SearchText.of(text).words:
            assert DataCenter.objects.filter(Begin(word, "name", "place"), pk=dc.pk).exists(), (text, word)


def test_the_search_reads_the_index(world: World) -> None:
    with connection.cursor() as cursor:
        cursor.execute("SET LOCAL enable_seqscan = off")
    plan = Node.objects.filter(Begin("east", "name", "host")).order_by().explain()
    assert "node_words" in plan


def test_a_page_says_that_there_is_more(world: World) -> None:
    for index in range(finding.SHOWN_ON_PAGE + 1):
        DataCenter.objects.create(team=world.team, name=f"many{index}")
    page = world.client("viewer").get("/search?q=many")
    assert len(hits(page)) == finding.SHOWN_ON_PAGE
    assert "the best 50" in page.content.decode()


def test_nothing_typed_and_nothing_found_say_what_to_do(world: World) -> None:
    client = world.client("viewer")
    assert "by the beginning of a name" in client.get("/search").content.decode()
    assert "Nothing found for" in client.get("/search?q=nowhere").content.decode()
    assert "Nothing of that name" in client.get("/search?q=nowhere&part=1").content.decode()
