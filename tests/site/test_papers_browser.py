"""The Papers pages in a browser: empty, at work and with figures, wide and narrow, light and dark."""

from typing import Any

import pytest
from django.utils import timezone
from playwright.sync_api import expect

from engine.reproduce import __main__ as process
from engine.reproduce import experiments
from tests.demo.browser import chromium
from tests.site.browsing import LIMIT_MS, SITE, assert_fits, opened
from tests.site.computations import queued
from tests.site.world import World, make_world
from webapp.computations import services
from webapp.computations.models import ComputationKind

PATH = chromium()
pytestmark = [
    pytest.mark.browser,
    pytest.mark.skipif(PATH is None, reason="NO BROWSER TESTED: no Chromium found"),
    pytest.mark.django_db(transaction=True),
]
ATOM = ["atom-loading", "atom-speedup", "atom-utilization", "atom-scaling"]


def compute(world: World) -> None:
    """Results of ATOM's experiments, without a process of their own, and another run at work."""
    done = services.claim(queued(world, {"experiments": ATOM}, ComputationKind.PAPERS).pk)
    assert done is not None
    known, at = experiments(), timezone.now().isoformat()
    results = {name: process.answer(known[name]) | {"computed_at": at} for name in ATOM}
    services.finish(done, {"experiments": results})
    at_work = services.claim(queued(world, {"experiments": ATOM}, ComputationKind.PAPERS).pk)
    assert at_work is not None
    services.note_progress(at_work, {"done": 1, "of": 4, "at": "Fig. 14"}, None)


def test_an_empty_page_offers_one_button() -> None:
    with opened(make_world(), viewport={"width": 1440, "height": 900}) as (page, complaints):
        page.goto(f"{SITE}/papers/")
        expect(page.get_by_role("button", name="Compute all figures")).to_be_visible()
        assert_fits(page)
        assert complaints == []


@pytest.mark.parametrize(("width", "theme"), [(1440, "light"), (390, "dark")])
def test_figures_progress_and_plots(width: int, theme: Any) -> None:
    world = make_world()
    compute(world)
    view = {"viewport": {"width": width, "height": 900}, "color_scheme": theme}
    with opened(world, **view) as (page, complaints):
        page.goto(f"{SITE}/papers/")
        expect(page.get_by_text("1 of 4; at work: Fig. 14")).to_be_visible()
        expect(page.get_by_text("Figures that differ")).to_be_visible()
        assert_fits(page)
        page.goto(f"{SITE}/papers/atom/")
        plots = page.locator("[data-plot]")
        expect(plots).to_have_count(3)
        for plot in plots.all():
            plot.scroll_into_view_if_needed()
            expect(plot.locator(".main-svg").first).to_be_visible(timeout=LIMIT_MS)
        assert_fits(page)
        assert complaints == []
