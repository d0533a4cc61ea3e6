"""The map of a placement: places by longitude and latitude, a square a device with the number of its stage,
and a curve for each pair of places between which pipelines hand over."""

import itertools
import math
from collections import Counter
from dataclasses import dataclass

from webapp.inventory.layout import HIGH, Box, Curve, Frame, curve, frame_of, label_of, spread
from webapp.placement.network import Network

SQUARE, PITCH, ACROSS, MOST_SQUARES = 15, 17, 8, 64
MOST_MAPPED = 18
LEVELS = 5


@dataclass(frozen=True, slots=True, kw_only=True)
class Square:
    """One device: where it is on its plate, its stage from 1, and the shade of that stage."""

    x: int
    y: int
    stage: int
    level: int
    label: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Plate:
    """A place with its devices. `anchor` is its true spot, where the plate had to move away from it."""

    index: int
    name: str
    said: str
    box: Box
    squares: list[Square]
    left_out: int
    anchor: tuple[float, float] | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Way:
    """Hops of pipelines between two places."""

    ends: tuple[int, int]
    title: str
    hops: int
    bow: Curve
    width: float
    label: Box | None


@dataclass(frozen=True, slots=True, kw_only=True)
class PlacementMap:
    """All that is drawn."""

    frame: Frame
    high: float
    plates: list[Plate]
    ways: list[Way]

    @property
    def graticule(self) -> tuple[list[tuple[float, str]], list[tuple[float, str]]]:
        return self.frame.graticule()


def placement_map(
    network: Network, groups: list[list[int]], pipelines: list[list[int]]
) -> PlacementMap | None:
    """The map; None where a place has no coordinates, or where they are too many to tell apart."""
    places = [place for place in network.places if place.latitude is not None]
    if not places or len(places) < len(network.places) or len(places) > MOST_MAPPED:
        return None
    stage_of = {device: stage for stage, group in enumerate(groups) for device in group}
    stages = len(groups)
    here: list[list[int]] = [[] for _ in network.places]
    for device, place in enumerate(network.place_of):
        here[place].append(device)
    high = HIGH + 90
    spots = [(place.latitude or 0.0, place.longitude or 0.0) for place in places]
    frame = frame_of(spots, high=high, margin=110)
    true = [frame.place(*spot) for spot in spots]
    boxes = spread(
        [
            _wanted(at, place.name, len(here[i]))
            for i, (at, place) in enumerate(zip(true, places, strict=True))
        ],
        high=high,
    )
    return PlacementMap(
        frame=frame,
        high=high,
        ways=_ways(network, pipelines, boxes, (frame.wide, frame.high)),
        plates=[
            _plate(network, i, boxes[i], true[i], sorted(here[i], key=stage_of.__getitem__), stage_of, stages)
            for i in range(len(places))
        ],
    )


def _wanted(at: tuple[float, float], name: str, devices: int) -> Box:
    rows = math.ceil(min(devices, MOST_SQUARES) / ACROSS)
    across = min(ACROSS, max(devices, 1)) * PITCH
    return Box(x=at[0], y=at[1], wide=max(len(name) * 7.6, 66.0, across) + 12, high=38 + rows * PITCH)


def _plate(
    network: Network,
    index: int,
    box: Box,
    true: tuple[float, float],
    devices: list[int],
    stage_of: dict[int, int],
    stages: int,
) -> Plate:
    moved = math.hypot(box.x - true[0], box.y - true[1]) > 14
    squares = [
        Square(
            x=i % ACROSS * PITCH,
            y=i // ACROSS * PITCH,
            stage=stage_of[device] + 1,
            label=network.labels[device],
            level=stage_of[device] * LEVELS // stages,
        )
        for i, device in enumerate(devices[:MOST_SQUARES])
    ]
    held = sorted({stage_of[device] + 1 for device in devices})
    stages_said = f"stage {held[0]}" if len(held) == 1 else f"{len(held)} stages"
    count = len(devices)
    return Plate(
        index=index,
        name=network.places[index].name,
        box=box,
        squares=squares,
        said=f"{count} device{'' if count == 1 else 's'}, {stages_said}" if held else "no device",
        left_out=max(0, count - MOST_SQUARES),
        anchor=true if moved else None,
    )


def _ways(
    network: Network, pipelines: list[list[int]], boxes: list[Box], room: tuple[float, float]
) -> list[Way]:
    counts: Counter[tuple[int, int]] = Counter()
    for pipeline in pipelines:
        at = [network.place_of[device] for device in pipeline]
        counts += Counter((min(a, b), max(a, b)) for a, b in itertools.pairwise(at) if a != b)
    most = max(counts.values(), default=1)
    taken, lines = list(boxes), []
    for (a, b), hops in sorted(counts.items(), key=lambda item: -item[1]):
        bow = curve(boxes, a, b)
        label = label_of(bow, (62.0, 26.0), taken, room)
        if label:
            taken.append(label)
        names = f"{network.places[a].name} – {network.places[b].name}"
        latency, bandwidth = network.latency_ms[a][b], network.bandwidth_gbps[a][b]
        lines.append(
            Way(
                ends=(a, b),
                hops=hops,
                bow=bow,
                width=round(1 + 4 * hops / most, 2),
                label=label,
                title=f"{names}: {hops} hop{'' if hops == 1 else 's'} of pipelines, {latency:g} ms one way, "
                f"{bandwidth:.3g} Gbit/s",
            )
        )
    return lines
