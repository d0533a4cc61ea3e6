"""The map of data centres and the links between them, laid out: what templates/inventory/map.html draws."""

import math
from collections import defaultdict
from dataclasses import dataclass, replace
from typing import Any

from django.urls import reverse

from webapp.inventory.catalogue import position
from webapp.inventory.layout import HIGH, STRIP, Box, Curve, Frame, curve, frame_of, label_of, row, spread
from webapp.inventory.models import DataCenter, Node, NodeState, WanLink

SQUARE, PITCH, ACROSS, MOST_SQUARES = 7, 9, 8, 64
MOST_PLATES = 18  # data centres with squares and figures; more are a dot with a name where there is room
MOST_DCS = 200
MOST_LABELS = 30  # links with their figures in the drawing; all have them in a title


@dataclass(frozen=True, slots=True, kw_only=True)
class Square:
    """One GPU, or `gpus_a_square` of them."""

    x: int
    y: int
    state: str  # busy, idle, silent


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
    """A link in the drawing; `width` grows with the logarithm of its cap."""

    link: WanLink
    url: str
    bow: Curve
    width: float
    label: Box | None
    ends: tuple[int, int]  # ids of its data centres

    @property
    def title(self) -> str:
        """Its figures in words."""
        link = self.link
        return f"{link}: {link.bandwidth_gbps:g} Gbit/s a node pair, {link.latency_ms:g} ms one way"


@dataclass(frozen=True, slots=True, kw_only=True)
class WorldMap:
    """All that is drawn. `unplaced` counts the data centres that nobody gave coordinates."""

    frame: Frame
    high: float
    plates: list[Plate]
    lines: list[Line]
    unplaced: int
    of: int
    dots: bool

    @property
    def placed(self) -> bool:
        """Whether any data centre stands by its coordinates."""
        return len(self.plates) > self.unplaced

    @property
    def foot(self) -> float:
        """Where those begin that nobody gave coordinates."""
        return self.high - STRIP - 24

    @property
    def graticule(self) -> tuple[list[tuple[float, str]], list[tuple[float, str]]]:
        return self.frame.graticule()


@dataclass(frozen=True, slots=True, kw_only=True)
class Use:
    """GPUs of one data centre."""

    gpus: int = 0
    busy: int = 0
    silent: int = 0

    @property
    def said(self) -> str:
        """In words."""
        if not self.gpus:
            return "no GPUs yet"
        silent = f", {self.silent:,} silent" if self.silent else ""
        return f"{self.busy:,} of {self.gpus:,} busy{silent}"


def world_map(user: Any) -> WorldMap:
    """The map of what `user` sees: the first MOST_DCS data centres by name, and the links between them."""
    dcs = list(DataCenter.objects.visible_to(user)[:MOST_DCS])
    ids = [dc.pk for dc in dcs]
    links = list(
        WanLink.objects.visible_to(user).filter(a__in=ids, b__in=ids).select_related("a", "b").order_by("pk")
    )
    uses = gpu_use(ids)
    dots = len(dcs) > MOST_PLATES
    sizes = {dc.pk: _size(dc, uses[dc.pk], dots) for dc in dcs}
    placed = [dc for dc in dcs if position(dc)]
    loose = [dc for dc in dcs if not position(dc)]
    frame = frame_of([place for dc in placed if (place := position(dc))])
    true = {dc.pk: frame.place(*place) for dc in placed if (place := position(dc))}
    wanted = [Box(x=x, y=y, wide=sizes[pk][0], high=sizes[pk][1]) for pk, (x, y) in true.items()]
    boxes = dict(zip(true, wanted if dots else spread(wanted), strict=True))
    high = HIGH if placed else 0.0
    boxes |= dict(
        zip((dc.pk for dc in loose), row([sizes[dc.pk] for dc in loose], top=high + 24), strict=True)
    )
    plates = [_plate(dc, boxes[dc.pk], uses[dc.pk], true.get(dc.pk), dots) for dc in dcs]
    return WorldMap(
        frame=frame, high=high + (STRIP + 24 if loose else 0), plates=_named(plates) if dots else plates,
        lines=_lines(links, dcs, boxes), unplaced=len(loose), dots=dots,
        of=DataCenter.objects.visible_to(user).count() if len(dcs) == MOST_DCS else len(dcs),
    )  # fmt: skip


