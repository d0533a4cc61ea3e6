"""The plan page in a browser without a server: its answers are made beforehand and given one by one."""

import contextlib
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
from django.contrib.staticfiles import finders
from django.urls import reverse
from playwright.sync_api import Error, Page, Route

from tests.demo.browser import chromium, launched
from tests.site.browsing import LIMIT_MS
from webapp.computations.models import Computation
from webapp.planning.services import ask_to_refine

PATH = chromium()
pytestmark = [
    pytest.mark.browser,
    pytest.mark.skipif(PATH is None, reason="NO BROWSER TESTED: no Chromium found"),
]
SITE = "http://plans.example"
WATCH = """window.failures = [];
for (const name of ["htmx:oobErrorNoTarget", "htmx:targetError", "htmx:swapError"])
  document.body.addEventListener(name, () => failures.push(name));"""
MOVE = """const slider = document.querySelector("#what-if input[type=range]");
slider.value = "3";
slider.dispatchEvent(new Event("input", { bubbles: true }));"""


def answers(world: Any) -> dict[str, str]:
    """The page while the plan is refined, what it hears when that ends, and the answer to a slider."""
    client, there = world.client("operator"), reverse("planning:plan-detail", args=[world.plan.pk])
    refinement = ask_to_refine(world.users["operator"], world.plan, world.plan.request)
    page = client.get(there).content.decode()
    Computation.objects.filter(pk=refinement.pk).update(state="cancelled")
    ended = client.get(reverse("planning:plan-refining", args=[world.plan.pk])).content.decode()
    answer = client.get(f"{there}?gpus-0=3", headers={"HX-Request": "true"}).content.decode()
    return {"there": there, "page": page, "ended": ended, "answer": answer}


def static(route: Route) -> None:
    path = finders.find(urlsplit(route.request.url).path.removeprefix("/static/"))
    route.fulfill(path=Path(str(path))) if path else route.fulfill(status=404)


def test_an_answer_that_comes_late_finds_its_page(world: Any) -> None:
    """A slider moves while the page reads the refined answer: no request outlives its element."""
    pages = answers(world)
    late: list[Route] = []
    moved: list[str] = []

    def site(route: Route) -> None:
        path, query = urlsplit(route.request.url).path, urlsplit(route.request.url).query
        if path.startswith("/static/"):
            static(route)
        elif path.endswith("/refining/"):
            route.fulfill(body=pages["ended"], content_type="text/html")
        elif path == pages["there"] and "gpus-0=3" in query:
            moved.append(query)
            route.fulfill(body=pages["answer"], content_type="text/html")
        elif path == pages["there"] and route.request.headers.get("hx-request"):
            late.append(route)
        elif path == pages["there"]:
            route.fulfill(body=pages["page"], content_type="text/html")
        else:
            route.fulfill(status=404)

    assert PATH
    with launched(PATH) as browser:
        page: Page = browser.new_page()
        page.set_default_timeout(LIMIT_MS)
        page.route("**/*", site)
        page.goto(f"{SITE}{pages['there']}")
        page.evaluate(WATCH)
        wait_for(page, late)
        page.evaluate(MOVE)
        page.wait_for_selector("#answer .what-if")
        with contextlib.suppress(Error):  # the browser may have given it up
            late[0].fulfill(body=pages["answer"], content_type="text/html")
        page.wait_for_timeout(300)
        assert moved
        assert page.evaluate("failures") == []


def wait_for(page: Page, late: list[Route]) -> None:
    """Until the page reads the refined answer."""
    for _ in range(600):
        if late:
            return
        page.wait_for_timeout(50)
    pytest.fail("the page never read the refined answer")
