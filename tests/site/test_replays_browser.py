"""The pages of replays in a browser: the form, and its answer as a table and charts, wide and narrow."""

from typing import Any

import pytest
from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import Page, expect

from tests.demo.browser import chromium
from tests.site.browsing import SITE, assert_fits, opened
from tests.site.replays import replay, started
from tests.site.world import make_world

pytestmark = [
    pytest.mark.browser,
    pytest.mark.skipif(chromium() is None, reason="NO BROWSER TESTED: no Chromium found"),
    pytest.mark.django_db(transaction=True),
]


def assert_accessible(page: Page) -> None:
    violations = Axe().run(page).response["violations"]
    grave = [rule for rule in violations if rule["impact"] in ("serious", "critical")]
    assert not grave, [(rule["id"], rule["nodes"][0]["html"][:300]) for rule in grave]
    assert_fits(page)


@pytest.mark.parametrize(("width", "theme"), [(1440, "light"), (390, "dark")])
def test_a_replay_shows_its_table_and_four_charts(width: int, theme: Any) -> None:
    world = make_world()
    done, waits = replay(world, loads="10, 50, 100, 200", requests=2000), started(world)
    view = {"viewport": {"width": width, "height": 900}, "color_scheme": theme}
    with opened(world, **view) as (page, complaints):
        page.goto(f"{SITE}/prefill/replays/{done.pk}/")
        expect(page.locator("[data-charts] svg.curves")).to_have_count(4)
        assert_accessible(page)
        page.goto(f"{SITE}/prefill/replays/{waits.pk}/")
        expect(page.get_by_text("Waiting for the search worker")).to_be_visible()
        page.goto(f"{SITE}/prefill/replays/new/?from={done.pk}")
        expect(page.get_by_label("Load")).to_have_value("10, 50, 100, 200")
        assert_accessible(page)
        page.goto(f"{SITE}/prefill/replays/")
        assert_accessible(page)
        assert complaints == []
