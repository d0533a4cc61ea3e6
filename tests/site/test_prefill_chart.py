"""The drawing of the supply: steps go down where runs end, and lie within the frame."""

from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest
from django.utils import timezone

from tests.site.tenancies import ask
from tests.site.test_tenancy_pages import train
from webapp.prefill.chart import BOTTOM, TOP, supply_chart
from webapp.prefill.supply import forecast


@pytest.mark.parametrize("asked", [1, 60_000, 10**9])
def test_steps_go_down_and_stay_in_the_frame(world: Any, asked: int) -> None:
    run = train(world)
    tenancy = ask(world)
    found = forecast(tenancy, world.dcs[:2], tokens_per_min=asked, ttft_ms=2_000)
    soon = timezone.now() + timedelta(hours=3)
    cells = [replace(row, cell=replace(row.cell, until=soon)) for row in found.cells]
    chart = supply_chart(replace(found, cells=cells))
    assert chart is not None
    points = [tuple(map(float, point.split(","))) for point in chart.supply.split()]
    assert points == sorted(points, key=lambda point: (point[0], point[1]))
    assert all(TOP - 0.5 <= y <= BOTTOM for y in (*(y for _, y in points), chart.sold_y, chart.after_y))
    assert points[-1][1] == BOTTOM
    assert [words for _, _, words in chart.ends] == [f"{run.job.name} ends {soon:%H:%M}"]
