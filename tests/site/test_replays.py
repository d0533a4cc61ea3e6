"""The pages of replays: from the form over the search worker to what would be sold."""

import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from django.test import Client

from engine.commands.prefill import replay_command
from engine.inputs import parse
from engine.prefill.bubbles import of_timeline
from engine.schedule.scenario import Scenario
from engine.simulate import simulate
from tests.site.computations import comparison
from tests.site.replays import CSV, question, replay, started, trace_file, values
from tests.site.world import World
from webapp.computations.models import Computation, ComputationKind
from webapp.prefill.replays.forms import ORDERS, ReplayForm
from webapp.prefill.replays.process import answers
from webapp.prefill.replays.sources import CELL_BUBBLES
from webapp.traces.models import Trace, TracePart

pytestmark = pytest.mark.django_db
ROOT = Path(__file__).parents[2]


@pytest.fixture
def operator(world: World) -> Client:
    return world.client("operator")


def problems(answer: Any) -> dict[str, str]:
    assert answer.status_code == 422
    return {name: " ".join(texts) for name, texts in answer.context["form"].errors.items()}


def test_the_defaults_of_the_form_sell_what_the_docs_promise(world: World) -> None:
    """Of all loads and orders the one that docs/prefill.md prints: 200 times the trace, first come."""
    request = ReplayForm(user=world.users["operator"])
    first = {name: field.initial for name, field in request.fields.items()} | {"team": world.team.pk}
    form = ReplayForm({**first, "loads": "200", "orders": ["fifo"]}, user=world.users["operator"])
    assert form.is_valid(), form.errors
    assert 200 in first["loads"]
    assert first["orders"] == list(ORDERS)
    work = form.question
    document = {**work["document"], "trace": work["trace"]}
    [_, line] = answers({"document": document, "loads": work["loads"], "orders": work["orders"]})
    printed = (ROOT / "docs" / "prefill.md").read_text()
    shares = re.search(r"utilization +([\d.]+) % without prefill, ([\d.]+) % with", printed)
    assert shares is not None
    before, after = line["result"]["utilization_before"], line["result"]["utilization_after"]
    assert (f"{100 * before:.1f}", f"{100 * after:.1f}") == shares.groups()


def test_a_replay_is_computed_and_shows_every_load_in_every_order(world: World, operator: Client) -> None:
    answer = operator.post("/prefill/replays/new/", values(world))
    computation = Computation.objects.get(kind=ComputationKind.REPLAY)
    assert answer["Location"] == f"/prefill/replays/{computation.pk}/"
    assert "Waiting for the search worker" in operator.get(answer["Location"]).content.decode()
    replay_page = operator.get(f"/prefill/replays/{replay(world).pk}/")
    rows = replay_page.context["tables"][0].rows
    assert [(row["order"], row["load"]) for row in rows] == [
        (order, load) for order in ORDERS for load in (20, 200)
    ]
    assert all(row["accepted"] + sum(row["refused"].values()) == 60 for row in rows)
    titles = [chart["title"] for chart in replay_page.context["charts"]["lines"]]
    assert titles[0] == "Utilization of the GPUs, %"
    listed = operator.get("/prefill/replays/").content.decode()
    assert "azure-code" in listed
    assert "12 GPUs of the Atlas paper" in listed


def test_an_upload_is_replayed_as_the_command_does(world: World, operator: Client, tmp_path: Path) -> None:
    computation = replay(world, trace_file(), loads="7", orders=["longest_fit"])
    assert computation.state == "done", computation.error
    assert computation.answer is not None
    assert computation.answer["trace"] == {
        "requests": 10,
        "span_ms": 54_000,
        "tokens_p50": 100,
        "tokens_max": 100,
    }
    document = operator.get(f"/prefill/replays/{computation.pk}/document.json").json()
    assert document["trace"] == "prompts.csv"
    (tmp_path / "prompts.csv").write_text(CSV)
    document["trace"] = str(tmp_path / "prompts.csv")
    printed = CliRunner().invoke(replay_command, ["-", "--json"], input=json.dumps(document)).stdout
    [ours] = computation.answer["results"]
    expected = {"order": "longest_fit", **json.loads(printed)}
    clock = {"search_us": None}
    assert ours | clock == expected | clock
    for table in ("sold", "times"):
        csv = operator.get(f"/prefill/replays/{computation.pk}/{table}.csv").content.decode()
        assert csv.count("\n") == 2
    assert operator.get(f"/prefill/replays/{computation.pk}/bought.csv").status_code == 404


