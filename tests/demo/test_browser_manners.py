"""Small manners of the pages in a real browser: copying, asking first, where the focus goes, whose clock."""

import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path
from typing import Any
from uuid import uuid4
from zoneinfo import ZoneInfo

import pytest
from playwright.sync_api import Browser, Page, expect

from tests.demo.browser import WITHIN_MS, Visitor, chromium, launched
from tests.demo.harness import Client, Demo

PATH = chromium()
pytestmark = [
    pytest.mark.long,  # what is read and clicked most is in test_browser.py
    pytest.mark.browser,
    pytest.mark.timeout(300),  # the first one starts the demo
    pytest.mark.skipif(
        PATH is None, reason="NO BROWSER TESTED: no Chromium found (install one, or set CHROMIUM to its path)"
    ),
]
WORD = "correct horse battery staple"
FOCUSED = "document.activeElement.outerHTML"


@pytest.fixture(scope="module")
def person(demo: Demo) -> str:
    """The name of a viewer who joined by invitation: their sessions and settings are nobody else's."""
    admin, name = Client(demo.url), f"ada-{uuid4().hex[:6]}"
    admin.login("admin", "meridian-demo")
    team = re.findall(r'name="team" value="(\d+)"|<option value="(\d+)"', admin.get("/invitations/new/"))[0]
    form = {"email": f"{name}@example.org", "team": "".join(team), "role": "viewer"}
    link = re.findall(r"/join/[^/\"<]+/", admin.post("/invitations/new/", form))[0]
    new = Client(demo.url)
    new.get(link)
    new.post(
        link, {"username": name, "first_name": "", "last_name": "", "password1": WORD, "password2": WORD}
    )
    return name


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    assert PATH
    with launched(PATH) as running:
        yield running


@pytest.fixture
def visitor(browser: Browser, demo: Demo, person: str) -> Iterator[Visitor]:
    someone = Visitor(browser, demo.url)
    someone.login(person, WORD)
    yield someone
    someone.close()
    assert not someone.complaints


def test_a_plan_copied_as_a_command_gives_the_same_plan_in_a_shell(visitor: Visitor, tmp_path: Path) -> None:
    visitor.context.grant_permissions(["clipboard-read", "clipboard-write"])
    visitor.go("/plans/1/")
    page = visitor.page
    page.locator("summary", has_text="Copy as command").click()
    page.get_by_role("button", name="Copy with the document included").click()
    expect(page.get_by_role("button", name="Copied")).to_be_visible()
    expect(page.locator("#said")).to_have_text("Copied")
    command = page.evaluate("navigator.clipboard.readText()")
    head, _, rest = command.partition("\n")
    assert head == "meridian plan - <<'DOCUMENT'"
    document = json.loads(rest.rpartition("DOCUMENT")[0])
    folder = Path(sys.executable).parent
    shell = ["bash", "-c", command.replace("meridian plan -", "meridian plan --json -", 1)]
    environment = {**os.environ, "PATH": f"{folder}:{os.environ['PATH']}"}
    done = subprocess.run(
        shell, capture_output=True, text=True, check=False, timeout=120, env=environment, cwd=tmp_path
    )
    assert done.returncode == 0, done.stderr
    assert document["job"]["partitions"] == 6
    options, shown = (
        json.loads(done.stdout)["options"],
        visitor.page.evaluate(
            "JSON.parse(document.querySelector('script[type=\"application/json\"]').textContent).options"
        ),
    )
    assert [option["iteration_ms"] for option in options] == [option["iteration_ms"] for option in shown]


def test_what_ends_sessions_asks_first_and_gives_the_focus_back(
    visitor: Visitor, browser: Browser, demo: Demo, person: str
) -> None:
    elsewhere = Client(demo.url)
    elsewhere.login(person, WORD)
    assert "Open sessions" in elsewhere.get("/account/")
    visitor.go("/account/")
    page = visitor.page
    button, dialog = page.locator("form[data-confirm] button"), page.locator("#confirm")
    for way in ("Escape", "Cancel"):
        button.focus()
        page.keyboard.press("Enter")
        expect(dialog).to_be_visible()
        expect(dialog.locator("h2")).to_have_text("Log out all other sessions?")
        expect(dialog.get_by_role("button", name="Cancel")).to_be_focused()  # the harmless one
        page.keyboard.press("Escape" if way == "Escape" else "Enter")
        expect(dialog).to_be_hidden()
        expect(button).to_be_focused()
    assert "Open sessions" in elsewhere.get("/account/"), "nothing was sent"
    button.click()
    dialog.get_by_role("button", name="Log out all other sessions").click()
    expect(page.locator("form[data-confirm]")).to_have_count(0)
    assert "Open sessions" not in elsewhere.get("/account/")
    assert page.url.endswith("/account/")


