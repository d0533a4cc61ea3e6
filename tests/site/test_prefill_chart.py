"""The supply that is foretold, and its drawing."""

from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest
from django.utils import timezone

from engine.job.changed import changed
from tests.site.tenancies import ask, serve
from tests.site.test_tenancy_pages import train
from webapp.prefill.cells import cells
from webapp.prefill.chart import BOTTOM, TOP, supply_chart
from webapp.prefill.supply import forecast


@pytest.mark.parametrize("tokens_per_min", [1, 60_000, 10**9])
def test_steps_go_down_and_stay_in_the_frame(world: Any, tokens_per_min: int) -> None:
    run = serve(train(world))
    tenancy = ask(world)
    outlook = forecast(tenancy, world.dcs[:2], tokens_per_min=tokens_per_min, ttft_ms=2_000)
    soon = timezone.now() + timedelta(hours=3)
    cells = [replace(row, cell=replace(row.cell, until=soon)) for row in outlook.supply.cells]
    chart = supply_chart(replace(outlook, supply=replace(outlook.supply, cells=cells)))
    assert chart is not None
    points = [tuple(map(float, point.split(","))) for point in chart.supply.split()]
    assert points == sorted(points, key=lambda point: (point[0], point[1]))
    assert all(TOP - 0.5 <= y <= BOTTOM for y in (*(y for _, y in points), chart.sold_y, chart.after_y))
    assert points[-1][1] == BOTTOM
    assert [words for _, _, words in chart.ends] == [f"{run.job.name} ends {soon:%H:%M}"]


def test_a_run_whose_prompts_take_two_gpus_is_foretold_with_two(world: Any) -> None:
    run = serve(train(world))
    own = cells("llama-3-8b", world.dcs[:2])[0].fleet
    pipelines = own.pattern.pipelines
    assert pipelines % 2 == 0
    run.job.document = changed(run.job.document, {"cell.cells": pipelines})
    serve(run, pp_degree=2)
    fleet = cells("llama-3-8b", world.dcs[:2])[0].fleet
    assert (own.pp_degree, fleet.pp_degree, fleet.cells_of_pattern) == (1, 2, pipelines)
    assert fleet.gpus == own.gpus
