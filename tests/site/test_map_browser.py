"""The map in a browser: its keys work on from one drawing to the next, and Ctrl and the wheel zoom."""

from typing import Any

import pytest
from playwright.sync_api import Page, expect

from tests.demo.browser import chromium, launched
from tests.site.browsing import LIMIT_MS, SITE, another_thread, answer
from tests.site.many import datacenters
from tests.site.world import make_world

PATH = chromium()
pytestmark = [
    pytest.mark.browser,
    pytest.mark.skipif(PATH is None, reason="NO BROWSER TESTED: no Chromium found"),
]
# The drawing is that of the address; without one it shows `all`, so many degrees across.
DRAWN = """(all) => {
  const at = document.querySelector('#map [data-map]').dataset, url = new URLSearchParams(location.search);
  const near = (name) => Math.abs(Number(url.get(name)) - Number(at[name])) < 0.01;
  return url.has('lat') ? ['lat', 'lon', 'degrees'].every(near) : Number(at.degrees) === all;
}"""


def shown(page: Page) -> tuple[float, float, float]:
    """(latitude, longitude, degrees across) of the drawing."""
    names = ("lat", "lon", "degrees")
    data = page.eval_on_selector("#map [data-map]", "map => ({...map.dataset})")
    return tuple(float(data[name]) for name in names)  # type: ignore[return-value]


@pytest.mark.django_db(transaction=True)
@pytest.mark.parametrize("focused", ["#map", "#map [data-dc]"])
def test_keys_move_and_zoom_the_map_again_and_again(focused: str) -> None:
    world = make_world()
    datacenters(world, range(4))
    client = world.client("viewer")
    assert PATH
    with another_thread() as apart, launched(PATH) as browser:
        page = browser.new_page()
        page.set_default_timeout(LIMIT_MS)
        page.route("**/*", lambda route: answer(client, apart, route))
        page.goto(f"{SITE}/map/")
        page.locator(focused).first.focus()

        def after(act: Any, *given: Any) -> tuple[float, float, float]:
            before = page.url
            act(*given)
            expect(page).not_to_have_url(before, timeout=LIMIT_MS)
            page.wait_for_function(DRAWN, arg=whole[2])
            return shown(page)

        whole = shown(page)
        nearer = after(page.keyboard.press, "+")
        nearest = after(page.keyboard.press, "+")
        assert whole[2] > nearer[2] > nearest[2]
        east = after(page.keyboard.press, "ArrowRight")
        assert east[1] > nearest[1]
        north = after(page.keyboard.press, "ArrowUp")
        assert north[0] > east[0]
        farther = after(page.keyboard.press, "-")
        assert farther[2] > north[2]
        assert after(page.keyboard.press, "0") == whole
        box = page.locator("#map [data-map]").bounding_box()
        assert box
        page.mouse.move(box["x"] + box["width"] / 2, box["y"] + box["height"] / 2)
        page.mouse.wheel(0, -240)
        assert shown(page) == whole, "the wheel alone scrolls the page"
        page.keyboard.down("Control")
        zoomed = after(page.mouse.wheel, 0, -240)
        assert zoomed[2] < whole[2]
