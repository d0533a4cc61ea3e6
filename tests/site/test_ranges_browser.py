"""A copied link in a browser: it keeps its spans, opens when they are old, and says where they are gone."""

import re

import pytest
from playwright.sync_api import Page, expect

from tests.demo.browser import chromium, launched
from tests.site.browsing import LIMIT_MS, SITE, another_thread, answer
from tests.site.telemetry import events, placed, take_in
from tests.site.world import make_world
from webapp.jobs.models import Run
from webapp.live.services import forget_old_spans

PATH = chromium()
pytestmark = [
    pytest.mark.browser,
    pytest.mark.skipif(PATH is None, reason="NO BROWSER TESTED: no Chromium found"),
]


@pytest.mark.django_db(transaction=True)
def test_a_copied_link_outlives_the_spans_of_its_time() -> None:
    world = make_world()
    run = placed(world)
    take_in(events(run, 8))
    client = world.client("operator")
    assert PATH
    with another_thread() as apart, launched(PATH) as browser:
        context = browser.new_context(permissions=["clipboard-read", "clipboard-write"])
        context.set_default_timeout(LIMIT_MS)
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
    message = "The spans of this link are kept: iterations 3 to 6."
    expect(page.locator("[data-kept-told]")).to_have_text(message, timeout=LIMIT_MS)
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
