"""Write static/img/world.svg, the outlines that the map of data centres draws, from world-atlas' files.

    npm pack world-atlas@2.0.2 && tar xzf world-atlas-2.0.2.tgz
    python -m scripts.world_outlines package

The data are Natural Earth's at 1:110m, which are in the public domain; world-atlas carries them as TopoJSON.
The page shows the two symbols with `<use>` and places them with a transform, so their unit is a degree:
x to the east from Greenwich, y to the south from the equator.
"""

import argparse
import json
from collections import Counter
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

TARGET = Path(__file__).parent.parent / "static" / "img" / "world.svg"
PER_DEGREE = 100  # whole numbers are shorter than decimals: a unit of the paths is a hundredth of a degree
Point = tuple[int, int]


def arcs_of(topology: dict[str, Any]) -> list[list[Point]]:
    """Each arc as points, from its quantized differences."""
    (scale_x, scale_y), (from_x, from_y) = topology["transform"]["scale"], topology["transform"]["translate"]
    arcs = []
    for arc in topology["arcs"]:
        x = y = 0
        points = []
        for dx, dy in arc:
            x, y = x + dx, y + dy
            east, north = x * scale_x + from_x, y * scale_y + from_y
            points.append((round(east * PER_DEGREE), -round(north * PER_DEGREE)))
        arcs.append(points)
    return arcs


def rings_of(geometry: dict[str, Any]) -> Iterator[list[int]]:
    """The rings of a geometry and of what it holds, each as the numbers of its arcs (~n: arc n backwards)."""
    for part in geometry.get("geometries", ()):
        yield from rings_of(part)
    if geometry["type"] == "Polygon":
        yield from geometry["arcs"]
    if geometry["type"] == "MultiPolygon":
        for polygon in geometry["arcs"]:
            yield from polygon


def ring(numbers: list[int], arcs: list[list[Point]]) -> list[Point]:
    """The arcs of a ring as one line of points."""
    points: list[Point] = []
    for number in numbers:
        arc = arcs[number] if number >= 0 else arcs[~number][::-1]
        points += arc[1:] if points else arc
    return points


def unwrapped(points: list[Point]) -> list[Point]:
    """`points` without jumps from one edge of the world to the other: they go on beyond 180 degrees.

    A ring around the pole does not end where it began: it is closed along the pole's edge, in the south.
    """
    turn, shift, on = 360 * PER_DEGREE, 0, [points[0]]
    for (before, _), (x, y) in pairwise(points):
        shift += turn * ((before - x > turn / 2) - (x - before > turn / 2))
        on.append((x + shift, y))
    if abs(on[-1][0] - on[0][0]) > turn / 2:
        on += [(on[-1][0], 90 * PER_DEGREE), (on[0][0], 90 * PER_DEGREE)]
    middle = (min(x for x, _ in on) + max(x for x, _ in on)) / 2
    home = turn * round(middle / turn)
    return [(x - home, y) for x, y in on]


def path(points: list[Point], close: bool) -> str:
    """`points` as part of an SVG path: its first point, then differences."""
    steps = [(b[0] - a[0], b[1] - a[1]) for a, b in pairwise(points) if a != b]
    line = "".join(f"{x}{y:+d}" if i == 0 else f"{x:+d}{y:+d}" for i, (x, y) in enumerate(steps))
    return f"M{points[0][0]} {points[0][1]}l{line}{'z' if close else ''}"


def world(land: dict[str, Any], countries: dict[str, Any]) -> str:
    """The file's text: `land`, filled, and `borders`, the lines that two countries share."""
    arcs = arcs_of(land)
    coast = "".join(
        path(unwrapped(ring(numbers, arcs)), close=True) for numbers in rings_of(land["objects"]["land"])
    )
    arcs = arcs_of(countries)
    uses = Counter(
        n if n >= 0 else ~n for numbers in rings_of(countries["objects"]["countries"]) for n in numbers
    )
    borders = "".join(path(unwrapped(arcs[n]), close=False) for n, count in sorted(uses.items()) if count > 1)
    shape = f'transform="scale({1 / PER_DEGREE:g})" vector-effect="non-scaling-stroke"'
    return (
        '<svg xmlns="http://www.w3.org/2000/svg">\n'
        "<!-- Natural Earth 1:110m, public domain; written by scripts/world_outlines.py -->\n"
        f'<path id="land" {shape} d="{coast}"/>\n'
        f'<path id="borders" {shape} fill="none" d="{borders}"/>\n</svg>\n'
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path, help="holds land-110m.json and countries-110m.json")
    folder = parser.parse_args().folder
    land, countries = (
        json.loads((folder / name).read_text()) for name in ("land-110m.json", "countries-110m.json")
    )
    TARGET.write_text(world(land, countries))


if __name__ == "__main__":
    main()
