"""Migrations that rename what JSON columns hold: the same rows afterwards, and the way back."""

from importlib import import_module
from types import SimpleNamespace
from typing import Any

from django.apps import apps
from django.db import connection

from tests.site.world import World
from webapp.computations.models import Computation, ComputationKind
from webapp.jobs.models import Run

EDITOR = SimpleNamespace(connection=connection)


def test_cuts_of_runs_name_the_position_of_each_rank(world: World) -> None:
    run = world.launch()
    cuts: list[dict[str, Any]] = [
        {"iteration": 3, "dcs_of_rank": {"0": [0]}},
        {"iteration": 5, "dcs_of_rank": {"0": [0]}, "job": {}, "seats": {"0": [0, 0]}},
    ]
    Run.objects.filter(pk=run.pk).update(cuts=cuts)
    migration = import_module("webapp.jobs.migrations.0004_gpu_of_rank")
    migration.name_positions(apps, EDITOR)
    run.refresh_from_db()
    assert run.cuts == [cuts[0], {**cuts[0], "iteration": 5, "job": {}, "position_of_rank": {"0": [0, 0]}}]
    migration.name_seats(apps, EDITOR)
    run.refresh_from_db()
    assert run.cuts == cuts


def test_networks_of_placements_name_the_gpu_of_each_device(world: World) -> None:
    known = {"network": {"labels": ["a"], "seats": [["a", 0]]}, "source": "inventory"}
    rows = [
        Computation.objects.create(team=world.team, name="x", kind=ComputationKind.PLACEMENT, request=request)
        for request in (known, {"network": None}, {"network": {"labels": ["a"]}})
    ]
    migration = import_module("webapp.computations.migrations.0004_gpu_of_device")
    migration.name_gpus(apps, EDITOR)
    now = [Computation.objects.get(pk=row.pk).request for row in rows]
    assert now[0] == {"network": {"labels": ["a"], "gpu_of_device": [["a", 0]]}, "source": "inventory"}
    assert now[1:] == [row.request for row in rows[1:]]
    migration.name_seats(apps, EDITOR)
    assert Computation.objects.get(pk=rows[0].pk).request == known
