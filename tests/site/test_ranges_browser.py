"""A copied link in a browser: it keeps its spans, opens when they are old, and says where they are gone."""

import re
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pytest
from django.contrib.staticfiles import finders
from django.db import connections
from playwright.sync_api import Page, Route, expect

from tests.demo.browser import chromium, launched
from tests.site.telemetry import events, placed, take_in
from tests.site.world import make_world
from tests.waiting import LIMIT_S
from webapp.jobs.models import Run
from webapp.live.services import forget_old_spans

PATH = chromium()
pytestmark = [
    pytest.mark.browser,
    pytest.mark.skipif(PATH is None, reason="NO BROWSER TESTED: no Chromium found"),
]
SITE = "http://runs.example"
LIMIT_MS = LIMIT_S * 1e3


@pytest.fixture
def apart() -> Iterator[Callable[..., Any]]:
    """Calls a function in a thread of its own: Django refuses its database in the browser's."""
    with ThreadPoolExecutor(1) as pool:
        yield lambda function, *given: pool.submit(function, *given).result(LIMIT_S)
        pool.submit(connections.close_all).result(LIMIT_S)


Apart = Callable[..., Any]


def answer(client: Any, apart: Apart, route: Route) -> None:
    """Let `client` of Django's tests answer a request of the browser."""
    request, url = route.request, urlsplit(route.request.url)
    if url.path.startswith("/static/"):
        found = finders.find(url.path.removeprefix("/static/"))
        route.fulfill(path=Path(str(found))) if found else route.fulfill(status=404)
        return
    if request.method == "POST":
        body, kind = request.post_data_buffer or b"", request.headers["content-type"]
        response = apart(lambda: client.post(url.path, body, content_type=kind))
    else:
        accept = request.headers.get("accept", "*/*")
        response = apart(lambda: client.get(url.path, parse_qs(url.query), HTTP_ACCEPT=accept))
    route.fulfill(
        status=response.status_code, body=response.content, content_type=response.headers["Content-Type"]
    )


@pytest.mark.django_db(transaction=True)
def test_a_copied_link_outlives_the_spans_of_its_time(apart: Apart) -> None:
    world = make_world()
    run = placed(world)
    take_in(events(run, 8))
    client = world.client("operator")
    assert PATH
    with launched(PATH) as browser:
        context = browser.new_context(permissions=["clipboard-read", "clipboard-write"])
        context.route("**/*", lambda route: answer(client, apart, route))
        page = context.new_page()
        link = copied(page, run)
        assert apart(forget_old_spans, 2) == 2 * 12  # of the first two iterations and what is not kept
        other = context.new_page()
        other.goto(link)
        expect(other.locator("[data-badge]")).to_have_text(re.compile("^Frozen"), timeout=LIMIT_MS)
        expect(other.locator("[data-totals-line]")).to_contain_text("idle in all", timeout=LIMIT_MS)
        expect(other.locator("[data-tl-gone]")).to_be_hidden()
        offered(context.new_page(), run)


def copied(page: Page, run: Run) -> str:
    """Look at iterations 4 and 5, which touches 3 and 6, and copy the link."""
    page.goto(f"{SITE}/runs/{run.pk}/#it=4&last=5")
    expect(page.locator("[data-badge]")).to_have_text(re.compile("^Frozen"), timeout=LIMIT_MS)
    page.get_by_role("button", name="Copy link").click()
    told = "The spans of this link are kept: iterations 3 to 6."
    expect(page.locator("[data-kept-told]")).to_have_text(told, timeout=LIMIT_MS)
    expect(page.locator("#kept-ranges td a")).to_have_text("Iterations 3 to 6", timeout=LIMIT_MS)
    link = page.locator("[data-copy-link]").get_attribute("data-copy")
    assert link
    return link


def offered(page: Page, run: Run) -> None:
    """A link to the first iteration, which is gone."""
    page.goto(f"{SITE}/runs/{run.pk}/#from=10&to=900&it=1")
    note = page.locator("[data-tl-gone]")
    expect(note).to_contain_text("The spans of iteration 1 are no longer stored.", timeout=LIMIT_MS)
    note.get_by_role("button", name="Show iterations 3 to 6").click()
    expect(note).to_be_hidden(timeout=LIMIT_MS)
    expect(page.locator("[data-totals-line]")).to_contain_text("idle in all", timeout=LIMIT_MS)
