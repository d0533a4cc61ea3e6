"""A real browser for the tests of the pages: found on this machine, strict about what its console says."""

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import Browser, BrowserContext, ConsoleMessage, Page, expect, sync_playwright

from tests.waiting import LIMIT_S

FLAGS = (
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
)
MACOS = "/Applications/Google Chrome.app/Contents/MacOS/Google Chrome"
NAMES = ("chromium", "chromium-browser", "google-chrome", MACOS)
PASSWORD = "meridian-demo"
WITHIN_MS = 1e3 * LIMIT_S  # for a busy machine: what is there at once is not waited for
expect.set_options(timeout=WITHIN_MS)
STICKS_OUT = """[...document.querySelectorAll("body *")]
    .filter((e) => e.getBoundingClientRect().right > document.scrollingElement.clientWidth)
    .slice(0, 8).map((e) => e.outerHTML.slice(0, 160))"""


def chromium() -> str | None:
    """Path of a Chromium: what CHROMIUM names, else the first of the usual names on the path."""
    chosen_path = os.environ.get("CHROMIUM")
    return next(
        (path for name in ([chosen_path] if chosen_path else NAMES) if (path := shutil.which(name))), None
    )


@contextmanager
def launched(path: str) -> Iterator[Browser]:
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=path, args=list(FLAGS))
        try:
            yield browser
        finally:
            browser.close()


# htmx says so of a part of a page that was still loading when its user left the page. What goes wrong with a
# request has a line of its own next to afterRequest's.
LEFT = ("htmx:sendAbort", "htmx:afterRequest")


def complains(message: ConsoleMessage, expected: tuple[str, ...] = ()) -> bool:
    """Whether the console has a fault of the page; `expected` are texts of those that a test provokes."""
    return message.type in ("error", "warning") and not any(
        text in message.text for text in (*LEFT, *expected)
    )


class Visitor:
    """One page of one user, which remembers every complaint of the browser.

    context : of earlier visitors, with their login and cache; None: one of its own, nobody is logged in.
    expected : texts whose appearance in a complaint is what the test provoked.
    """

    def __init__(
        self,
        browser: Browser,
        url: str,
        *,
        width: int = 1440,
        theme: Any = "light",
        context: BrowserContext | None = None,
    ) -> None:
        self.url = url
        self.complaints: list[str] = []
        self.expected: tuple[str, ...] = ()
        view: Any = {"width": width, "height": 900}
        self._is_guest = context is not None
        self.context = context or browser.new_context(viewport=view, color_scheme=theme)
        self.page: Page = self.context.new_page()
        self.page.set_default_timeout(WITHIN_MS)
        self.page.on("console", self._hear)
        self.page.on("pageerror", lambda error: self.complaints.append(f"{self.page.url}: {error}"))

    def _hear(self, message: ConsoleMessage) -> None:
        if complains(message, self.expected):
            self.complaints.append(f"{self.page.url}: {message.text}")

    def go(self, path: str) -> None:
        response = self.page.goto(self.url + path)
        assert response, path
        assert response.ok, f"{path}: {response.status}"

    def login(self, name: str = "operator", password: str = PASSWORD) -> None:
        self.page.goto(self.url + "/login/")
        self.page.fill("[name=username]", name)
        self.page.fill("[name=password]", password)
        self.page.press("[name=password]", "Enter")
        self.page.wait_for_load_state()

    def sticks_out(self) -> list[str]:
        """What makes the page wider than its window once it is laid out; nothing where it is not wider."""
        root = "document.scrollingElement"
        for _ in range(50):  # while it is being laid out it may be
            if not self.page.evaluate(f"{root}.scrollWidth > {root}.clientWidth"):
                return []
            self.page.wait_for_timeout(100)
        return list(self.page.evaluate(STICKS_OUT)) or ["something"]

    def violations(self) -> list[str]:
        """What axe finds of serious and critical weight, each with the first element that it names."""
        rules = Axe().run(self.page).response["violations"]
        grave = [rule for rule in rules if rule["impact"] in ("serious", "critical")]
        return [f"{self.page.url} {rule['id']}: {rule['nodes'][0]['html'][:160]}" for rule in grave]

    def close(self) -> None:
        """Leaves nothing behind; in a context of others, no page open and nothing that a page remembers."""
        if not self._is_guest:
            self.context.close()
            return
        self.context.set_offline(False)
        self.page.evaluate("localStorage.clear()")
        for page in self.context.pages:
            page.close()