def gpu_use(dc_ids: list[int]) -> dict[int, Use]:
    """GPUs of each data centre: how many there are, train, and stand on nodes that do not answer."""
    from webapp.jobs.models import RANK_OVER, RankState  # jobs know the inventory, not the other way round

    counts: dict[int, list[int]] = defaultdict(lambda: [0, 0, 0])
    for node in Node.objects.filter(dc__in=dc_ids).only("dc_id", "gpus", "last_seen"):
        counts[node.dc_id][0] += node.gpus
        counts[node.dc_id][2] += node.gpus * (node.state != NodeState.ONLINE)
    held = RankState.objects.filter(dc__in=dc_ids).exclude(state__in=RANK_OVER)
    for dc_id in held.values_list("dc_id", flat=True):
        counts[dc_id][1] += 1
    return {
        pk: Use(gpus=gpus, busy=min(busy, gpus), silent=silent)
        for pk in dc_ids
        for gpus, busy, silent in [counts[pk]]
    }


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
        dc=dc, box=box, url=reverse("inventory:datacenter-detail", args=[dc.pk]), gpus=use.gpus,
        busy=use.busy, said=use.said, silent=use.silent, squares=[] if dots else _squares(use, shares),
        gpus_a_square=shares, named=not dots, anchor=true if moved else None,
    )  # fmt: skip


def _squares(use: Use, gpus_a_square: int) -> list[Square]:
    count = math.ceil(use.gpus / gpus_a_square)
    busy, silent = round(use.busy / gpus_a_square), round(use.silent / gpus_a_square)
    states = ["busy"] * busy + ["idle"] * max(0, count - busy - silent) + ["silent"] * silent
    return [
        Square(x=i % ACROSS * PITCH, y=i // ACROSS * PITCH, state=state)
        for i, state in enumerate(states[:count])
    ]


def _named(plates: list[Plate]) -> list[Plate]:
    """Dots get their name beside them where it hides no other dot and no other name."""
    taken = [plate.box for plate in plates]
    made = []
    for plate in plates:
        wide = len(plate.dc.name) * 6.2
        name = Box(x=plate.box.x + 9 + wide / 2, y=plate.box.y, wide=wide, high=11)
        others = (box for box in taken if box is not plate.box)
        free = not any(name.overlaps(box) for box in others)
        if free:
            taken.append(name)
        made.append(replace(plate, named=free))
    return made


def _lines(links: list[WanLink], dcs: list[DataCenter], boxes: dict[int, Box]) -> list[Line]:
    index = {dc.pk: i for i, dc in enumerate(dcs)}
    shapes = [boxes[dc.pk] for dc in dcs]
    taken = list(shapes)
    made = []
    for link in links:
        ends = index[link.a_id], index[link.b_id]
        bow = curve(shapes if len(shapes) <= MOST_PLATES else [shapes[i] for i in ends], *(
            ends if len(shapes) <= MOST_PLATES else (0, 1)
        ))  # fmt: skip
        label = label_of(bow, (66.0, 26.0), taken) if len(links) <= MOST_LABELS else None
        if label:
            taken.append(label)
        made.append(
            Line(
                link=link, url=reverse("inventory:link-detail", args=[link.pk]), bow=bow, label=label,
                width=line_width(link.bandwidth_gbps), ends=(link.a_id, link.b_id),
            )
        )  # fmt: skip
    return made


def line_width(bandwidth_gbps: float) -> float:
    """1 at 1 Gbit/s and below, one more each time that the cap doubles twice, 6 at most."""
    return round(min(6.0, 1.0 + math.log2(max(bandwidth_gbps, 1.0)) / 2), 2)
