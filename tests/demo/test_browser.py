"""The demo journey in a real browser: pages are quiet in the console, accessible, and the timeline lives."""

import hashlib
import re
from collections.abc import Iterator
from uuid import uuid4

import pytest
from playwright.sync_api import Browser, Page, expect

from tests.demo.browser import Visitor, chromium, launched
from tests.demo.harness import Client, Demo, run_ids, wait_for

PATH = chromium()
pytestmark = [
    pytest.mark.browser,
    pytest.mark.timeout(180),
    pytest.mark.skipif(
        PATH is None, reason="NO BROWSER TESTED: no Chromium found (install one, or set CHROMIUM to its path)"
    ),
]
LISTS = ("/", "/plans/", "/runs/", "/datacenters/", "/nodes/", "/links/")
FORMS = ("/plans/new/", "/datacenters/new/", "/nodes/new/", "/links/new/")
CANVAS = "canvas.tl-base"
APPLICATION = "[data-timeline-app]"


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    assert PATH
    with launched(PATH) as running:
        yield running


@pytest.fixture
def visitor(browser: Browser, demo: Demo) -> Iterator[Visitor]:
    """The operator, logged in, in a wide window; what the console says fails the test."""
    someone = Visitor(browser, demo.url)
    someone.login()
    yield someone
    someone.close()
    assert not someone.complaints


@pytest.fixture
def run_path(demo: Demo, operator: Client) -> str:
    """The page of the demo run, once it has measured three iterations."""
    run = run_ids(operator.get("/runs/"))[0]
    probe = f"/runs/{run}/live.json"
    wait_for("three iterations", lambda: (operator.json(probe)["run"]["iteration"] or 0) >= 2, 90)
    return f"/runs/{run}/"


def _pixels(page: Page) -> str:
    return hashlib.sha256(page.locator(CANVAS).evaluate("c => c.toDataURL()").encode()).hexdigest()


def _colours(page: Page) -> int:
    """How many colours the drawing has: an empty canvas has one or two."""
    script = """canvas => {
        const copy = new OffscreenCanvas(canvas.width, canvas.height);
        const context = copy.getContext("2d", { willReadFrequently: true });
        context.drawImage(canvas, 0, 0);
        const { data } = context.getImageData(0, 0, copy.width, copy.height);
        return new Set(new Uint32Array(data.buffer)).size;
    }"""
    return int(page.locator(CANVAS).evaluate(script))


def _drawn(page: Page) -> None:
    wait_for("a drawing on the timeline", lambda: _colours(page) > 20, 15)


def _badge(page: Page, text: str, seconds: float = 20) -> None:
    expect(page.locator("[data-badge]")).to_have_text(re.compile(text), timeout=seconds * 1000)


def test_login_refuses_and_admits(browser: Browser, demo: Demo) -> None:
    visitor = Visitor(browser, demo.url)
    visitor.login(password="not this one")
    expect(visitor.page.locator("[role=alert]").first).to_be_visible()
    assert "/login/" in visitor.page.url
    visitor.login()
    expect(visitor.page.locator("h1")).to_have_text("Overview")
    assert visitor.page.locator("#map a").count() >= 6  # three data centres, three links
    visitor.close()
    assert not visitor.complaints


def test_the_timeline_paints_and_moves(visitor: Visitor, run_path: str) -> None:
    visitor.go(run_path)
    page = visitor.page
    _badge(page, "^Live$")
    _drawn(page)
    before, iteration = _pixels(page), page.locator("[data-run-iteration]").inner_text()
    expect(page.locator("[data-run-iteration]")).not_to_have_text(iteration, timeout=15_000)
    assert _pixels(page) != before
    for name in ("iteration", "utilization", "bubbles", "wan", "loss"):
        expect(page.locator(f'[data-figure="{name}"] [data-value]')).to_have_text(
            re.compile(r"^[\d,]+(\.\d+)?$")
        )
    expect(page.locator("#loss-chart .main-svg").first).to_be_visible()


def test_the_loss_falls(visitor: Visitor, run_path: str) -> None:
    visitor.go(run_path)
    reference = visitor.page.locator('[data-figure="loss"] [data-ref]')
    expect(reference).to_have_text(re.compile(r"at 1, −\d"), timeout=30_000)