def test_a_trace_that_was_uploaded_is_chosen_again(world: World, operator: Client) -> None:
    earlier = replay(world, trace_file(), loads="1", orders=["fifo"])
    form = operator.get(f"/prefill/replays/new/?from={earlier.pk}").context["form"]
    assert form["trace"].value() == f"of:{earlier.pk}"
    again = replay(world, trace=f"of:{earlier.pk}", loads="1", orders=["fifo"])
    assert Trace.objects.count() == 1
    assert again.request["trace_name"] == "prompts.csv (Bursts)"
    assert earlier.answer is not None
    assert again.answer is not None
    assert again.answer["trace"] == earlier.answer["trace"]
    waits = started(world, trace=f"of:{earlier.pk}")
    page = operator.get("/prefill/replays/delete/", {"pk": str(earlier.pk)}).content.decode()
    assert "1 uploaded trace" in page
    operator.post("/prefill/replays/delete/", {"pk": earlier.pk, "confirmed": "on"})
    assert not TracePart.objects.exists()
    from webapp.computations.computing import work_at

    work_at(waits.pk)
    waits.refresh_from_db()
    assert "is deleted: upload it again" in waits.error


def test_bubbles_of_a_plan_a_comparison_and_a_run_are_those_of_their_timelines(world: World) -> None:
    assert world.plan.best is not None
    pipelines_ms = world.plan.best["pp_time_ms"]
    world.plan.best["iteration_ms"] = pipelines_ms + 90  # an all-reduce of 90 ms
    world.plan.save()
    plan = question(world, bubbles=f"plan:{world.plan.pk}")
    assert plan["bubbles"] == f"best option of plan {world.plan.name}"
    assert plan["document"]["bubbles"]["period_ms"] == pipelines_ms + 90
    for gpu in (gpu for pipeline in plan["document"]["bubbles"]["busy"] for gpu in pipeline):
        assert gpu[-1][0] <= pipelines_ms, "training keeps its GPUs until the gradients are added"
        assert gpu[-1][1] == pipelines_ms + 90
    compared = comparison(world)
    best = min(compared.answer["results"], key=lambda row: row["makespan"])  # type: ignore[index]
    bubbles = question(world, bubbles=f"schedules:{compared.pk}", slot_ms=10)["document"]["bubbles"]
    assert bubbles["period_ms"] == pytest.approx(10 * best["makespan"])
    busy_ms = sum(end - begin for row in bubbles["busy"] for gpu in row for begin, end in gpu)
    gpus = sum(len(row) for row in bubbles["busy"])
    assert busy_ms / gpus / bubbles["period_ms"] == pytest.approx(best["utilization"])
    run = world.launch()
    of_run = question(world, bubbles=f"run:{run.pk}")
    assert of_run["bubbles"] == f"run {run}"
    assert of_run["document"]["bubbles"]["period_ms"] == run.predicted["iteration_ms"]


def test_the_shipped_cell_is_that_of_the_example(world: World) -> None:
    import yaml

    example = yaml.safe_load((ROOT / "examples" / "prefill.yaml").read_text())
    assert example["bubbles"] == CELL_BUBBLES
    simulated = simulate(parse(Scenario, CELL_BUBBLES["scenario"]))
    assert simulated.timeline is not None
    pattern = of_timeline(simulated.timeline, 17.9, simulated.scenario.dcs)
    assert pattern.gpus == 12


