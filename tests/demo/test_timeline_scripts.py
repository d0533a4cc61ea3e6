"""The timeline's arithmetic in the browser against plain Python: bubbles, shares, addresses, gaps."""

import json
import re
import threading
from collections.abc import Iterator
from datetime import datetime, time, timedelta
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from zoneinfo import ZoneInfo

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from playwright.sync_api import Page

from tests.demo.browser import WITHIN_MS, chromium, launched

PATH = chromium()
pytestmark = [
    pytest.mark.browser,
    pytest.mark.skipif(PATH is None, reason="NO BROWSER TESTED: no Chromium found"),
]
QUICK = settings(max_examples=30, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
ROOT = Path(__file__).resolve().parents[2]
HELP = ROOT / "templates/partials/help.html"
LEAST_SHARE = 0.004  # of an iteration: what is shorter is a pause between two ops, no bubble


class Quiet(SimpleHTTPRequestHandler):
    def log_message(self, format: str, *args: object) -> None: ...


@pytest.fixture(scope="module")
def page() -> Iterator[Page]:
    """An empty page that can import the site's modules."""
    assert PATH
    server = ThreadingHTTPServer(("127.0.0.1", 0), partial(Quiet, directory=str(ROOT)))
    threading.Thread(target=server.serve_forever, daemon=True).start()
    with launched(PATH) as browser:
        page = browser.new_page(timezone_id="UTC")
        page.set_default_timeout(WITHIN_MS)
        page.goto(f"http://127.0.0.1:{server.server_port}/static/img/meridian.svg")
        yield page
    server.shutdown()


@pytest.fixture
def elsewhere(page: Page) -> Iterator[Page]:
    """The same to someone in Kolkata, on a page that `write` fills."""
    assert page.context.browser
    other = page.context.browser.new_page(timezone_id="Asia/Kolkata")
    other.set_default_timeout(WITHIN_MS)
    yield other
    other.close()


def write(page: Page, at: Page, body: str) -> None:
    """Let `page` show `body`, from the server of `at`."""
    page.route(
        "**/written", lambda route: route.fulfill(body=f"<!doctype html>{body}", content_type="text/html")
    )
    page.goto(at.url.partition("/static/")[0] + "/written")


def js(page: Page, body: str, value: Any) -> Any:
    """What `body`, a function of `v` with `load(name)` for modules below static/js, returns."""
    return page.evaluate(f"async v => {{ const load = name => import('/static/js/' + name); {body} }}", value)


@st.composite
def lanes_of_ops(draw: st.DrawFn) -> list[list[tuple[float, float]]]:
    """Ops (start, end) of some lanes over one iteration of 1,000 ms, in order, none overlapping."""
    lanes = []
    for _ in range(draw(st.integers(1, 3))):
        cuts = draw(st.lists(st.integers(0, 10_000), min_size=2, max_size=16, unique=True))
        times = [cut / 10 for cut in sorted(cuts)]
        lanes.append(list(zip(times[::2], times[1::2], strict=False)))
    return lanes


MODEL = """
const { TimelineModel } = await load('timeline/model.js');
const model = new TimelineModel();
const lanes = v.lanes.map((_, rank) => ({ rank, pipeline: rank, stage: 0, dc: 0 }));
model.reset({ dcs: [{ name: 'a' }], lanes });
const whole = k => ({ iteration: k, start: 1000 * k, end: 1000 * (k + 1), utilization: 0.5 });
model.addIterations([0, 1].map(whole));
model.addSpans([0, 1].flatMap(k => v.lanes.map((ops, rank) => ({ rank, iteration: k,
    spans: ops.map(([s, e], m) => ['F', m, s + 1000 * k, e + 1000 * k]) }))));
"""


def bubbles(ops: list[tuple[float, float]], low: float, high: float) -> tuple[int, float]:
    """Count and length inside [low, high] of the idle times of two equal iterations."""
    twice = ops + [(start + 1000, end + 1000) for start, end in ops]
    edges = [0.0, *[t for op in twice for t in op], 2000.0]
    idle = [(a, b) for a, b in zip(edges[::2], edges[1::2], strict=True) if b - a > 1000 * LEAST_SHARE]
    inside = [(max(a, low), min(b, high)) for a, b in idle if b > low and a < high]
    return len(inside), sum(b - a for a, b in inside)


@QUICK
@given(changes=st.lists(st.integers(0, 30), max_size=5, unique=True), at=st.integers(0, 40), data=st.data())
def test_an_iteration_has_the_prediction_that_held_in_it(
    page: Page, changes: Any, at: int, data: Any
) -> None:
    """Told bit by bit as events do: of what held before, spans come only where they were not told already."""
    since = [0, *sorted(n + 1 for n in changes)]
    plans = [
        {"since": n, "iteration_ms": 100 + i, "utilization": 0.5, "spans": [[0, ["F", 0, 0, 10 + i]]]}
        for i, n in enumerate(since)
    ]
    light = [{k: v for k, v in plan.items() if k != "spans"} for plan in plans]
    count = data.draw(st.integers(1, len(plans)), label="in the snapshot")
    body = """
        const { TimelineModel } = await load('timeline/model.js');
        const model = new TimelineModel();
        model.reset({ dcs: [{ name: 'a' }], lanes: [{ rank: 0, pipeline: 0, stage: 0, dc: 0 }],
            predicted: v.plans[v.told - 1], predicted_before: v.plans.slice(0, v.told - 1) });
        for (let n = v.told; n < v.plans.length; n++) model.setPredicted(v.plans[n], v.light.slice(0, n));
        const held = model.predictionAt(v.at), again = model.predictions.map((one) => one.ops[0].end[0]);
        return { ms: held.ms, ends: held.ops[0].end[0], now: model.predictedMs, all: again };"""
    answer = js(page, body, {"plans": plans, "light": light, "told": count, "at": at})
    own = max(i for i, n in enumerate(since) if n <= at)
    assert answer == {
        "ms": 100 + own,
        "ends": 10 + own,
        "now": 99 + len(plans),
        "all": [10 + i for i in range(len(plans))],
    }


def test_spans_of_an_older_prediction_are_taken_when_they_come(page: Page) -> None:
    old = {"since": 0, "iteration_ms": 100, "utilization": 0.5}
    now = {"since": 7, "iteration_ms": 120, "utilization": 0.5, "spans": [[0, ["F", 0, 0, 20]]]}
    body = """
        const { TimelineModel } = await load('timeline/model.js');
        const { drawn } = await load('timeline/hit.js');
        const model = new TimelineModel();
        model.reset({ dcs: [{ name: 'a' }], lanes: [{ rank: 0, pipeline: 0, stage: 0, dc: 0 }],
            predicted: v.now, predicted_before: [v.old] });
        const anchors = [{ iteration: 6, start: 600 }, { iteration: 7, start: 700 }];
        const scene = { model, mode: 'predicted', anchors };
        const ends = () => drawn(scene, 0).map(([block, shift]) => block.n && block.end[0] + shift);
        const before = ends();
        model.addPredictions([{ ...v.old, spans: [[0, ['F', 0, 0, 10]]] }]);
        return [before, ends()];"""
    assert js(page, body, {"old": old, "now": now}) == [[0, 720], [610, 720]]


@QUICK
@given(lanes=lanes_of_ops(), low=st.integers(0, 1900), length=st.integers(5, 2000))
def test_bubbles_are_the_times_without_ops(page: Page, lanes: Any, low: int, length: int) -> None:
    high = min(low + length, 2000)
    body = (
        MODEL
        + """
        const { bubblesIn } = await load('timeline/gaps.js');
        return model.lanes.map((_, i) => bubblesIn({ model, mode: 'both' }, i, v.low, v.high));"""
    )
    answers = js(page, body, {"lanes": lanes, "low": low, "high": high})
    for ops, answer in zip(lanes, answers, strict=True):
        count, ms = bubbles(ops, low, high)
        assert answer["count"] == count
        assert answer["ms"] == pytest.approx(ms, abs=1e-6)
        assert answer["known"] == pytest.approx(high - low, abs=1e-6)


@QUICK
@given(lanes=lanes_of_ops(), first=st.integers(0, 900), steps=st.integers(1, 40))
def test_coverage_is_the_share_of_time_that_was_busy(page: Page, lanes: Any, first: int, steps: int) -> None:
    body = (
        MODEL
        + """
        const { CoverageCache } = await load('timeline/coverage.js');
        const all = v.lanes.map((_, i) => i), out = new Float32Array(v.steps);
        const coverage = new CoverageCache().get(model, 'row', all, { iteration: 0, start: 0, end: 1000 });
        coverage.shares(out, v.steps, v.first, 100 / v.steps);
        return [...out];"""
    )
    shares = js(page, body, {"lanes": lanes, "first": first, "steps": steps})
    ops = [op for lane in lanes for op in lane]
    high = first + 100
    busy = sum(max(0.0, min(end, high) - max(start, first)) for start, end in ops) / len(lanes)
    # A bin is about 1 ms: what the ends of the range cut through is known to one bin each.
    assert sum(shares) / steps * 100 == pytest.approx(busy, abs=2.1)


@QUICK
@given(
    start=st.floats(-1e7, 1e9),
    length=st.floats(1, 1e6),
    by=st.sampled_from(["dc", "pipeline", "stage"]),
    mode=st.sampled_from(["both", "measured", "predicted"]),
    live=st.booleans(),
    pinned=st.booleans(),
    op=st.tuples(st.integers(0, 1023), st.integers(0, 10**6), st.sampled_from("FRBWAO"), st.integers(-1, 99)),
)
def test_an_address_says_all_that_is_shown(
    page: Page, start: float, length: float, by: str, mode: str, live: bool, pinned: bool, op: Any
) -> None:
    rank, iteration, kind, microbatch = op
    shown = {
        "from": start,
        "to": start + length,
        "by": by,
        "mode": mode,
        "live": live,
        "pinned": pinned,
        "rank": rank,
        "iteration": iteration,
        "kind": kind,
        "microbatch": microbatch,
    }
    body = """
        const { viewParams, parseView } = await load('timeline/permalink.js');
        const timeline = { view: { live: v.live, from: v.from, to: v.to }, by: v.by, mode: v.mode,
            options: {}, open: new Set(), pinned: v.pinned, frame: { anchors: [] },
            model: { lanes: [{ rank: v.rank }] },
            focus: { type: 'op', lane: 0, iteration: v.iteration, kind: v.kind, microbatch: v.microbatch } };
        return parseView('#' + viewParams(timeline).toString());"""
    read = js(page, body, shown) or dict.fromkeys(("from", "to", "by", "mode", "op"))
    assert (read["by"] or "dc", read["mode"] or "both") == (by, mode)
    if live:
        assert read["from"] is None
    else:
        assert (read["from"], read["to"]) == (start, start + length)
    named = {"rank": rank, "iteration": iteration, "kind": kind, "microbatch": microbatch}
    assert read["op"] == (named if pinned else None)


@pytest.mark.parametrize(
    "text", ["", "#events", "#from=1", "#from=9&to=2", "#op=1.2.F", "#by=colour", "#from=a&to=b"]
)
def test_a_wrong_address_asks_for_nothing(page: Page, text: str) -> None:
    assert js(page, "return (await load('timeline/permalink.js')).parseView(v);", text) is None


@pytest.mark.parametrize(
    ("shown", "read"), [([4], (5, None)), ([4, 5, 6], (5, 7)), ([0, 1], (1, 2)), ([], (None, None))]
)
def test_a_link_names_the_iterations_that_it_shows(page: Page, shown: list[int], read: Any) -> None:
    """Without them the page of a run could not ask for spans that it does not hold."""
    body = """
        const { viewParams, parseView } = await load('timeline/permalink.js');
        const anchors = [...v.map(iteration => ({ iteration })), { iteration: 99, ahead: true }];
        const timeline = { view: { live: false, from: 1, to: 2 }, by: 'dc', mode: 'both', options: {},
            open: new Set(), pinned: false, focus: null, frame: { anchors }, model: { lanes: [] } };
        const { iteration, last } = parseView('#' + viewParams(timeline));
        return [iteration, last];"""
    assert tuple(js(page, body, shown)) == read


GONE = """
    const { sayGone } = await load('run/gone.js');
    const timeline = Object.assign(new EventTarget(), {
        view: { live: v.live }, shownIterations: () => v.shown, moved: [], application: document.body,
        model: { hasSpansOf: (first, last) => v.held.some(n => n >= first && n <= last) },
        showIterations: (...range) => timeline.moved.push(range),
    });
    const spans = Object.assign(new EventTarget(), { fetch: async () => true });
    const section = document.querySelector('section'), note = section.querySelector('p');
    sayGone({ timeline, section, spans });
    const [first, last] = v.gone, detail = { first, last, nearest: v.nearest };
    spans.dispatchEvent(new CustomEvent('gone', { detail }));
    timeline.dispatchEvent(new Event('moved'));
    const button = note.querySelector('button');
    if (!button.hidden) button.click();
    await new Promise(done => setTimeout(done));
    return note.hidden ? null : [note.innerText, timeline.moved];"""


@pytest.mark.parametrize(
    ("case", "says"),
    [
        ({"shown": [4, 6]}, "The spans of iterations 5 to 7 are no longer stored. Show iteration 201"),
        ({"shown": [4, 4]}, "The spans of iteration 5 are no longer stored. Show iteration 201"),
        (
            {"nearest": {"from": 1, "to": 2}},
            "The spans of iterations 5 to 6 are no longer stored. Show iterations 2 to 3",
        ),
        ({"nearest": None}, "The spans of iterations 5 to 6 are no longer stored."),
        ({"held": [5]}, None),  # some are there
        ({"live": True}, None),
        ({"gone": [8, 9]}, None),  # nobody looks at these
    ],
)
def test_a_range_that_is_gone_says_so_and_offers_the_nearest(
    page: Page, elsewhere: Page, case: Any, says: Any
) -> None:
    nearest = {"from": 200, "to": 200}
    whole = {"live": False, "shown": [4, 5], "held": [], "gone": [4, 5], "nearest": nearest, **case}
    write(
        elsewhere,
        page,
        "<section><p data-tl-gone hidden><span></span> <button hidden></button></p></section>",
    )
    answer = js(elsewhere, GONE, whole)
    if says is None:
        assert answer is None
        return
    text, moved = answer
    assert " ".join(text.split()) == says
    offered = whole["nearest"]
    assert moved == ([[offered["from"], offered["to"]]] if offered else [])


EPOCH = 1_790_000_000_000.0  # 2026-09-21 14:13:20 UTC, in ms


@pytest.mark.parametrize(
    ("text", "place"),
    [
        ("12", {"iteration": 11}),
        ("1,842", {"iteration": 1841}),
        ("iteration 3", {"iteration": 2}),
        ("#7", {"iteration": 6}),
        ("0", None),
        ("-1", None),
        ("1.5", None),
        ("soon", None),
        ("", None),
        ("350 ms", {"time": 350}),
        ("12.5 s", {"time": 12_500}),
        ("2min", {"time": 120_000}),
        ("25:00", None),
        ("14:13:30", {"time": 10_000}),
        ("14:14", {"time": 40_000}),
        ("14:13:30 UTC", {"time": 10_000}),
        ("14:13:19", {"time": -1_000}),
    ],
)
def test_a_place_is_an_iteration_a_time_or_a_clock_time(page: Page, text: str, place: Any) -> None:
    body = "return (await load('timeline/goto.js')).parsePlace(v.text, { epoch: v.epoch, until: 60000 });"
    assert js(page, body, {"text": text, "epoch": EPOCH}) == place


@pytest.mark.parametrize(
    ("text", "after"),
    [
        ("19:43:30", 10_000),
        ("19:44", 40_000),
        ("14:13:30 utc", 10_000),
        ("14:13:30", 10_000 - 19_800_000),
        ("19:43:19", -1_000),
        ("19:45", 100_000 - 86_400_000),
    ],
)
def test_a_clock_time_is_that_of_the_readers_clock(
    page: Page, elsewhere: Page, text: str, after: int
) -> None:
    """The Events tab beside it shows local times; 14:13:20 UTC is 19:43:20 in Kolkata."""
    write(elsewhere, page, "<p>")
    body = "return (await load('timeline/goto.js')).parsePlace(v.text, { epoch: v.epoch, until: 60000 });"
    assert js(elsewhere, body, {"text": text, "epoch": EPOCH}) == {"time": after}


@pytest.mark.parametrize("text", ["14:00", "12:00:30", "00:30", "23:59:59"])
@pytest.mark.parametrize("day", ["2026-03-29", "2026-10-25"])
def test_a_clock_time_is_right_on_the_day_the_clocks_change(
    page: Page, elsewhere: Page, day: str, text: str
) -> None:
    write(elsewhere, page, '<html data-time-zone="Europe/Berlin">')
    zone = ZoneInfo("Europe/Berlin")
    now = datetime.fromisoformat(f"{day} 15:00").replace(tzinfo=zone)
    wanted = datetime.combine(now.date(), time.fromisoformat(text), tzinfo=zone)
    if wanted.timestamp() > now.timestamp():
        wanted -= timedelta(days=1)
    body = "return (await load('timeline/goto.js')).parsePlace(v.text, { epoch: v.epoch, until: 0 });"
    answer = js(elsewhere, body, {"text": text, "epoch": now.timestamp() * 1e3})
    assert answer["time"] / 1e3 + now.timestamp() == wanted.timestamp()


def test_marks_are_told_at_the_readers_clock(page: Page, elsewhere: Page) -> None:
    write(elsewhere, page, "<p>")
    body = """
        const { factsOf } = await load('timeline/describe.js');
        const mark = (t, text) => ({ t, time: 5000, level: 'warn', text });
        const item = { type: 'mark', marks: [mark(v, 'one'), mark(v + 60, 'two')] };
        return factsOf({ model: {}, zero: 0 }, item);"""
    facts = js(elsewhere, body, EPOCH / 1e3)
    assert facts == [
        ["warning", "2026-09-21 19:43 GMT+5:30"],
        ["at", "5,000.0 ms"],
        ["2026-09-21 19:44", "two"],
    ]


def test_drawings_and_forms_get_the_readers_zone(page: Page, elsewhere: Page) -> None:
    at = 'data-at="2026-03-01T23:30:00+00:00"'
    write(
        elsewhere,
        page,
        f"""<svg><text {at} data-when="minute">x</text>
        <circle><title {at} data-when="second" data-rest=": 5 ms">x</title></circle></svg>
        <input type="hidden" data-zone-name>""",
    )
    body = """
        (await load('lib/times.js')).localTimes();
        const text = name => document.querySelector(name).textContent;
        return [text('svg text'), text('svg title'), document.querySelector('input').value];"""
    written = ["2026-03-02 05:00 GMT+5:30", "2026-03-02 05:00:00 GMT+5:30: 5 ms"]
    answer = js(elsewhere, body, None)
    assert answer[:2] == written
    assert answer[2] in ("Asia/Kolkata", "Asia/Calcutta")


def test_g_and_a_letter_go_to_a_page(page: Page, elsewhere: Page) -> None:
    """Each pair that the list of keys names leads where it says, and no other is there."""
    names = re.findall(r"<kbd>g</kbd> <kbd>(\w)</kbd></dt><dd>([\w ]+)<", HELP.read_text())
    pages = {key: name.replace("data centre", "datacenter") for key, name in names}
    assert pages["s"] == "schedules"
    links = "".join(f'<a href="#{name}" data-go="{name}">x</a>' for name in pages.values())
    write(elsewhere, page, links)
    js(elsewhere, "(await load('lib/keys.js')).initKeys();", None)
    for key, name in pages.items():
        elsewhere.keyboard.press("g")
        elsewhere.keyboard.press(key)
        assert elsewhere.evaluate("location.hash") == f"#{name}"
    listed = re.search(r"const GO = {(.*)}", (ROOT / "static/js/lib/keys.js").read_text())
    assert listed
    assert set(re.findall(r"(\w): \"", listed[1])) == set(pages)


RANKS = """
const { showRanks } = await load('run/status.js'), section = document.querySelector('#gpus');
let asked = 0;
section.addEventListener('meridian:gpus', () => { asked++; });
const ranks = [0, 1].map(rank => ({ rank, state: 'running', detail: `line ${rank}` }));
const row = rank => `<p data-rank="${rank}"><i class="state" data-state="ready"></i> <b data-detail></b></p>`;
showRanks(undefined); const before = asked;
showRanks(ranks); const missing = asked;
section.innerHTML = row(0) + row(1);
section.dispatchEvent(new Event('htmx:afterSettle', { bubbles: true }));
const filled = [...section.children].map(p => p.textContent);
showRanks(ranks);
return { before, missing, after: asked, filled };
"""


def test_ranks_without_a_row_let_the_table_be_asked_for(page: Page, elsewhere: Page) -> None:
    write(elsewhere, page, '<section id="gpus"></section>')
    answer = js(elsewhere, RANKS, None)
    assert answer["filled"] == ["Running line 0", "Running line 1"]
    assert (answer["before"], answer["missing"], answer["after"]) == (0, 1, 1)


SERVER = """
const sent = [];
class FakeSocket extends EventTarget {
  static OPEN = 1; static CONNECTING = 0;
  constructor() { super(); this.readyState = 1; FakeSocket.last = this; }
  send(text) { sent.push(JSON.parse(text)); }
  close() {}
  say(message) { this.dispatchEvent(new MessageEvent('message', { data: JSON.stringify(message) })); }
}
globalThis.WebSocket = FakeSocket;
let clock = 1e6; Date.now = () => (clock += 2000);
const { Connection } = await load('run/connection.js');
const connection = new Connection({ path: '/', liveUrl: '/' }), applied = [];
connection.addEventListener('message', ({ detail }) => applied.push(detail.seq));
connection.begin(v.known); connection.open();
const socket = FakeSocket.last; socket.dispatchEvent(new Event('open'));
for (const seq of v.messages) {
  socket.say({ type: 'events', seq });
  // The server answers a question with everything after the seq that it names.
  for (let ask; (ask = sent.shift());) {
    for (let n = ask.seq + 1; n <= seq; n++) socket.say({ type: 'events', seq: n });
  }
}
clearInterval(connection.watch);
return applied;
"""


@QUICK
@given(known=st.integers(0, 50), steps=st.lists(st.sampled_from([0, 1, 1, 1, 2, 5]), max_size=30))
def test_every_message_is_applied_once_and_in_order(page: Page, known: int, steps: list[int]) -> None:
    """Messages come twice (step 0) or are lost (steps over 1): what is applied has no gap and no double."""
    messages, seq = [], known
    for step in steps:
        seq += step
        messages.append(seq)
    applied = js(page, SERVER, {"known": known, "messages": messages})
    assert applied == list(range(known + 1, seq + 1)), json.dumps(messages)


SPACE = """
const { listenForKeys } = await load('timeline/keys.js'), root = document.querySelector('#timeline');
window.frozen = 0;
listenForKeys({ options: { still: v }, toggleFreeze() { window.frozen++; } }, root, root.firstElementChild);
"""
SPACED = """<main id="content" tabindex="-1"><a id="link" href="#x">x</a><button id="button">x</button>
<input id="field"><details><summary id="summary">x</summary></details>
<div id="timeline"><div id="application" tabindex="0">x</div></div></main><p style="height: 5000px"></p>"""


def test_space_freezes_wherever_it_would_only_scroll(page: Page, elsewhere: Page) -> None:
    """Without the pointer over the timeline too; what presses, opens or types keeps its Space."""
    write(elsewhere, page, SPACED)
    js(elsewhere, SPACE, False)
    for focused, freezes in {
        "content": 1,
        "link": 1,
        "application": 1,
        "button": 0,
        "field": 0,
        "summary": 0,
    }.items():
        elsewhere.focus(f"#{focused}")
        before = elsewhere.evaluate("frozen")
        elsewhere.keyboard.press("Space")
        assert elsewhere.evaluate("frozen") - before == freezes, focused
        assert elsewhere.evaluate("scrollY") == 0, focused
    elsewhere.evaluate("document.activeElement.blur()")
    elsewhere.keyboard.down("Space")
    elsewhere.keyboard.down("Space")  # held, it comes again
    assert elsewhere.evaluate("frozen") == 4
    elsewhere.keyboard.up("Space")
    elsewhere.evaluate("document.querySelector('#timeline').hidden = true")
    elsewhere.keyboard.press("Space")
    assert elsewhere.evaluate("frozen") == 4, "on another tab of the page Space scrolls"


def test_times_in_slots_are_said_in_slots(page: Page) -> None:
    body = """
        const { duration, instant } = await load('lib/format.js');
        return v.map(x => [duration(x, 'slots').join(' '), instant(x, 'slots'), instant(x)]);"""
    assert js(page, body, [38, 12_000.5]) == [
        ["38 slots", "38 slots", "38.0 ms"],
        ["12,000.5 slots", "12,000.5 slots", "12.001 s"],
    ]


def test_a_timeline_says_the_unit_that_it_was_given(page: Page) -> None:
    """Every word with a unit takes that of the model: none is written out in a file of the timeline."""
    body = "const { TimelineModel } = await load('timeline/model.js'), m = new TimelineModel();"
    assert js(page, f"{body} const ms = m.unit; m.reset({{ unit: v }}); return [ms, m.unit];", "slots") == [
        "ms",
        "slots",
    ]
    for file in (ROOT / "static/js/timeline").glob("*.js"):
        for call in re.findall(
            r"(?:instant|durationText|duration)\(([^()]*(?:\([^()]*\)[^()]*)*)\)", file.read_text()
        ):
            assert "unit" in call, f"{file.name}: {call} does not say its unit"
