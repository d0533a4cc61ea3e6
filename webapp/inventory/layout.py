"""Where things stand on the map of data centres: places by longitude and latitude, plates that do not hide
each other, curves that do not run behind plates, labels where there is room. Lengths are of the drawing."""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import ClassVar

WIDE, HIGH = 1040.0, 430.0
EDGE = 14.0  # kept free at the frame
GAP = 12.0  # kept free between plates
STRIP = 96.0  # at the foot, for places that nobody knows
SHARES = (0.5, 0.42, 0.58, 0.34, 0.66)  # of a curve, where its label may stand
SHARES_OF_BUSY = (*SHARES, 0.26, 0.74, 0.18, 0.82)  # where the link is in use
BENDS = (24.0, 48.0, 72.0, 96.0, 128.0)  # how far a curve may bow
LEAST_DEGREES = 8.0  # of longitude and latitude shown, however near the places are to each other
BEYOND_DEGREES = 12.0  # of longitude, how far outlines in static/img/world.svg go beyond 180 degrees
CLOSEST_DEGREES, WIDEST_DEGREES = 1.0, 360.0  # of longitude across, that a person can zoom to


@dataclass(frozen=True, slots=True, kw_only=True)
class Box:
    """A rectangle by its centre."""

    x: float
    y: float
    wide: float
    high: float

    @property
    def left(self) -> float:
        return round(self.x - self.wide / 2, 1)

    @property
    def top(self) -> float:
        return round(self.y - self.high / 2, 1)

    def rounded(self) -> "Box":
        """The same to a tenth of a pixel, as a drawing writes it."""
        return Box(x=round(self.x, 1), y=round(self.y, 1), wide=round(self.wide, 1), high=round(self.high, 1))

    def overlaps(self, other: "Box", gap: float = 0.0) -> bool:
        """Whether less than `gap` is between the two."""
        return (
            abs(self.x - other.x) < (self.wide + other.wide) / 2 + gap
            and abs(self.y - other.y) < (self.high + other.high) / 2 + gap
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Frame:
    """A plain map (degrees are squares) of the part of the world from `west` and `north` on."""

    west: float
    north: float
    per_degree: float
    wide: float = WIDE
    high: float = HIGH
    closest: ClassVar[float] = CLOSEST_DEGREES
    widest: ClassVar[float] = WIDEST_DEGREES

    def place(self, latitude: float, longitude: float) -> tuple[float, float]:
        """Where a place stands in the drawing."""
        return (longitude - self.west) * self.per_degree, (self.north - latitude) * self.per_degree

    @property
    def degrees(self) -> float:
        """How many degrees of longitude it shows across."""
        return self.wide / self.per_degree

    @property
    def centre(self) -> tuple[float, float]:
        """Latitude and longitude of its middle."""
        return self.north - self.high / self.per_degree / 2, self.west + self.degrees / 2

    def zoomed(self, factor: float) -> "Frame | None":
        """The same middle `factor` times as large; None beyond the limits."""
        degrees = self.degrees / factor
        if not CLOSEST_DEGREES <= degrees <= WIDEST_DEGREES:
            return None
        return frame_at(*self.centre, degrees, wide=self.wide, high=self.high)

    def holds(self, x: float, y: float) -> bool:
        """Whether a point of the drawing is in this part of the world."""
        return 0 <= x <= self.wide and 0 <= y <= self.high

    def outlines(self) -> list[str]:
        """Where the world's outlines (a unit is a degree) go: SVG transforms, one for each turn of the globe
        that the frame reaches into."""
        # Land that crosses 180 degrees stands beyond the edge of its copy, on either side.
        west, east = self.west - BEYOND_DEGREES, self.west + self.degrees + BEYOND_DEGREES
        first, last = (math.floor((at + 180) / 360) for at in (west, east))
        x, y, scale = -self.west * self.per_degree, self.north * self.per_degree, self.per_degree
        return [
            f"translate({x + turn * 360 * scale:.1f} {y:.1f}) scale({scale:.4f})"
            for turn in range(first, last + 1)
        ]

    def graticule(self) -> tuple[list[tuple[float, str]], list[tuple[float, str]]]:
        """Meridians (x, name) and parallels (y, name) at round degrees, five to ten of them across."""
        step = next(s for s in (1, 2, 5, 10, 15, 30, 60) if self.degrees / s <= 10)
        east, south = self.west + self.degrees, self.north - self.high / self.per_degree
        meridians = _multiples(step, self.west, east)
        parallels = _multiples(step, max(south, -90), min(self.north, 90))
        return (
            [
                (round(self.place(0, at)[0], 1), _degrees((at + 180) % 360 - 180, "E", "W"))
                for at in meridians
            ],
            [(round(self.place(at, 0)[1], 1), _degrees(at, "N", "S")) for at in parallels],
        )


def frame_of(
    places: Sequence[tuple[float, float]], *, wide: float = WIDE, high: float = HIGH, margin: float = 70.0
) -> Frame:
    """The frame that shows all `places` (latitude, longitude), `margin` from its edges."""
    if not places:
        return Frame(west=-180, north=90, per_degree=wide / 360, wide=wide, high=high)
    south, north = min(p[0] for p in places), max(p[0] for p in places)
    west, east = min(p[1] for p in places), max(p[1] for p in places)
    across, down = max(east - west, LEAST_DEGREES), max(north - south, LEAST_DEGREES / 2)
    per_degree = min((wide - 2 * margin) / across, (high - 2 * margin) / down)
    return Frame(
        west=(west + east) / 2 - wide / per_degree / 2,
        north=(south + north) / 2 + high / per_degree / 2,
        per_degree=per_degree,
        wide=wide,
        high=high,
    )


def frame_at(
    latitude: float, longitude: float, degrees: float, *, wide: float = WIDE, high: float = HIGH
) -> Frame:
    """The frame around a middle that shows `degrees` of longitude across."""
    per_degree = wide / degrees
    return Frame(
        west=longitude - degrees / 2,
        north=latitude + high / per_degree / 2,
        per_degree=per_degree,
        wide=wide,
        high=high,
    )


def spread(boxes: Sequence[Box], *, wide: float = WIDE, high: float = HIGH) -> list[Box]:
    """`boxes`, one after the other, each at the free spot nearest to where it wants to be.

    Free is what is GAP from those before it and inside the frame. Only spots next to a box or the frame are
    tried, for the nearest free one is the wanted one or such a spot. Where no room is left, a box stays where
    it wants to be.
    """
    boxes_apart: list[Box] = []
    for box in boxes:
        wanted = _inside(box, wide, high)
        near = sorted(
            _spots(wanted, boxes_apart, wide, high), key=lambda at: math.dist(at, (wanted.x, wanted.y))
        )
        x, y = next((at for at in near if _is_free(at, wanted, boxes_apart)), (wanted.x, wanted.y))
        boxes_apart.append(replace(wanted, x=x, y=y))
    return boxes_apart


def row(sizes: Sequence[tuple[float, float]], *, top: float, wide: float = WIDE) -> list[Box]:
    """Boxes of `sizes` side by side, evenly, from `top` down: by hand, where no place is known."""
    share = wide / max(len(sizes), 1)
    return [
        Box(x=share * (i + 0.5), y=top + high / 2, wide=across, high=high)
        for i, (across, high) in enumerate(sizes)
    ]


@dataclass(frozen=True, slots=True, kw_only=True)
class Curve:
    """A quadratic curve between the centres of two boxes; `bend` is how far it bows to its left."""

    x1: float
    y1: float
    x2: float
    y2: float
    bend: float

    @property
    def control(self) -> tuple[float, float]:
        length = math.hypot(self.x2 - self.x1, self.y2 - self.y1) or 1.0
        return (
            (self.x1 + self.x2) / 2 - 2 * self.bend * (self.y2 - self.y1) / length,
            (self.y1 + self.y2) / 2 + 2 * self.bend * (self.x2 - self.x1) / length,
        )

    def at(self, share: float) -> tuple[float, float]:
        """The point at `share` (0 to 1) of the curve's parameter."""
        cx, cy = self.control
        near, far = (1 - share) ** 2, share**2
        middle = 2 * share * (1 - share)
        return near * self.x1 + middle * cx + far * self.x2, near * self.y1 + middle * cy + far * self.y2

    @property
    def path(self) -> str:
        """As the `d` of an SVG path."""
        cx, cy = self.control
        return f"M{self.x1:.1f} {self.y1:.1f}Q{cx:.1f} {cy:.1f} {self.x2:.1f} {self.y2:.1f}"


def curve(boxes: Sequence[Box], a: int, b: int) -> Curve:
    """A curve from box `a` to box `b` past the others: the least bow that runs behind the fewest of them."""
    straight = Curve(x1=boxes[a].x, y1=boxes[a].y, x2=boxes[b].x, y2=boxes[b].y, bend=0.0)
    others = [box for i, box in enumerate(boxes) if i not in (a, b)]
    if not others:
        return straight
    least = (_hidden(straight, others), straight)
    for bend in (side * bend for bend in BENDS for side in (1, -1)):
        if least[0] == 0:
            break
        bow = replace(straight, bend=bend)
        least = min(least, (_hidden(bow, others), bow), key=lambda each: each[0])  # of equals the first
    return least[1]


def label_of(
    bow: Curve,
    size: tuple[float, float],
    taken: Iterable[Box],
    room: tuple[float, float],
    *,
    must: bool = False,
) -> Box | None:
    """Where on `bow` a label of `size` hides nothing of `taken`; None where there is no such spot.

    room : width and height of the drawing; the middle of a label is inside it.
    must : the label stands where it hides the fewest then; it may stand along the whole curve and next to it.
    """
    taken = list(taken)
    boxes = [
        Box(x=x, y=y + aside, wide=size[0], high=size[1])
        for aside in ((0, -size[1], size[1]) if must else (0,))
        for x, y in (bow.at(share) for share in (SHARES_OF_BUSY if must else SHARES))
    ]
    inside = [box for box in boxes if 0 <= box.x <= room[0] and 0 <= box.y <= room[1]]
    hidden = [sum(box.overlaps(other, 2.0) for other in taken) for box in inside]
    if not inside:
        return boxes[0] if must else None
    best = hidden.index(min(hidden))
    return inside[best] if must or not hidden[best] else None


def _hidden(bow: Curve, boxes: Sequence[Box]) -> int:
    """How many of 24 points of `bow` lie behind boxes."""
    points = [bow.at(i / 25) for i in range(1, 25)]
    return sum(
        abs(x - box.x) < box.wide / 2 + 4 and abs(y - box.y) < box.high / 2 + 4
        for x, y in points
        for box in boxes
    )


def _inside(box: Box, wide: float, high: float) -> Box:
    x = min(max(box.x, EDGE + box.wide / 2), max(wide - EDGE - box.wide / 2, wide / 2))
    y = min(max(box.y, EDGE + box.high / 2), max(high - EDGE - box.high / 2, high / 2))
    return replace(box, x=x, y=y)


def _spots(box: Box, others: Sequence[Box], wide: float, high: float) -> list[tuple[float, float]]:
    """Positions of `box` inside the frame: its own, or next to others or to the frame on either axis."""
    left, right = EDGE + box.wide / 2, wide - EDGE - box.wide / 2
    top, foot = EDGE + box.high / 2, high - EDGE - box.high / 2
    xs, ys = {box.x, left, right}, {box.y, top, foot}
    for other in others:
        across, down = (box.wide + other.wide) / 2 + GAP, (box.high + other.high) / 2 + GAP
        xs |= {other.x - across, other.x + across}
        ys |= {other.y - down, other.y + down}
    inside_x = [x for x in sorted(xs) if left <= x <= right or x == box.x]
    inside_y = [y for y in sorted(ys) if top <= y <= foot or y == box.y]
    return [(x, y) for x in inside_x for y in inside_y]


def _is_free(at: tuple[float, float], box: Box, others: Sequence[Box]) -> bool:
    return not any(
        abs(at[0] - other.x) < (box.wide + other.wide) / 2 + GAP - 0.01
        and abs(at[1] - other.y) < (box.high + other.high) / 2 + GAP - 0.01
        for other in others
    )


def _multiples(step: int, low: float, high: float) -> list[int]:
    return list(range(math.ceil(low / step) * step, math.floor(high / step) * step + 1, step))


def _degrees(value: float, positive: str, negative: str) -> str:
    if value in (0, -180, 180):
        return f"{abs(value):g}°"
    return f"{abs(value):g}° {positive if value > 0 else negative}"
