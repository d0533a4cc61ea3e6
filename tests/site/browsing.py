"""The site in a browser without a server: Django's test client answers what the browser asks."""

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

from django.contrib.staticfiles import finders
from django.db import connections
from playwright.sync_api import Page, Route

from tests.demo.browser import STICKS_OUT, chromium, complains, launched
from tests.waiting import LIMIT_S

SITE = "http://runs.example"
LIMIT_MS = LIMIT_S * 1e3
Apart = Callable[..., Any]


@contextmanager
def another_thread() -> Iterator[Apart]:
    """Calls a function in a thread of its own: Django refuses its database in the browser's."""
    with ThreadPoolExecutor(1) as pool:
        yield lambda function, *given: pool.submit(function, *given).result(LIMIT_S)
        pool.submit(connections.close_all).result(LIMIT_S)


def answer(client: Any, apart: Apart, route: Route) -> None:
    """Let `client` of Django's tests answer a request of the browser."""
    request, url = route.request, urlsplit(route.request.url)
    if url.path.startswith("/static/"):
        path = finders.find(url.path.removeprefix("/static/"))
        route.fulfill(path=Path(str(path))) if path else route.fulfill(status=404)
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


@contextmanager
def opened(world: Any, **view: Any) -> Iterator[tuple[Page, list[str]]]:
    """A page of an operator, and what the browser complains of."""
    path = chromium()
    assert path
    client = world.client("operator")
    complaints: list[str] = []
    with another_thread() as apart, launched(path) as browser:
        page = browser.new_page(**view)
        page.set_default_timeout(LIMIT_MS)
        page.on("console", lambda m: complaints.append(m.text) if complains(m) else None)
        page.on("pageerror", lambda error: complaints.append(str(error)))
        page.route("**/*", lambda route: answer(client, apart, route))
        yield page, complaints


def assert_fits(page: Page) -> None:
    """Nothing makes the page wider than its window."""
    root = "document.scrollingElement"
    assert not page.evaluate(f"{root}.scrollWidth > {root}.clientWidth"), page.evaluate(STICKS_OUT)