@pytest.mark.parametrize(
    ("changes", "field"),
    [
        ({"trace": "upload"}, "file"),
        ({"trace": "of:00000000-0000-0000-0000-000000000000"}, "trace"),
        ({"bubbles": "run:999999"}, "bubbles"),
        ({"loads": "0"}, "loads"),
        ({"loads": "nan"}, "loads"),
        ({"loads": ", ".join(map(str, range(1, 14)))}, "loads"),
        ({"orders": []}, "orders"),
        ({"pp_degree": 2, "cells": 3}, "pp_degree"),
        ({"profile": "own", "a_ms": 1}, "b_ms"),
        ({"requests": 1_000_000}, "requests"),
    ],
)
def test_what_cannot_be_replayed_is_refused_at_its_field(
    world: World, operator: Client, changes: dict[str, Any], field: str
) -> None:
    assert field in problems(operator.post("/prefill/replays/new/", values(world, **changes)))
    assert not Computation.objects.of(ComputationKind.REPLAY).exists()


def test_a_file_that_is_no_trace_or_that_nobody_chose_is_refused(world: World, operator: Client) -> None:
    def sent(**more: Any) -> dict[str, str]:
        return problems(operator.post("/prefill/replays/new/", values(world, **more)))

    assert "is no trace" in sent(trace="upload", file=trace_file("once upon a time\n"))["file"]
    assert "Choose “a file to upload”" in sent(file=trace_file())["trace"]
    assert "at most 120 bytes" in sent(trace="upload", file=trace_file(name=f"{'a' * 130}.csv"))["file"]


def test_slots_need_their_length(world: World, operator: Client) -> None:
    sent = values(world, bubbles=f"schedules:{comparison(world).pk}")
    assert "slots" in problems(operator.post("/prefill/replays/new/", sent))["slot_ms"]


def test_a_damaged_trace_fails_with_its_line_and_no_path(world: World, operator: Client) -> None:
    computation = replay(world, trace_file(CSV + "2023-11-16 19:00:00,many,1\n"))
    assert computation.state == "failed"
    assert "trace[10].ContextTokens" in computation.error
    page = operator.get(f"/prefill/replays/{computation.pk}/").content.decode()
    assert "could not be replayed" in page
    assert "/tmp" not in page


def test_a_team_keeps_so_many_bytes(world: World, operator: Client, settings: Any) -> None:
    settings.TRACES_OF_TEAM_BYTES = len(CSV) + 10
    started(world, trace_file())
    sent = values(world, trace="upload", file=trace_file())
    answer = operator.post("/prefill/replays/new/", sent)
    assert "delete traces" in str(answer.context["form"].errors)
    assert Computation.objects.of(ComputationKind.REPLAY).count() == 1


def test_a_replay_stays_within_its_memory(tmp_path: Path) -> None:
    work = {
        "document": {
            "bubbles": {"busy": [[[[0, 5]]]], "period_ms": 10},
            "profile": {"a_ms": 3, "b_ms": 0.02, "c_ms": 0},
            "trace": "azure-code",
            "requests": 10_000_000,  # 80 MB for each of their figures
            "controller": {},
        },
        "loads": [10],
        "orders": ["fifo"],
        "memory_bytes": 200_000_000,
    }
    file = tmp_path / "work.json"
    file.write_text(json.dumps(work))
    command = [sys.executable, "-m", "webapp.prefill.replays.process", str(file)]
    lines = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True).stdout.splitlines()
    assert json.loads(lines[-1]) == {
        "refused": ["trace", None, "needs more than 0.2 GB of memory: upload a shorter one"]
    }


def test_stop_ends_what_waits(world: World, operator: Client) -> None:
    computation = started(world)
    operator.post(f"/prefill/replays/{computation.pk}/cancel/")
    computation.refresh_from_db()
    assert computation.state == "cancelled"
    page = operator.get(f"/prefill/replays/{computation.pk}/").content.decode()
    assert "The replay was stopped." in page


def test_who_only_reads_sees_figures_and_starts_nothing(world: World) -> None:
    viewer = world.client("viewer")
    page = viewer.get(f"/prefill/replays/{replay(world).pk}/").content.decode()
    assert "What would be sold" in page
    assert "Copy and edit" not in page
    assert viewer.post("/prefill/replays/new/", values(world)).status_code == 403
    assert "No replays yet" not in viewer.get("/prefill/replays/").content.decode()
