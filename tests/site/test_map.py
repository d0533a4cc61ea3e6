"""The page of the map: a part of the world by its address, GPUs where few data centres are shown, figures of
every link in use."""

from pathlib import Path
from typing import Any

import pytest
from django.contrib.staticfiles import finders

from tests.site.world import World, make_dc
from webapp.inventory.layout import frame_at
from webapp.inventory.models import DataCenter, WanLink
from webapp.inventory.selectors.worldmap import MOST_PLATES, drawing


def shown(world: World, query: str = "") -> Any:
    answer = world.client("viewer").get(f"/map/{query}")
    assert answer.status_code == 200
    return answer.context


def test_an_address_shows_a_part_of_the_world(world: World) -> None:
    for name, latitude, longitude in (("paris", 48.9, 2.4), ("tokyo", 35.7, 139.7), ("osaka", 34.7, 135.5)):
        make_dc(world.team, name, latitude=latitude, longitude=longitude)
    whole = shown(world)
    assert not whole["is_part"]
    assert whole["map"].outside == 0
    part = shown(world, "?lat=35&lon=138&degrees=20")
    named = {plate.dc.name for plate in part["map"].plates if plate.dc.latitude is not None}
    assert named == {"tokyo", "osaka"}
    assert part["map"].outside == 1
    assert part["map"].drawn == whole["map"].drawn
    nearer = shown(world, part["zoom_in"])["map"].frame
    assert nearer.degrees == pytest.approx(20 / 1.6, abs=0.01)
    assert nearer.centre == pytest.approx((35, 138), abs=0.01)
    assert shown(world, "?lat=-60&lon=-120&degrees=10")["map"].outside == 3


@pytest.mark.parametrize(
    "query", ["?lat=91&lon=0&degrees=9", "?lat=x&lon=0&degrees=9", "?lat=1&lon=0", "?lat=1&lon=0&degrees=0"]
)
def test_an_address_out_of_range_shows_all(world: World, query: str) -> None:
    assert not shown(world, query)["is_part"]


def test_zoom_ends_at_a_degree_and_at_the_globe(world: World) -> None:
    assert not shown(world, "?lat=0&lon=0&degrees=1")["zoom_in"]
    assert not shown(world, "?lat=0&lon=0&degrees=360")["zoom_out"]


def test_a_part_with_few_of_many_data_centres_shows_their_gpus(world: World) -> None:
    DataCenter.objects.bulk_create(
        DataCenter(team=world.team, name=f"many-{i}", latitude=-60 + i, longitude=2 * i)
        for i in range(2 * MOST_PLATES)
    )
    assert shown(world)["map"].dots
    part = shown(world, "?lat=-50&lon=20&degrees=20")["map"]
    assert not part.dots
    assert 0 < len(part.plates) <= MOST_PLATES


def test_a_link_in_use_keeps_its_figures_among_many(world: World) -> None:
    dcs = [make_dc(world.team, f"many-{i}", latitude=10 + i % 7, longitude=3 * i) for i in range(40)]
    links = [
        WanLink.objects.create(a=a, b=b, latency_ms=1, bandwidth_gbps=1)
        for i, a in enumerate(dcs)
        for b in dcs[i + 1 : i + 4]
    ]
    flows = {(world.team.pk, frozenset((link.a.name, link.b.name))): 0.5 for link in links[::6]}
    for frame in (None, frame_at(13, 40, 60)):
        lines = drawing(dcs, links, {}, of=len(dcs), flows=flows, frame=frame).lines
        busy = [line for line in lines if line.gbps]
        assert busy
        assert all(line.label for line in busy)
        assert not any(line.label for line in lines if not line.gbps)


def test_a_link_that_leaves_the_part_is_drawn_and_one_outside_is_not(world: World) -> None:
    a, b, c = (
        make_dc(world.team, name, latitude=0, longitude=at) for name, at in (("a", 0), ("b", 50), ("c", 60))
    )
    leaving, outside = (
        WanLink.objects.create(a=x, b=y, latency_ms=1, bandwidth_gbps=1) for x, y in ((a, b), (b, c))
    )
    lines = drawing([a, b, c], [leaving, outside], {}, of=3, flows={}, frame=frame_at(0, 0, 20)).lines
    assert [line.link for line in lines] == [leaving]


def test_the_outlines_that_the_page_shows_are_in_the_file(world: World) -> None:
    make_dc(world.team, "paris", latitude=48.9, longitude=2.4)
    page = world.client("viewer").get("/map/").content.decode()
    path = finders.find("img/world.svg")
    assert path
    text = Path(path).read_text()
    for part in ("land", "borders"):
        assert f"img/world.svg#{part}" in page
        assert f'id="{part}"' in text
