"""First samples of a launch form in a browser, without a server: the answers are made beforehand."""

from typing import Any
from urllib.parse import parse_qs, urlsplit

import pytest
from playwright.sync_api import Route

from tests.demo.browser import chromium, launched
from tests.site.browsing import LIMIT_MS
from tests.site.test_plan_browser import static
from tests.site.test_samples import Agents, agents, ask, said
from webapp.inventory.models import SamplePreview

__all__ = ["agents"]  # a fixture
PATH = chromium()
pytestmark = [
    pytest.mark.browser,
    pytest.mark.skipif(PATH is None, reason="NO BROWSER TESTED: no Chromium found"),
]
PART = {"HX-Request": "true"}


def test_they_are_asked_for_and_shown_below_the_form(
    world: Any, agents: Agents, django_capture_on_commit_callbacks: Any
) -> None:
    client, there = world.client("operator"), f"/plans/{world.plan.pk}/launch/0/"
    form = client.get(there).content.decode()
    world.hear()
    answers = f"/runs/samples/{ask(world, django_capture_on_commit_callbacks).url.split('/')[-2]}/"
    reading = client.get(answers, headers=PART).content.decode()
    said(SamplePreview.objects.get())
    shown = client.get(answers, headers=PART).content.decode()
    parts, sent = [reading, shown], list[dict[str, list[str]]]()

    def site(route: Route) -> None:
        request = route.request
        path = urlsplit(request.url).path
        if path.startswith("/static/"):
            static(route)
        elif path == answers:
            route.fulfill(body=parts.pop(0), content_type="text/html")
        elif request.method == "POST":
            sent.append(parse_qs(request.post_data or ""))
            route.fulfill(body=reading, content_type="text/html")
        else:
            route.fulfill(body=form, content_type="text/html")

    assert PATH
    with launched(PATH) as browser:
        page = browser.new_page()
        errors: list[str] = []
        page.on("pageerror", lambda error: errors.append(str(error)))
        page.set_default_timeout(LIMIT_MS)
        page.route("**/*", site)
        page.goto(f"http://launch.example{there}")
        page.locator("[name=data]").fill("/data/books")
        page.get_by_role("button", name="Show first samples").click()
        page.wait_for_selector("#samples .sample")
        text = page.locator("#samples").inner_text()
        assert page.locator("[name=data]").input_value() == "/data/books", "the form stays"
        page.set_viewport_size({"width": 320, "height": 900})
        width = page.evaluate("document.documentElement.scrollWidth")
    assert "⟪one two⟫ <b>three</b>" in text
    assert parts == [], "asked again until the answer was there, and not since"
    assert [(each["data"], each["preview"]) for each in sent] == [(["/data/books"], ["1"])]
    assert errors == []
    assert width == 320, "the buttons of a launch go into further lines on a narrow screen"
