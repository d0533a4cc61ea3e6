"""Takes the pictures of one page after the other, and looks at each for faults that a program can see."""

import io
import re
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from PIL import Image
from playwright.sync_api import Browser, Error, Page

from tests.demo.browser import PASSWORD, Visitor

WIDTHS = (1440, 390)
THEMES: tuple[Literal["light", "dark"], ...] = ("light", "dark")
HIGH, TALLEST = 900, 1200  # px that are shown of a page, and of one that is looked at to its end
TO_THE_END = re.compile(
    r"run-(running|large|long)$|metrics-10000|^overview$|jobs.run-detail|plan-detail|schedule-detail"
)
HEAD, STATE_OF_RUN = 560, re.compile(r"run-(?!page|live)")  # these differ in their heads
COLOURS, OF_CANVAS = 32, 48  # in a picture; of pages that draw
LIVELY_MS = 800  # a page that takes longer decides when it is loaded how it looks
SETTLE_MS = {"jobs:run-detail": 2500, "jobs:run-metrics": 1500, "planning:plan-detail": 900, "overview": 500}
LOOK = Path(__file__).with_name("look.js").read_text()


@dataclass(frozen=True, slots=True, kw_only=True)
class Shot:
    """One page to take.

    Attributes
    ----------
    name : of the page; its pictures are called after it.
    path : its address.
    who : user who looks, None: nobody is logged in.
    act : what is done on the page before the picture, once at each width.
    expected : parts of complaints of the console that `act` provokes.
    settle_ms : what the page needs until it stands still, after it is loaded and `act` is done.
    narrow_only : a menu, say, that a wide window does not have.
    alone : what `act` did to the window lasts: the next page gets a new one.
    sparse : light where it is wide and dark where it is narrow: two pictures say enough.
    """

    name: str
    path: str
    who: str | None = "admin"
    act: Callable[[Visitor], None] | None = None
    expected: tuple[str, ...] = ()
    settle_ms: int = 150
    narrow_only: bool = False
    alone: bool = False
    sparse: bool = False

    @property
    def widths(self) -> tuple[int, ...]:
        return WIDTHS[1:] if self.narrow_only else WIDTHS

    @property
    def files(self) -> list[str]:
        return [file_name(self.name, width, theme) for width in self.widths for theme in self.themes(width)]

    def themes(self, width: int) -> tuple[Literal["light", "dark"], ...]:
        return THEMES if not self.sparse else THEMES[:1] if width == WIDTHS[0] else THEMES[1:]

    @property
    def high(self) -> int:
        if TO_THE_END.search(self.name):
            return TALLEST
        return HEAD if STATE_OF_RUN.match(self.name) else HIGH


def file_name(name: str, width: int, theme: str) -> str:
    return f"{re.sub(r'[^a-z0-9]+', '-', name.lower())}-{width}-{theme}.webp"


def encoded(picture: bytes, colours: int) -> bytes:
    """A small WebP of a PNG."""
    # The octree keeps the few green and red pixels of a state, which a median cut would give up.
    octree = Image.Quantize.FASTOCTREE
    few = Image.open(io.BytesIO(picture)).convert("RGB").quantize(colours, octree, dither=Image.Dither.NONE)
    small = io.BytesIO()
    few.convert("RGB").save(small, "WEBP", lossless=True, method=2)
    return small.getvalue()