def test_a_page_that_refreshes_itself_gives_the_focus_back(visitor: Visitor) -> None:
    visitor.go("/")
    page = visitor.page
    link = page.locator("#overview table a").first
    link.focus()
    address = link.get_attribute("href")
    page.evaluate("document.querySelector('#overview').dataset.old = 'yes'")
    expect(page.locator("#overview[data-old]")).to_have_count(0)  # within its five seconds
    assert f'href="{address}"' in page.evaluate(FOCUSED)


def test_pointing_at_a_data_centre_shows_its_links_alone(visitor: Visitor) -> None:
    """Also after the overview has put a new drawing into its page; and the page of the map draws the same."""
    for path in ("/", "/map/"):
        visitor.go(path)
        page = visitor.page
        if path == "/":
            page.evaluate("document.querySelector('#overview').dataset.old = 'yes'")
            expect(page.locator("#overview[data-old]")).to_have_count(0)
        centre = page.locator("[data-map] [data-dc]").first
        number = centre.get_attribute("data-dc")
        centre.focus()
        lines = page.locator("[data-map].is-focused a.line")
        expect(lines).to_have_count(3)
        near = page.locator(f"[data-map] a.line.is-near:is([data-a='{number}'], [data-b='{number}'])")
        expect(near).to_have_count(2)
        expect(page.locator("[data-map] a.line.is-near")).to_have_count(2)


def shown(page: Page) -> list[tuple[str, str]]:
    """(machine time, what is written) of the times in the list of runs."""
    times: Any = page.locator("time[data-when='second cell']").evaluate_all(
        "all => all.map(t => [t.dateTime, t.textContent])"
    )
    return [(machine, text) for machine, text in times]


def in_zone(machine: str, zone: str) -> str:
    return datetime.fromisoformat(machine).astimezone(ZoneInfo(zone)).strftime("%Y-%m-%d %H:%M:%S")


def test_times_are_those_of_the_browsers_zone_then_of_the_accounts(
    browser: Browser, demo: Demo, person: str
) -> None:
    context = browser.new_context(timezone_id="Asia/Kolkata")
    context.set_default_timeout(WITHIN_MS)
    page = context.new_page()
    page.goto(f"{demo.url}/login/")
    page.fill("[name=username]", person)
    page.fill("[name=password]", WORD)
    page.press("[name=password]", "Enter")
    expect(page.locator("h1")).to_have_text("Overview")
    for zone, heading in (("Asia/Kolkata", r"GMT\+5:30"), ("America/St_Johns", "GMT-(2|3):30")):
        if zone != "Asia/Kolkata":
            page.goto(f"{demo.url}/account/edit/")
            page.select_option("[name=time_zone]", zone)
            page.press("[name=email]", "Enter")
            expect(page.locator("html")).to_have_attribute("data-time-zone", zone)
        page.goto(f"{demo.url}/runs/")
        expect(page.locator("th [data-zone]").first).to_have_text(re.compile(heading))
        times = shown(page)
        assert times
        assert [text for _, text in times] == [in_zone(machine, zone) for machine, _ in times]
    context.close()


def test_days_of_the_audit_are_those_of_the_browser(browser: Browser, demo: Demo) -> None:
    """The zone goes with a day and with nothing else."""
    context = browser.new_context(timezone_id="America/St_Johns")
    visitor = Visitor(browser, demo.url, context=context)
    visitor.login("admin")
    visitor.go("/audit/")
    page = visitor.page
    page.select_option("[name=verb]", "launch")
    page.wait_for_url(re.compile(r"verb=launch"))
    assert "zone=" not in page.url
    page.fill("[name=since]", "2020-01-01")
    page.press("[name=since]", "Enter")
    page.wait_for_url(re.compile(r"zone=America%2FSt_Johns.*since=2020-01-01"))
    expect(page.locator("#list tbody tr").first).to_be_visible()
    expect(page.locator("#exports a").first).to_have_attribute("href", re.compile("zone=America"))
    assert not visitor.complaints
    context.close()