def test_hover_and_keys_tell_of_ops(visitor: Visitor, run_path: str) -> None:
    visitor.go(run_path)
    page, application = visitor.page, visitor.page.locator(APPLICATION)
    _badge(page, "^Live$")
    application.focus()
    page.keyboard.press("Space")
    _badge(page, "^Frozen at [0-9,]+$")
    page.keyboard.press("ArrowRight")
    told = page.locator("[data-timeline] [data-live]")
    expect(told).to_have_text(re.compile(r"stage \d.*start .*took "))
    first = told.inner_text()
    page.keyboard.press("ArrowRight")
    expect(told).not_to_have_text(first)
    frozen = _pixels(page)
    page.keyboard.press("w")
    assert _pixels(page) != frozen
    page.keyboard.press("Escape")
    page.keyboard.press("l")
    _badge(page, "^Live$")
    box = page.locator(CANVAS).bounding_box()
    assert box
    tooltip = page.locator(".tl-tooltip")
    for share in (0.3, 0.4, 0.5, 0.6):
        page.mouse.move(box["x"] + box["width"] * share, box["y"] + 80)
        if tooltip.is_visible():
            break
    expect(tooltip).to_contain_text("took")


def test_predicted_mode_draws_and_the_table_has_rows(visitor: Visitor, run_path: str) -> None:
    visitor.go(run_path)
    page = visitor.page
    _badge(page, "^Live$")
    page.get_by_role("button", name="Predicted", exact=True).click()
    _drawn(page)
    page.get_by_role("button", name="Show as table").click()
    assert page.locator("[data-table] tbody tr").count() > 12


def test_a_cut_connection_says_so_and_heals(visitor: Visitor, run_path: str) -> None:
    visitor.expected = ("ERR_INTERNET_DISCONNECTED", "ERR_CONNECTION", "WebSocket")
    visitor.go(run_path)
    _badge(visitor.page, "^Live$")
    visitor.context.set_offline(True)
    _badge(visitor.page, "^Offline, retry")
    visitor.context.set_offline(False)
    _badge(visitor.page, "^Live$", 40)


def test_plan_and_its_page(visitor: Visitor) -> None:
    page, name = visitor.page, f"browser-plan-{uuid4().hex[:6]}"
    visitor.go("/plans/new/")
    page.fill("[name=name]", name)
    for box in page.locator("[name=datacenters]").all():
        box.check()
    page.fill("[name=partitions]", "6")
    page.locator("[name=partitions]").evaluate(
        "input => { input.removeAttribute('min'); input.value = '0'; }"
    )
    visitor.expected = ("422",)  # the browser reports the refused form
    page.get_by_role("button", name="Compute plan").click()
    expect(page.locator(".errors").first).to_contain_text("greater than or equal to 1")
    page.fill("[name=partitions]", "6")
    page.get_by_role("button", name="Compute plan").click()
    expect(page.locator("h1")).to_have_text(name)
    expect(page.get_by_role("button", name=re.compile("^Launch D = "))).to_be_visible()
    _drawn(page)
    assert page.locator(".options tbody tr").count() >= 1
    assert not visitor.violations()
    page.get_by_role("link", name="Edit as a new plan").click()
    expect(page.locator("[name=name]")).to_have_value(f"{name} v2")
    expect(page.locator("[name=partitions]")).to_have_value("6")


@pytest.mark.parametrize(
    ("theme", "paths"), [("light", (*LISTS, "/plans/new/", "/nodes/new/")), ("dark", ("/", "/plans/new/"))]
)
def test_pages_are_accessible(
    browser: Browser, demo: Demo, run_path: str, theme: str, paths: tuple[str, ...]
) -> None:
    visitor = Visitor(browser, demo.url, theme=theme)
    visitor.login()
    found = []
    for path in (*paths, run_path):
        visitor.go(path)
        found += visitor.violations()
    visitor.close()
    assert not found
    assert not visitor.complaints


def test_a_narrow_window_never_scrolls_sideways(browser: Browser, demo: Demo, run_path: str) -> None:
    visitor = Visitor(browser, demo.url, width=390)
    visitor.login()
    plan = "/plans/1/"
    for path in (*LISTS, *FORMS, plan, run_path):
        visitor.go(path)
        assert not visitor.scrolls_sideways(), path
    _drawn(visitor.page)
    visitor.page.get_by_role("button", name="Menu").click()
    expect(visitor.page.get_by_role("link", name="Data centres").first).to_be_visible()
    visitor.close()
    assert not visitor.complaints
