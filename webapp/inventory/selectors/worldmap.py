"""The map of data centres and the links between them, laid out: what templates/inventory/map.html draws."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from html import escape
from typing import Any

import numpy as np
from django.urls import reverse
from django.utils.safestring import SafeString

from webapp.common.work import Flows
from webapp.inventory.catalogue import position
from webapp.inventory.layout import (
    HIGH,
    STRIP,
    WIDE,
    Box,
    Curve,
    Frame,
    curve,
    frame_of,
    label_of,
    row,
    spread,
)
from webapp.inventory.models import DataCenter, WanLink
from webapp.inventory.selectors.matrix import most_linked
from webapp.inventory.selectors.use import Use, gpu_use

SQUARE, PITCH, ACROSS, MOST_SQUARES = 7, 9, 8, 64
MOST_PLATES = 18  # data centres with squares and figures; more are a dot with a name where there is room
MOST_DCS = 200
LABEL_WIDE = 84.0
MOST_LABELS = 30  # links with their figures in the drawing; all have them in a title


@dataclass(frozen=True, slots=True, kw_only=True)
class Square:
    """One GPU, or `gpus_a_square` of them."""

    x: int
    y: int
    state: str  # busy, idle, silent, never


@dataclass(frozen=True, slots=True, kw_only=True)
class Plate:
    """A data centre in the drawing. `anchor` is its true place, where the plate had to move away from it."""

    dc: DataCenter
    box: Box
    url: str
    gpus: int
    busy: int
    silent: int
    said: str
    squares: list[Square]
    gpus_a_square: int
    named: bool
    anchor: tuple[float, float] | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Line:
    """A link in the drawing; `width` grows with the logarithm of its cap, `gbps` goes over it now."""

    link: WanLink
    url: str
    bow: Curve
    width: float
    label: Box | None
    ends: tuple[int, int]  # ids of its data centres
    gbps: float | None
    title: str  # its figures in words

    @property
    def drawn(self) -> str:
        """The line as SVG. A template takes ten times as long for hundreds."""
        title, path, used = escape(self.title), self.bow.path, " used" if self.gbps else ""
        return (
            f'<a class="line" href="{self.url}" aria-label="{title}" data-a="{self.ends[0]}"'
            f' data-b="{self.ends[1]}"><title>{title}</title><path class="reach" d="{path}"/>'
            f'<path class="link{used}" d="{path}" stroke-width="{self.width}"/></a>'
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class WorldMap:
    """All that is drawn. `of` counts all data centres, `unplaced` those without coordinates, `outside` those
    outside the part of the world that is shown."""

    frame: Frame
    high: float
    plates: list[Plate]
    lines: list[Line]
    unplaced: int
    outside: int
    of: int
    dots: bool

    @property
    def drawn(self) -> int:
        """How many data centres it could show, those outside this part of the world too."""
        return len(self.plates) + self.outside

    @property
    def placed(self) -> bool:
        """Whether any data centre has coordinates."""
        return self.drawn > self.unplaced

    @property
    def foot(self) -> float:
        """Where those begin that nobody gave coordinates."""
        return self.high - STRIP - 24

    @property
    def drawn_lines(self) -> SafeString:
        return SafeString("".join(line.drawn for line in self.lines))

    @property
    def graticule(self) -> tuple[list[tuple[float, str]], list[tuple[float, str]]]:
        return self.frame.graticule()


def world_map(user: Any, flows: Flows, frame: Frame | None = None) -> WorldMap:
    """The map of what `user` sees: the MOST_DCS most linked data centres, and the links between them.

    frame : the part of the world to show; without one, the part that holds them all.
    """
    visible = DataCenter.objects.visible_to(user)
    dcs, of = most_linked(user, visible, MOST_DCS)
    links = WanLink.objects.visible_to(user).filter(a__in=dcs, b__in=dcs).select_related("a", "b")
    uses = gpu_use([dc.pk for dc in dcs])
    return drawing(dcs, list(links.order_by("pk")), uses, of=of, flows=flows, frame=frame)


def drawing(
    dcs: Sequence[DataCenter],
    links: Sequence[WanLink],
    uses: Mapping[int, Use],
    *,
    of: int,
    flows: Flows,
    wide: float = WIDE,
    high: float = HIGH,
    frame: Frame | None = None,
) -> WorldMap:
    """`dcs` and the `links` between them, laid out in `wide` × `high` (and a strip for what has no place).

    Parameters
    ----------
    uses : by id of the data centre; absent where it has no GPUs.
    of : how many data centres there are, of which these are drawn.
    flows : what goes over links.
    frame : the part of the world that is shown, of `wide` × `high`; without one, the part that holds `dcs`.
    """
    positions = {dc.pk: at for dc in dcs if (at := position(dc))}
    frame = frame or frame_of(list(positions.values()), wide=wide, high=high)
    points = {pk: frame.place(*at) for pk, at in positions.items()}
    outside = {pk: point for pk, point in points.items() if not frame.holds(*point)}
    shown = [dc for dc in dcs if dc.pk not in outside]
    dots = len(shown) > MOST_PLATES
    boxes = _boxes(shown, points, uses, frame, dots)
    plates = [_plate(dc, boxes[dc.pk], uses.get(dc.pk, Use()), points.get(dc.pk), dots) for dc in shown]
    loose = sum(dc.pk not in points for dc in dcs)
    # A link that leaves the frame is drawn to its far end, and cut off at the edge.
    ends = boxes | {pk: Box(x=x, y=y, wide=0, high=0).rounded() for pk, (x, y) in outside.items()}
    near = [link for link in links if link.a_id in boxes or link.b_id in boxes]
    whole_high = (high if points else 0.0) + (STRIP + 24 if loose else 0)
    return WorldMap(
        frame=frame,
        high=whole_high,
        plates=_named(plates) if dots else plates,
        lines=_lines(near, ends, flows, (wide, whole_high), dots),
        unplaced=loose,
        outside=len(outside),
        dots=dots,
        of=of,
    )


def _boxes(
    dcs: Sequence[DataCenter],
    points: Mapping[int, tuple[float, float]],
    uses: Mapping[int, Use],
    frame: Frame,
    dots: bool,
) -> dict[int, Box]:
    """Where the plate of each data centre goes: near its point; in the strip at the foot if it has none."""
    sizes = {dc.pk: _size(dc, uses.get(dc.pk, Use()), dots) for dc in dcs}
    located = [pk for pk in sizes if pk in points]
    at_points = [
        Box(x=points[pk][0], y=points[pk][1], wide=sizes[pk][0], high=sizes[pk][1]) for pk in located
    ]
    spots = at_points if dots else spread(at_points, wide=frame.wide, high=frame.high)
    boxes = dict(zip(located, spots, strict=True))
    loose = [pk for pk in sizes if pk not in points]
    top = (frame.high if points else 0.0) + 24
    at_foot = row([sizes[pk] for pk in loose], top=top, wide=frame.wide)
    boxes |= dict(zip(loose, at_foot, strict=True))
    return {pk: box.rounded() for pk, box in boxes.items()}


def _size(dc: DataCenter, use: Use, dots: bool) -> tuple[float, float]:
    if dots:
        return 9.0, 9.0
    text = max(len(dc.name) * 7.6, len(use.said) * 6.0)
    rows = math.ceil(min(use.gpus, MOST_SQUARES) / ACROSS)
    return max(text, ACROSS * PITCH) + 12, 38 + rows * PITCH + (13 if use.gpus > MOST_SQUARES else 0)


def _plate(dc: DataCenter, box: Box, use: Use, true: tuple[float, float] | None, dots: bool) -> Plate:
    shares = max(1, math.ceil(use.gpus / MOST_SQUARES))
    moved = true is not None and math.hypot(box.x - true[0], box.y - true[1]) > 14
    return Plate(
        dc=dc,
        box=box,
        url=reverse("inventory:datacenter-detail", args=[dc.pk]),
        gpus=use.gpus,
        busy=use.busy,
        said=use.said,
        silent=use.silent,
        squares=[] if dots else _squares(use, shares),
        gpus_a_square=shares,
        named=not dots,
        anchor=true if moved else None,
    )


def _squares(use: Use, gpus_a_square: int) -> list[Square]:
    count = math.ceil(use.gpus / gpus_a_square)
    busy, silent, never = (round(n / gpus_a_square) for n in (use.busy, use.silent, use.never))
    idle = max(0, count - busy - silent - never)
    states = ["busy"] * busy + ["idle"] * idle + ["silent"] * silent + ["never"] * never
    return [
        Square(x=i % ACROSS * PITCH, y=i // ACROSS * PITCH, state=state)
        for i, state in enumerate(states[:count])
    ]


def _named(plates: list[Plate]) -> list[Plate]:
    """Dots get their name next to them where it hides no other dot and no other name."""
    dots = [(plate.box.x, plate.box.y, plate.box.wide, plate.box.high) for plate in plates]
    taken = np.array(dots + [(0.0, 0.0, 0.0, 0.0)] * len(plates))  # x, y, width, height; then of names
    count = len(plates)
    labels = []
    for i, plate in enumerate(plates):
        wide = len(plate.dc.name) * 6.2
        name = np.array((plate.box.x + 9 + wide / 2, plate.box.y, wide, 11.0))
        apart = np.abs(taken[:count, :2] - name[:2])
        hides = (apart < (taken[:count, 2:] + name[2:]) / 2).all(axis=1)
        hides[i] = False  # its own dot
        if free := not hides.any():
            taken[count] = name
            count += 1
        labels.append(replace(plate, named=free))
    return labels


def _lines(
    links: Sequence[WanLink], boxes: dict[int, Box], flows: Flows, room: tuple[float, float], dots: bool
) -> list[Line]:
    taken = list(boxes.values())
    lines: dict[int, Line] = {}
    used = {link.pk: flows.get((link.a.team_id, frozenset((link.a.name, link.b.name)))) for link in links}
    # Links in use have their figures always, and choose their places first.
    for link in sorted(links, key=lambda link: -(used[link.pk] or 0.0)):
        bow, gbps = _bow(link, boxes, dots), used[link.pk]
        drawn = gbps or len(links) <= MOST_LABELS
        label = label_of(bow, (LABEL_WIDE, 26.0), taken, room, must=bool(gbps)) if drawn else None
        if label:
            taken.append(label)
        lines[link.pk] = Line(
            link=link,
            url=reverse("inventory:link-detail", args=[link.pk]),
            bow=bow,
            label=label,
            width=line_width(link.bandwidth_gbps),
            ends=(link.a_id, link.b_id),
            gbps=gbps,
            title=_title(link, gbps),
        )
    return [lines[link.pk] for link in links]


def _title(link: WanLink, gbps: float | None) -> str:
    now = f"; {gbps:,.2f} Gbit/s now" if gbps else ""
    return f"{link}: {link.bandwidth_gbps:g} Gbit/s per node pair, {link.latency_ms:g} ms one way{now}"


def _bow(link: WanLink, boxes: dict[int, Box], dots: bool) -> Curve:
    """Past the other plates where there are any; a thousand lines between dots are straight."""
    if dots:
        return curve([boxes[link.a_id], boxes[link.b_id]], 0, 1)
    index = {pk: i for i, pk in enumerate(boxes)}
    return curve(list(boxes.values()), index[link.a_id], index[link.b_id])


def line_width(bandwidth_gbps: float) -> float:
    """1 at 1 Gbit/s and below, one more each time that the cap doubles twice, 6 at most."""
    return round(min(6.0, 1.0 + math.log2(max(bandwidth_gbps, 1.0)) / 2), 2)
