"""The map's geometry: plates that do not hide each other, curves past plates, round degrees."""

import itertools
import re

from hypothesis import given
from hypothesis import strategies as st

from webapp.inventory.layout import (
    CLOSEST_DEGREES,
    EDGE,
    HIGH,
    WIDE,
    WIDEST_DEGREES,
    Box,
    Curve,
    curve,
    frame_at,
    frame_of,
    label_of,
    row,
    spread,
)
from webapp.inventory.selectors.history import _axis
from webapp.inventory.selectors.worldmap import line_width

ROOM = (WIDE, HIGH)
PLACES = st.lists(st.tuples(st.floats(-80, 80), st.floats(-180, 180)), min_size=1, max_size=24)
BOXES = st.lists(
    st.builds(
        Box, x=st.floats(-50, WIDE + 50), y=st.floats(-50, HIGH + 50), wide=st.just(90.0), high=st.just(60.0)
    ),
    min_size=1,
    max_size=12,
)


@given(PLACES)
def test_every_place_is_in_the_frame_and_east_is_right_of_west(places: list[tuple[float, float]]) -> None:
    frame = frame_of(places)
    drawn = [frame.place(*place) for place in places]
    for (x, y), (latitude, longitude) in zip(drawn, places, strict=True):
        assert -1e-6 <= x <= WIDE + 1e-6
        assert -1e-6 <= y <= HIGH + 1e-6
        for (other_x, other_y), (other_latitude, other_longitude) in zip(drawn, places, strict=True):
            assert longitude <= other_longitude or x > other_x - 1e-6
            assert latitude <= other_latitude or y < other_y + 1e-6


@given(PLACES)
def test_the_graticule_is_drawn_where_its_degrees_are(places: list[tuple[float, float]]) -> None:
    frame = frame_of(places)
    meridians, parallels = frame.graticule()
    assert len(meridians) <= 11
    for x, name in meridians:
        degrees = float(name.split("°")[0]) * (-1 if name.endswith("W") else 1)
        away = (frame.west + x / frame.per_degree - degrees) % 360
        assert min(away, 360 - away) < 0.1 / frame.per_degree + 1e-6
    for y, name in parallels:
        degrees = float(name.split("°")[0]) * (-1 if name.endswith("S") else 1)
        assert abs(frame.place(degrees, 0)[1] - y) < 0.1


@given(BOXES)
def test_plates_are_moved_apart_and_stay_in_the_frame(boxes: list[Box]) -> None:
    moved_boxes = spread(boxes)
    for box in moved_boxes:
        assert box.left >= EDGE - 1e-6
        assert box.left + box.wide <= WIDE - EDGE + 1e-6
        assert box.top >= EDGE - 1e-6
        assert box.top + box.high <= HIGH - EDGE + 1e-6
    assert not any(
        a.overlaps(b) for a, b in itertools.combinations(moved_boxes, 2)
    )  # a fifth of the frame: room for all


@given(BOXES)
def test_plates_that_are_apart_already_stay_where_they_are(boxes: list[Box]) -> None:
    once = spread(boxes)
    assert spread(once) == once


def test_a_link_bows_past_the_plate_between_its_ends() -> None:
    ends = [Box(x=100, y=200, wide=80, high=60), Box(x=900, y=200, wide=80, high=60)]
    assert curve(ends, 0, 1).bend == 0
    between = Box(x=500, y=200, wide=80, high=60)
    bow = curve([*ends, between], 0, 1)
    for i in range(1, 25):
        x, y = bow.at(i / 25)
        assert not (abs(x - between.x) < between.wide / 2 and abs(y - between.y) < between.high / 2)
    assert bow.at(0) == (100, 200)
    assert bow.at(1) == (900, 200)


def test_a_label_that_has_no_room_is_left_out() -> None:
    bow = Curve(x1=0, y1=100, x2=400, y2=100, bend=0)
    free = label_of(bow, (60, 20), [], ROOM)
    assert free
    assert (free.x, free.y) == (200, 100)
    assert label_of(bow, (60, 20), [Box(x=200, y=100, wide=400, high=40)], ROOM) is None


def test_the_label_of_a_busy_link_stands_where_it_hides_least() -> None:
    bow = Curve(x1=0, y1=100, x2=400, y2=100, bend=0)
    taken = [Box(x=200, y=100, wide=400, high=40), Box(x=190, y=100, wide=60, high=20)]
    label = label_of(bow, (60, 20), taken, ROOM, must=True)
    assert label
    assert not label.overlaps(taken[1])


@given(st.floats(-89, 89), st.floats(-180, 180), st.floats(CLOSEST_DEGREES, WIDEST_DEGREES))
def test_a_frame_around_a_point_has_it_in_its_middle(
    latitude: float, longitude: float, degrees: float
) -> None:
    frame = frame_at(latitude, longitude, degrees)
    x, y = frame.place(latitude, longitude)
    assert abs(x - WIDE / 2) < 1e-6
    assert abs(y - HIGH / 2) < 1e-6
    assert abs(frame.degrees - degrees) < 1e-9 * degrees
    nearer, wider = frame.zoomed(2), frame.zoomed(0.5)
    assert (nearer is None) == (frame.degrees / 2 < CLOSEST_DEGREES)
    assert (wider is None) == (frame.degrees * 2 > WIDEST_DEGREES)
    for zoomed in (nearer, wider):
        assert not zoomed or max(abs(zoomed.centre[0] - latitude), abs(zoomed.centre[1] - longitude)) < 1e-9


@given(st.floats(-360, 360), st.floats(CLOSEST_DEGREES, WIDEST_DEGREES))
def test_outlines_are_drawn_at_every_turn_of_the_globe_that_is_shown(
    longitude: float, degrees: float
) -> None:
    frame = frame_at(0, longitude, degrees)
    starts = []
    for transform in frame.outlines():
        x, y, scale = (float(n) for n in re.findall(r"-?[\d.]+", transform))
        assert abs(y - frame.place(0, 0)[1]) < 0.1
        starts.append((x - 180 * scale, x + 180 * scale))  # where this copy of the world begins and ends
    assert starts[0][0] < 1
    assert starts[-1][1] > WIDE - 1
    for (_, end), (start, _) in itertools.pairwise(starts):
        assert abs(end - start) < 1


@given(st.integers(1, 30))
def test_what_has_no_place_stands_side_by_side(count: int) -> None:
    boxes = row([(WIDE / 40, 50.0)] * count, top=400)
    assert not any(a.overlaps(b) for a, b in itertools.combinations(boxes, 2))
    assert {box.top for box in boxes} == {400.0}


@given(st.floats(0.001, 1e5), st.floats(0.001, 1e5))
def test_a_wider_link_is_no_thinner(a: float, b: float) -> None:
    assert a > b or line_width(a) <= line_width(b)
    assert 1 <= line_width(a) <= 6


@given(st.floats(1e-3, 1e5))
def test_an_axis_has_three_to_six_ticks_and_reaches_the_highest_value(most: float) -> None:
    step, count = _axis(most)
    assert 2 <= count <= 5
    assert step * count >= most * (1 - 1e-9)
    assert step * (count - 1) < most
