"""The demo journey in a real browser: pages are quiet in the console, accessible, and the timeline lives."""

import hashlib
import re
from collections.abc import Iterator
from uuid import uuid4

import pytest
from playwright.sync_api import Browser, BrowserContext, Page, expect

from tests.demo.browser import Visitor, chromium, launched
from tests.demo.harness import START_S, Client, Demo, run_ids, wait_for
from tests.waiting import until

PATH = chromium()
pytestmark = [
    pytest.mark.browser,
    pytest.mark.timeout(300),  # the first one starts the demo
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


@pytest.fixture(scope="module")
def context(browser: Browser, demo: Demo) -> Iterator[BrowserContext]:
    """A browser in which the operator is logged in: what pages load it loads once."""
    someone = Visitor(browser, demo.url)
    someone.login()
    someone.page.close()
    yield someone.context
    someone.close()


@pytest.fixture
def visitor(browser: Browser, demo: Demo, context: BrowserContext) -> Iterator[Visitor]:
    """The operator, logged in, in a wide window; what the console says fails the test."""
    someone = Visitor(browser, demo.url, context=context)
    yield someone
    someone.close()
    assert not someone.complaints


@pytest.fixture
def run_path(demo: Demo, operator: Client) -> str:
    """The page of the demo run, once it has measured three iterations."""
    run = run_ids(operator.get("/runs/"))[0]
    probe = f"/runs/{run}/live.json"
    wait_for("three iterations", lambda: (operator.json(probe)["run"]["iteration"] or 0) >= 2, START_S)
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


def _drawn_anew(page: Page, before: str) -> None:
    """The browser paints when it comes to it, not when a key is pressed."""
    wait_for("another drawing on the timeline", lambda: _pixels(page) != before, 15)


def _badge(page: Page, text: str) -> None:
    expect(page.locator("[data-badge]")).to_have_text(re.compile(text))


def test_login_refuses_and_admits(browser: Browser, demo: Demo) -> None:
    visitor = Visitor(browser, demo.url)
    visitor.login(password="not this one")
    expect(visitor.page.locator("[role=alert]").first).to_be_visible()
    assert "/login/" in visitor.page.url
    visitor.login()
    expect(visitor.page.locator("h1")).to_have_text("Overview")
    expect(visitor.page.locator("#map a").nth(5)).to_be_attached()  # three data centres, three links
    visitor.close()
    assert not visitor.complaints


def test_the_timeline_paints_and_moves(visitor: Visitor, run_path: str) -> None:
    visitor.go(run_path)
    page = visitor.page
    _badge(page, "^Live$")
    _drawn(page)
    before, iteration = _pixels(page), page.locator("[data-run-iteration]").inner_text()
    expect(page.locator("[data-run-iteration]")).not_to_have_text(iteration)
    _drawn_anew(page, before)
    for name in ("iteration", "utilization", "bubbles", "wan", "loss"):
        expect(page.locator(f'[data-figure="{name}"] [data-value]')).to_have_text(
            re.compile(r"^[\d,]+(\.\d+)?$")
        )
    expect(page.locator("#loss-chart .main-svg").first).to_be_visible()


def test_the_loss_falls(visitor: Visitor, run_path: str) -> None:
    visitor.go(run_path)
    reference = visitor.page.locator('[data-figure="loss"] [data-ref]')
    expect(reference).to_have_text(re.compile(r"at 1, −\d"))


def test_hover_and_keys_tell_of_ops(visitor: Visitor, run_path: str) -> None:
    visitor.go(run_path)
    page, application = visitor.page, visitor.page.locator(APPLICATION)
    _badge(page, "^Live$")
    application.focus()
    page.keyboard.press("Space")
    _badge(page, "^Frozen at [0-9,]+$")
    page.keyboard.press("ArrowRight")
    line = page.locator("[data-timeline] [data-live]")
    expect(line).to_have_text(re.compile(r"stage \d.*start .*took "))
    first = line.inner_text()
    page.keyboard.press("ArrowRight")
    expect(line).not_to_have_text(first)
    frozen = _pixels(page)
    page.keyboard.press("w")
    _drawn_anew(page, frozen)
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
    expect(page.locator("[data-table] tbody tr").nth(12)).to_be_attached()


def test_a_cut_connection_says_so_and_heals(visitor: Visitor, run_path: str) -> None:
    """What came meanwhile is asked for by its seq: no second snapshot is sent."""
    visitor.expected = ("ERR_INTERNET_DISCONNECTED", "ERR_CONNECTION", "WebSocket")
    frames: list[str] = []
    visitor.page.on("websocket", lambda socket: socket.on("framesent", lambda text: frames.append(str(text))))
    visitor.go(run_path)
    _badge(visitor.page, "^Live$")
    visitor.context.set_offline(True)
    _badge(visitor.page, "^Offline, retry")
    before, count = visitor.page.locator("[data-run-iteration]").inner_text(), len(frames)
    visitor.context.set_offline(False)
    _badge(visitor.page, "^Live$")
    expect(visitor.page.locator("[data-run-iteration]")).not_to_have_text(before)
    assert '"since"' in frames[count]


def _frozen(visitor: Visitor, run_path: str) -> Page:
    """The run page, standing at the second iteration."""
    visitor.go(run_path)
    page = visitor.page
    _badge(page, "^Live$")
    page.fill("[data-goto] input", "2")
    page.press("[data-goto] input", "Enter")
    _badge(page, "^Frozen at 2$")
    page.wait_for_url(re.compile("#.*from="))
    return page


@pytest.mark.long
def test_go_to_refuses_in_place(visitor: Visitor, run_path: str) -> None:
    page = _frozen(visitor, run_path)
    field, problem = page.locator("[data-goto] input"), page.locator("[data-goto-problem]")
    for text, answer in (("soon", "An iteration such as"), ("19999", "The run has reached iteration")):
        field.fill(text)
        field.press("Enter")
        expect(problem).to_contain_text(answer)
        expect(field).to_have_attribute("aria-invalid", "true")
    field.press("Escape")
    expect(problem).to_be_hidden()
    page.keyboard.press("l")
    _badge(page, "^Live$")


@pytest.mark.long
def test_a_link_shows_the_same_again(visitor: Visitor, run_path: str) -> None:
    page = _frozen(visitor, run_path)
    page.get_by_role("button", name="By stage").click()
    page.get_by_role("button", name="Measured", exact=True).click()
    page.locator(APPLICATION).focus()
    for key in ("ArrowRight", "ArrowDown", "ArrowRight", "Enter"):
        page.keyboard.press(key)
    page.wait_for_url(re.compile("op="))
    tooltip = page.locator(".tl-tooltip").inner_text()
    other = visitor.context.new_page()
    other.goto(page.url)
    wait_for("the same tooltip", lambda: other.locator(".tl-tooltip").inner_text() == tooltip, 15)
    _badge(other, "^Frozen at 2$")
    other.wait_for_url(re.compile("op="))
    for name in ("By stage", "Measured"):
        expect(other.get_by_role("button", name=name, exact=True)).to_have_attribute("aria-pressed", "true")
    assert other.url == page.url
    wait_for(
        "the same picture",
        lambda: other.locator(CANVAS).evaluate(WINDOW) == page.locator(CANVAS).evaluate(WINDOW),
        15,
    )


# The drawing without minimap and head, where the run goes on.
WINDOW = """canvas => {
    const ratio = devicePixelRatio, part = new OffscreenCanvas(canvas.width - 180 * ratio, 60 * ratio);
    part.getContext("2d").drawImage(canvas, -180 * ratio, -70 * ratio);
    const { data } = part.getContext("2d").getImageData(0, 0, part.width, part.height);
    return data.reduce((sum, byte, i) => (sum * 31 + byte * (i % 97)) % 1000003, 7);
}"""


def test_bubbles_in_the_shown_range_add_up(visitor: Visitor, run_path: str, operator: Client) -> None:
    """What the page counts is what plain arithmetic over the stored spans gives, once it has painted them."""
    page = _frozen(visitor, run_path)
    expect(page.locator("[data-totals-line]")).to_contain_text("idle in all")
    answer = operator.json(run_path + "spans.json?from=0&to=4")
    least = operator.json(run_path + "live.json")["predicted"]["iteration_ms"] * 0.004
    busy: list[list[tuple[float, float]]] = [[] for _ in range(12)]
    for batch in answer["spans"]:
        busy[batch["rank"]] += [(code[2], code[3]) for code in batch["spans"] if code[0] != "T"]

    def is_shown() -> bool:
        low, high = (float(x) for x in re.findall(r"(?:from|to)=(-?[\d.]+)", page.url))
        totals = page.locator("[data-totals-line]").inner_text().replace(",", "")
        match = re.search(r": (\d+) on 12 GPUs ([\d.]+) (ms|s) idle", totals)  # seconds on a busy machine
        assert match, totals
        shown, shown_ms = int(match[1]), float(match[2]) * (1000 if match[3] == "s" else 1)
        # A page counts from the first iteration that it shows: it need not hold the spans before that one.
        # The address has whole milliseconds, so an iteration may end just before or after its `from`.
        firsts = {next(it["start"] for it in answer["iterations"] if it["end"] >= low + d) for d in (-1, 1)}
        sums = [_idle(busy, max(low, first), high, least) for first in firsts]
        near = 6 if match[3] == "s" else 2
        return any(abs(shown - n) <= unsure and abs(shown_ms - ms) <= near for n, unsure, ms in sums)

    until(is_shown, lambda: page.locator("[data-totals-line]").inner_text(), every_s=0.2)
    page.get_by_role("button", name="Per GPU").click()
    expect(page.locator("[data-totals-table] tbody tr")).to_have_count(1 + 3 + 12)


def _idle(
    busy: list[list[tuple[float, float]]], low: float, high: float, least: float
) -> tuple[int, int, float]:
    """Bubbles between low and high: how many, how many of them may count or not, and their sum; ms."""
    count, unsure, idle = 0, 0, 0.0
    for ops in map(sorted, busy):
        ends = [0.0, *(end for _, end in ops)]
        between = [(a, b) for a, (b, _) in zip(ends, ops, strict=False)]
        gaps = [(a, b) for a, b in between if b - a > least]
        inside = [(max(a, low), min(b, high)) for a, b in gaps if b > low and a < high]
        count += len(inside)
        # Times are rounded to a microsecond on their way: a bubble as long as the least one may count or not.
        unsure += sum(abs(b - a - least) < 0.01 for a, b in between)
        # So may one at an end of the shown range, which the address has in whole milliseconds.
        unsure += sum(abs(b - low) < 1 or abs(a - high) < 1 for a, b in gaps)
        idle += sum(b - a for a, b in inside)
    return count, unsure, idle


@pytest.mark.long
def test_the_guide_explains_and_is_remembered(visitor: Visitor, run_path: str) -> None:
    visitor.go(run_path)
    page, guide = visitor.page, visitor.page.locator("[data-guide]")
    expect(guide).to_be_hidden()
    expect(page.locator("#loss-chart")).to_be_visible()
    page.get_by_role("button", name="Explain this timeline").click()
    expect(guide).to_contain_text("2 pipelines of 6 stages: 12 GPUs in 3 data centres")
    expect(guide).to_have_css("position", "fixed")  # so it pushes nothing below the fold
    drawer, beside = guide.bounding_box(), page.locator("#links-chart").bounding_box()
    assert beside
    assert drawer
    assert beside["x"] + beside["width"] <= drawer["x"]
    page.reload()
    expect(guide).to_contain_text("prediction")
    page.keyboard.press("?")
    expect(guide).to_be_hidden()
    page.keyboard.press("?")
    expect(guide).to_be_visible()
    page.keyboard.press("Escape")
    expect(guide).to_be_hidden()
    expect(page.locator("#help")).to_be_hidden()
    page.reload()
    expect(guide).to_be_hidden()


@pytest.mark.long
def test_marks_are_told_and_shown(visitor: Visitor, run_path: str) -> None:
    visitor.go(run_path)
    page = visitor.page
    page.locator(APPLICATION).focus()
    page.keyboard.press("e")
    expect(page.locator("[data-timeline] [data-live]")).to_have_text(
        re.compile("All 12 ranks are running|Launched")
    )
    page.get_by_role("tab", name="Events").click()
    page.locator("[data-marks] li", has_text="All 12 ranks are running").get_by_role("button").click()
    expect(page.locator("#panel-watch")).to_be_visible()
    _badge(page, "^Frozen")


def test_gpus_that_come_later_come_into_their_table(visitor: Visitor, run_path: str) -> None:
    """The page as it was while the run was queued: without rows, which the server's next word brings."""
    page = visitor.page
    visitor.go(run_path)
    _badge(page, "^Live$")
    urls: list[str] = []
    page.on("request", lambda request: urls.append(request.url))
    page.evaluate(QUEUED)
    expect(page.locator("#gpu-count")).to_have_text("12")
    expect(page.locator("#stop-gpus")).to_have_text("Its 12 GPUs are freed within seconds.")
    page.get_by_role("tab", name="GPUs").click()
    expect(page.locator("#gpus tbody tr")).to_have_count(12)
    expect(page.locator("#gpus .state", has_text="Running")).to_have_count(12)
    assert [url.removeprefix(visitor.url) for url in urls].count(run_path) == 1


QUEUED = """() => {
    document.querySelector("#gpus").replaceChildren("No GPUs are assigned yet.");
    document.querySelector("#gpu-count").textContent = "0";
    document.querySelector("#stop-gpus").textContent = "The run has no GPUs yet and stops at once.";
}"""


@pytest.mark.long
def test_the_trace_holds_the_shown_iterations(visitor: Visitor, run_path: str, operator: Client) -> None:
    page = _frozen(visitor, run_path)
    page.keyboard.press("Escape")
    address = page.locator("[data-trace]").get_attribute("href")
    assert address
    trace = operator.json(address[address.index("/runs/") :])
    numbers = {
        event["args"]["iteration"] for event in trace["traceEvents"] if "iteration" in event.get("args", {})
    }
    assert 1 in numbers  # the second, counted from 0
    assert numbers <= {0, 1, 2}


@pytest.mark.long
def test_the_head_links_to_all_there_is_of_a_run(visitor: Visitor, run_path: str) -> None:
    visitor.go(run_path)
    page = visitor.page
    for name in ("Metrics", "Logs"):
        page.get_by_role("link", name=name, exact=True).click()
        expect(page.locator("h1")).to_be_visible()
        page.go_back()
    page.get_by_text("Copy as command").click()
    expect(page.locator("#command-line")).to_have_text(re.compile(r"^meridian train run-\d+\.json$"))
    expect(page.get_by_role("button", name="Retry")).to_be_hidden()
    expect(page.get_by_role("link", name="Clone…")).to_be_visible()
    expect(page.locator("#utilization-chart .main-svg").first).to_be_visible()
    expect(page.locator("#links-chart .main-svg").first).to_be_visible()


@pytest.mark.long
def test_a_blocked_socket_is_polled(visitor: Visitor, run_path: str) -> None:
    visitor.expected = ("WebSocket",)
    visitor.page.route_web_socket(re.compile("/ws/runs/"), lambda socket: socket.close(code=1011))
    visitor.go(run_path)
    _badge(visitor.page, "^Every 5 s$")
    before = visitor.page.locator("[data-run-iteration]").inner_text()
    expect(visitor.page.locator("[data-run-iteration]")).not_to_have_text(before)
    _drawn(visitor.page)


def test_plan_and_its_page(visitor: Visitor) -> None:
    page, name = visitor.page, f"browser-plan-{uuid4().hex[:6]}"
    visitor.go("/plans/new/")
    page.fill("[name=name]", name)
    for box in page.locator("[name=datacenters]").all():
        box.check()
    page.locator(".form-fold summary").click()
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
    expect(page.locator(".options tbody tr").first).to_be_attached()
    assert not visitor.violations()
    page.locator("summary", has_text="More").click()
    page.get_by_role("link", name="Copy and edit").click()
    expect(page.locator("[name=name]")).to_have_value(f"{name} v2")
    expect(page.locator("[name=partitions]")).to_have_value("6")


@pytest.mark.long
def test_a_comparison_shows_its_timelines_on_one_axis(visitor: Visitor) -> None:
    page = visitor.page
    visitor.go("/schedules/new/")
    page.fill("[name=name]", f"browser-{uuid4().hex[:6]}")
    for policy in ("1f1b", "gpipe"):
        page.locator(f"[name=policies][value='{policy}']").set_checked(policy == "gpipe")
    page.get_by_role("button", name="Compare").click()
    sides = page.locator("[data-timeline-list] > section")
    expect(sides).to_have_count(3)  # gpipe, varuna, atlas
    expect(page.locator(".options tbody tr")).to_have_count(3)
    expect(page.locator(".options .is-selected").first).to_contain_text("Atlas")
    expect(sides.nth(2).locator("[data-totals-line]")).to_contain_text("12 GPUs")
    before = sides.nth(2).locator("[data-totals-line]").inner_text()
    page.locator("[data-timelines] > .section-head [data-zoom=in]").click()
    expect(sides.nth(2).locator("[data-totals-line]")).not_to_have_text(before)
    assert not visitor.violations()


@pytest.mark.long
def test_a_narrow_window_never_scrolls_sideways(browser: Browser, demo: Demo, run_path: str) -> None:
    visitor = Visitor(browser, demo.url, width=390)
    visitor.login()
    plan = "/plans/1/"
    for path in (*LISTS, *FORMS, plan, run_path):
        visitor.go(path)
        assert not visitor.sticks_out(), path
    _drawn(visitor.page)
    visitor.page.get_by_role("button", name="Menu").click()
    expect(visitor.page.get_by_role("link", name="Data centres").first).to_be_visible()
    visitor.close()
    assert not visitor.complaints
