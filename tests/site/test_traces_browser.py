"""The page of a trace in a browser: its timeline is drawn, wide and narrow, and says that it was measured."""

from typing import Any

import pytest
from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import expect

from tests.demo.browser import chromium
from tests.site.browsing import SITE, assert_fits, opened
from tests.site.traces import analysed
from tests.site.world import make_world

pytestmark = [
    pytest.mark.browser,
    pytest.mark.skipif(chromium() is None, reason="NO BROWSER TESTED: no Chromium found"),
    pytest.mark.django_db(transaction=True),
]


@pytest.mark.parametrize(("width", "theme"), [(1440, "light"), (390, "dark")])
def test_the_timeline_shows_the_median_iteration(width: int, theme: Any) -> None:
    world = make_world()
    trace = analysed(world)
    view = {"viewport": {"width": width, "height": 900}, "color_scheme": theme}
    with opened(world, **view) as (page, complaints):
        page.goto(f"{SITE}/traces/{trace.pk}/")
        expect(page.get_by_text("median iteration (step 0 of the trace): 15.00 s, 80.0 %")).to_be_visible()
        expect(page.locator("[data-totals-line]")).to_contain_text("Bubbles from")
        page.get_by_role("button", name="Show as table").click()
        expect(page.locator("[data-table] tbody tr").first).to_contain_text("Forward, microbatch 1")
        violations = Axe().run(page).response["violations"]
        grave = [rule for rule in violations if rule["impact"] in ("serious", "critical")]
        assert not grave, [(rule["id"], rule["nodes"][0]["html"][:300]) for rule in grave]
        assert_fits(page)
        assert complaints == []
