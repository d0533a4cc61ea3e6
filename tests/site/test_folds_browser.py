"""Folded sections of a form in a browser, without a server: the page is made beforehand."""

from typing import Any
from urllib.parse import urlsplit

import pytest
from playwright.sync_api import Route

from tests.demo.browser import chromium, launched
from tests.site.browsing import LIMIT_MS
from tests.site.test_plan_browser import static

PATH = chromium()
pytestmark = [
    pytest.mark.browser,
    pytest.mark.skipif(PATH is None, reason="NO BROWSER TESTED: no Chromium found"),
]


def test_what_the_browser_refuses_is_unfolded(world: Any) -> None:
    there = f"/plans/{world.plan.pk}/launch/0/"
    html = world.client("operator").get(there).content.decode()
    sent: list[str] = []

    def site(route: Route) -> None:
        if urlsplit(route.request.url).path.startswith("/static/"):
            static(route)
            return
        sent.append(route.request.method)
        route.fulfill(body=html, content_type="text/html")

    assert PATH
    with launched(PATH) as browser:
        page = browser.new_page()
        page.set_default_timeout(LIMIT_MS)
        page.route("**/*", site)
        page.goto(f"http://launch.example{there}")
        assert page.locator(".form-fold[open]").count() == 0
        page.evaluate("document.querySelector('[name=microbatches]').value = '0'")
        page.get_by_role("button", name="Check").click()
        page.wait_for_selector(".form-fold[open] [name=microbatches]:focus")
        assert page.locator(".form-fold[open] h2").all_inner_texts() == ["Training"]
        assert sent == ["GET"], "the form was not sent"
        page.fill("[name=microbatches]", "5")
        page.fill("[name=lr]", "0.1")
        assert page.locator(".form-fold[open] [data-said]").inner_text() == "changed"
