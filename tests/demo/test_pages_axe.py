"""Every page of the demo under axe, wide and light, narrow and dark: nothing serious, nothing in the console.

Pages are found by following links, one of each kind of address: all pages are linked from somewhere.
"""

import re
from collections import deque
from collections.abc import Iterator
from urllib.error import HTTPError
from urllib.parse import urlsplit

import pytest
from axe_playwright_python.sync_playwright import Axe
from django.urls import Resolver404, resolve
from playwright.sync_api import Browser

from tests.demo.browser import PASSWORD, Visitor, chromium, launched
from tests.demo.harness import Client, Demo

PATH = chromium()
pytestmark = [
    pytest.mark.browser,
    pytest.mark.timeout(600),
    pytest.mark.skipif(
        PATH is None, reason="NO BROWSER TESTED: no Chromium found (or set CHROMIUM to its path)"
    ),
]
# What every site has; whatever else is linked comes on top.
AT_LEAST = {
    "overview",
    "login",
    "inventory:datacenter-list",
    "inventory:datacenter-create",
    "inventory:datacenter-detail",
    "inventory:datacenter-edit",
    "inventory:datacenter-delete",
    "inventory:node-list",
    "inventory:link-list",
    "planning:plan-list",
    "planning:plan-create",
    "planning:plan-detail",
    "jobs:run-list",
    "jobs:swap-launch",
    "jobs:run-detail",
}
WAYS = ((1440, "light"), (390, "dark"))


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    assert PATH
    with launched(PATH) as running:
        yield running


def linked(page: str) -> list[str]:
    """Addresses on this site that a page links to, without their queries, in order."""
    addresses = re.findall(r'<a\b[^>]*\bhref="(/[^"#]*)"', page)
    return list(dict.fromkeys(urlsplit(path).path for path in addresses))


def kinds(client: Client) -> dict[str, str]:
    """URL name → one address of it, of all pages that links lead to."""
    page_of_kind, ahead = {"login": "/login/"}, deque(["/"])
    while ahead:
        path = ahead.popleft()
        try:
            name = resolve(path).view_name
        except Resolver404:
            continue
        if name in page_of_kind:
            continue
        page_of_kind[name] = path
        try:
            page = client.get(path)
        except HTTPError:  # it answers to POST alone
            page = ""
        if "<html" not in page[:400]:
            del page_of_kind[name]
            continue
        ahead += linked(page)
    return page_of_kind


def violations(visitor: Visitor, width: int, theme: str) -> list[str]:
    """What axe finds of serious and critical weight on the page as it stands."""
    rules = Axe().run(visitor.page, options={"resultTypes": ["violations"]}).response["violations"]
    return [
        f"{visitor.page.url} {width} {theme}: {rule['id']}: {rule['nodes'][0]['html'][:160]}"
        for rule in rules
        if rule["impact"] in ("serious", "critical")
    ]


@pytest.mark.long
def test_no_page_has_a_serious_fault(browser: Browser, demo: Demo) -> None:
    client = Client(demo.url)
    client.login("admin", PASSWORD)
    pages = kinds(client)
    assert set(pages) >= AT_LEAST
    visitor = Visitor(browser, demo.url)
    visitor.login("admin", PASSWORD)
    wrong = []
    for path in pages.values():
        visitor.page.goto(demo.url + path)
        for width, theme in WAYS:
            visitor.page.set_viewport_size({"width": width, "height": 900})
            visitor.page.emulate_media(color_scheme=theme)  # type: ignore[arg-type]
            wrong += violations(visitor, width, theme)
            if visitor.sticks_out():
                wrong.append(f"{path} scrolls sideways at {width} px")
    visitor.close()
    assert wrong == []
    assert visitor.complaints == []