@dataclass(slots=True, kw_only=True)
class Camera:
    """A browser at one site. A page that fails is told of in `wrong`; the next one is taken all the same."""

    browser: Browser
    url: str
    out: Path
    wrong: list[str] = field(default_factory=list)
    targets: bool = False  # look for small touch targets and for text that is cut off, too
    _visitors: dict[str | None, Visitor] = field(default_factory=dict)

    def take(self, shots: list[Shot]) -> None:
        self.out.mkdir(parents=True, exist_ok=True)
        started = time.monotonic()
        with ThreadPoolExecutor(1) as encoder:
            waiting = [encoder.submit(self._keep, *one) for shot in shots for one in self._pictures(shot)]
            for each in waiting:
                each.result()
        for visitor in self._visitors.values():
            visitor.close()
        sys.stderr.write(f"{self.out.name}: {len(shots)} pages in {time.monotonic() - started:.0f} s\n")

    def _keep(self, file: str, picture: bytes) -> None:
        draws = re.search(r"run-|plan-|schedule|overview|map", file)
        (self.out / file).write_bytes(encoded(picture, OF_CANVAS if draws else COLOURS))

    def _pictures(self, shot: Shot) -> Iterator[tuple[str, bytes]]:
        """(file, PNG) of one page; what is wrong with it goes to `wrong`."""
        try:
            visitor = self._visitor(shot.who)
            visitor.expected = shot.expected
            loads = shot.widths if shot.act or shot.settle_ms > LIVELY_MS else shot.widths[:1]
            for width in shot.widths:
                if width in loads:
                    self._open(visitor, shot, width)
                yield from self._at_width(visitor, shot, width)
        except (Error, AssertionError) as error:
            self.wrong.append(f"{shot.name}: {str(error).splitlines()[0]}")
            self._drop(shot.who)
        else:
            self._heard(visitor, shot)
            if shot.alone:
                self._drop(shot.who)

    def _open(self, visitor: Visitor, shot: Shot, width: int) -> None:
        page = visitor.page
        visitor.context.set_offline(False)
        page.set_viewport_size({"width": width, "height": 900})
        page.emulate_media(color_scheme=THEMES[0])
        page.goto(visitor.url + shot.path)
        page.wait_for_timeout(shot.settle_ms)
        if shot.act:
            shot.act(visitor)
            page.evaluate("scrollTo(0, 0)")  # what sticks to the top would stand in the middle of the picture
            page.wait_for_timeout(150)

    def _at_width(self, visitor: Visitor, shot: Shot, width: int) -> Iterator[tuple[str, bytes]]:
        page = visitor.page
        page.set_viewport_size({"width": width, "height": 900})
        for theme in shot.themes(width):
            page.emulate_media(color_scheme=theme)
            page.wait_for_timeout(200)
            yield file_name(shot.name, width, theme), photograph(page, shot.high)
        if visitor.sticks_out():
            self.wrong.append(f"{shot.name} scrolls sideways at {width} px: {visitor.sticks_out()[:2]}")
        if self.targets:
            seen = asked(page, "clipped") + (asked(page, "small") if width < WIDTHS[0] else [])
            self.wrong += [f"{shot.name} at {width} px, {line}" for line in seen]

    def _heard(self, visitor: Visitor, shot: Shot) -> None:
        self.wrong += [f"{shot.name}: {line}" for line in visitor.complaints]
        visitor.complaints.clear()
        visitor.context.set_offline(False)
        visitor.page.unroute_all(behavior="ignoreErrors")

    def _visitor(self, who: str | None) -> Visitor:
        if who not in self._visitors:
            visitor = Visitor(self.browser, self.url, width=WIDTHS[0])
            visitor.page.set_default_timeout(60_000)
            if who is not None:
                visitor.login(who, PASSWORD)
            self._visitors[who] = visitor
        return self._visitors[who]

    def _drop(self, who: str | None) -> None:
        """After a failure the next page gets a new window."""
        visitor = self._visitors.pop(who, None)
        if visitor is not None:
            try:
                visitor.close()
            except Error:
                self.wrong.append("a window could not be closed")


def asked(page: Page, what: str) -> Any:
    """What the function `what` of look.js answers on the page."""
    return page.evaluate(f"({LOOK.strip()}).{what}()")


def photograph(page: Page, tallest: int) -> bytes:
    """A PNG of the page, full length up to `tallest` px."""
    high = min(tallest, int(page.evaluate("document.documentElement.scrollHeight")))
    size: Any = page.viewport_size
    return page.screenshot(
        full_page=True, clip={"x": 0, "y": 0, "width": size["width"], "height": max(high, 500)}
    )
