"""The Schedules pages, from form to files; workers that die or are told to stop."""

import csv
import io
import json
import zipfile
from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest
from django.test import Client
from django.urls import reverse
from django.utils import timezone

from engine.inputs import parse
from engine.schedule.runtimes import megatron_files, torch_files
from engine.schedule.scenario import Scenario
from engine.schedule.text import parse_schedule
from engine.simulate import simulate
from tests.checker import check
from tests.site.computations import QUESTION, SCENARIO, SWEEP, answered, claimed, queued
from tests.site.world import World
from webapp.computations import computing, services
from webapp.computations.models import Computation, ComputationKind, ComputationState
from webapp.schedules.forms import ScheduleForm, initial_of_scenario

pytestmark = pytest.mark.django_db

FORM: dict[str, Any] = {
    "name": "Figure 6",
    "policies": ["gpipe", "atlas"],
    "stages_per_dc": "2, 2, 2",
    "pipelines": 2,
    "microbatches": 4,
    "unit": "slot",
    "forward": "1",
    "backward": "2",
    "recompute": "1",
    "wan_latency": "0",
    "wan_transfer": "2",
    "time_limit_s": 30,
}


@pytest.fixture
def operator(world: World) -> Client:
    return world.client("operator")


def form(world: World, **changes: Any) -> ScheduleForm:
    data = {**FORM, "team": world.team.pk, **changes}
    return ScheduleForm({k: v for k, v in data.items() if v is not None}, user=world.users["operator"])


def test_the_form_makes_the_scenario_that_the_command_line_reads(world: World) -> None:
    filled = form(world)
    assert filled.is_valid(), filled.errors
    result = simulate(parse(Scenario, {**filled.scenario, "policy": "atlas"}))
    assert result.makespan == 36
    assert filled.computation["policies"] == ["gpipe", "atlas"]


@pytest.mark.parametrize(
    "extra",
    [
        {},
        {"lan": {"latency": 0.5, "transfer": 1.0}, "memory_limit": 3, "sharing": "temporal", "jitter": 0.1},
        {"memory_limit": [6, 5, 4, 3, 2, 1], "full_limit": 2},
        {"wan": [{"latency": 1.0, "transfer": 2.0}, {"latency": 3.0, "transfer": 4.0}]},
        {"lan": [{"latency": 1.0, "transfer": 2.0}, *({"latency": 0.0, "transfer": t} for t in (3.0, 4.0))]},
        {"times": {"forward": [1.0, 2.0, 1.0, 1.0, 1.0, 1.0], "backward": 2.0, "weight": 1.0}},
    ],
)
def test_a_scenario_survives_the_form(world: World, extra: dict[str, Any]) -> None:
    document = {**SCENARIO, **extra}
    values = {name: v for name, v in initial_of_scenario(document).items() if v is not None}
    texts = {n: ", ".join(map(str, v)) if isinstance(v, list) else v for n, v in values.items()}
    empty = dict.fromkeys(["recompute", "wan_latency", "wan_transfer"])
    filled = form(world, **{**empty, **texts})
    assert filled.is_valid(), filled.errors
    policy = {"policy": "varuna"}
    assert parse(Scenario, {**filled.scenario, **policy}).model_copy(update={"time_limit_s": 60.0}) == parse(
        Scenario, {**document, **policy}
    )


@pytest.mark.parametrize(
    ("change", "field"),
    [
        ({"policies": []}, "policies"),
        ({"stages_per_dc": "2, x"}, "stages_per_dc"),
        ({"stages_per_dc": "2, 0"}, "stages_per_dc"),
        ({"stages_per_dc": "1001, 1001"}, "stages_per_dc"),
        ({"forward": "-1"}, "forward"),
        ({"forward": "1, 2"}, "forward"),
        ({"wan_transfer": "1, 2, 3"}, "wan_transfer"),
        ({"lan_latency": "1, 2"}, "lan_latency"),
        ({"microbatches": 0}, "microbatches"),
        ({"memory_limit": "0"}, "memory_limit"),
        ({"memory_limit": "1.5"}, "memory_limit"),
        ({"memory_limit": "1, 2"}, "memory_limit"),
        ({"full_limit": "1, 2, 3, 4, 5, 0"}, "full_limit"),
        ({"microbatches": 100_000, "stages_per_dc": "60"}, "microbatches"),
        ({"parameter": "wan.latency"}, "values"),
        ({"parameter": "wan.latency", "values": "1, b"}, "values"),
        (
            {"policies": ["optimal"], "time_limit_s": 600, "parameter": "jitter", "values": "1,2,3,4"},
            "time_limit_s",
        ),
        ({"name": ""}, "name"),
    ],
)
def test_bad_input_stands_at_its_field(world: World, change: dict[str, Any], field: str) -> None:
    assert field in form(world, **change).errors


def test_from_the_form_to_the_figures(world: World, operator: Client) -> None:
    answer = operator.post(reverse("schedules:schedule-create"), {**FORM, "team": world.team.pk})
    computation = Computation.objects.get()
    address = reverse("schedules:schedule-detail", args=[computation.pk])
    assert answer.url == address
    assert b"hx-trigger" in operator.get(address).content
    computing.work_at(computation.pk)
    page = operator.get(address)
    assert b"hx-trigger" not in page.content
    rows = {row["policy"]: row for row in page.context["figures"]}
    assert (rows["gpipe"]["makespan"], rows["atlas"]["makespan"]) == (46, 36)
    assert rows["atlas"]["is_best"]
    assert not rows["gpipe"]["is_best"]
    assert (
        operator.get(address, headers={"HX-Request": "true"}).templates[0].name
        == "schedules/schedules_result.html"
    )


def test_other_runtimes_get_the_orders_that_they_can_run(world: World, operator: Client) -> None:
    scenario = {**SCENARIO, "times": {"forward": 1, "backward": 2}}
    computation = answered(world, {**QUESTION, "scenario": scenario, "policies": ["1f1b", "atlas"]})

    def get(name: str, *of: str) -> Any:
        return operator.get(reverse(f"schedules:schedule-{name}", args=[computation.pk, *of]))

    assert get("timeline", "1f1b").json()["runtimes"] == ["torch", "megatron"]
    assert get("timeline", "atlas").json()["runtimes"] == ["torch"]
    result = simulate(parse(Scenario, {**scenario, "policy": "1f1b"}))
    assert result.timeline is not None
    for form, files in (("torch", torch_files), ("megatron", megatron_files)):
        with zipfile.ZipFile(io.BytesIO(get("download", "1f1b", form).content)) as archive:
            read = {name: archive.read(name).decode() for name in archive.namelist()}
        assert read == files(result.timeline.schedule)
    refused = get("download", "atlas", "megatron")
    assert refused.status_code == 400
    assert refused.content.decode().startswith("megatron: P0 S3: op 3 is F3")


def test_the_files_are_those_of_the_command_line(world: World, operator: Client) -> None:
    computation = answered(world)

    def file(form: str) -> str:
        return operator.get(
            reverse("schedules:schedule-download", args=[computation.pk, "atlas", form])
        ).content.decode()

    scenario = parse(Scenario, {**SCENARIO, "policy": "atlas"})
    result = simulate(scenario)
    assert result.timeline is not None
    assert str(parse_schedule(file("schedule"))) == str(result.timeline.schedule)
    assert len(list(csv.DictReader(io.StringIO(file("spans"))))) == len(result.spans())
    assert len([e for e in json.loads(file("trace"))["traceEvents"] if e["ph"] == "X"]) == len(result.spans())
    assert (
        operator.get(reverse("schedules:schedule-download", args=[computation.pk, "atlas", "x"])).status_code
        == 404
    )
    assert (
        operator.get(reverse("schedules:schedule-timeline", args=[computation.pk, "zb"])).status_code == 404
    )
    table = operator.get(reverse("schedules:schedule-table", args=[computation.pk])).content.decode()
    assert [row["makespan"] for row in csv.DictReader(io.StringIO(table))] == ["46.0", "36.0"]


def test_the_timeline_holds_every_span(world: World, operator: Client) -> None:
    computation = answered(world)
    drawn = operator.get(reverse("schedules:schedule-timeline", args=[computation.pk, "atlas"])).json()
    ops = [code for _, *codes in drawn["predicted"]["spans"] for code in codes if code[0] in "FRB"]
    answer = simulate(parse(Scenario, {**SCENARIO, "policy": "atlas"})).as_dict()
    check({**SCENARIO, "policy": "atlas"}, answer)
    assert sorted((code[2], code[3]) for code in ops) == sorted(
        (span["start"], span["end"]) for span in answer["spans"] if span["track"] == "gpu"
    )
    assert {(link["from"], link["to"]) for link in drawn["links"]} == {(0, 1), (1, 0), (1, 2), (2, 1)}


def test_a_sweep_is_the_table_of_the_command(world: World, operator: Client) -> None:
    computation = answered(world, SWEEP, ComputationKind.SWEEP)
    page = operator.get(reverse("schedules:schedule-detail", args=[computation.pk]))
    assert len(page.context["figures"]) == 6
    lines = page.context["sweep_points"]["lines"]
    assert [line["policy"] for line in lines] == ["varuna", "atlas"]
    assert lines[1]["makespans"] == [36, 40, 44]


@pytest.mark.parametrize(("query", "policy"), [("plan", "varuna"), ("run", "varuna")])
def test_a_comparison_starts_from_a_plan_or_a_run(
    world: World, operator: Client, query: str, policy: str
) -> None:
    key = world.plan.pk if query == "plan" else world.launch().pk
    page = operator.get(reverse("schedules:schedule-create"), {query: key})
    initial = page.context["form"].initial
    assert initial["unit"] == "ms"
    assert policy in initial["policies"]
    assert sum(initial["stages_per_dc"]) == 6


def test_what_others_have_is_not_there(world: World, client: Client) -> None:
    client.force_login(world.users["stranger"])
    for query in ({"plan": world.plan.pk}, {"run": world.launch().pk}, {"from": str(queued(world).pk)}):
        assert client.get(reverse("schedules:schedule-create"), query).status_code == 404
    assert client.get(reverse("schedules:schedule-create"), {"from": "nonsense"}).status_code == 404


def test_a_computation_is_worked_at_once(world: World) -> None:
    computation = queued(world)
    first = services.claim(computation.pk)
    assert first is not None
    assert services.claim(computation.pk) is None
    services.finish(first, {"results": []})
    assert services.claim(computation.pk) is None


def test_what_is_cancelled_keeps_what_was_found(world: World) -> None:
    computation = queued(world)
    wires_seen = []
    original = computing.KINDS[ComputationKind.SCHEDULES]

    def cancelled_in_between(request: Any, wires: Any) -> Any:
        wires_seen.append(wires)
        for number, answer in enumerate(original.work(request, wires)):
            if number == 0:
                services.ask_to_cancel(world.users["operator"], computation)
            yield answer

    with pytest.MonkeyPatch.context() as patch:
        cancelled = replace(original, work=cancelled_in_between)
        patch.setitem(computing.KINDS, ComputationKind.SCHEDULES, cancelled)
        computing.work_at(computation.pk)
    computation.refresh_from_db()
    assert computation.state == ComputationState.CANCELLED
    assert [row["policy"] for row in computation.answer["results"]] == ["gpipe"]
    assert wires_seen[0].cancelled()


def test_a_queued_one_is_cancelled_at_once(world: World) -> None:
    computation = queued(world)
    assert services.ask_to_cancel(world.users["operator"], computation)
    computation.refresh_from_db()
    assert computation.state == ComputationState.CANCELLED
    assert not services.ask_to_cancel(world.users["operator"], computation)
    computing.work_at(computation.pk)
    computation.refresh_from_db()
    assert computation.answer is None


def test_a_worker_that_shuts_down_leaves_it_to_the_next(world: World) -> None:
    computation = queued(world)
    computing.work_at(computation.pk, ending=lambda: True)
    computation.refresh_from_db()
    assert computation.state == ComputationState.QUEUED
    computing.work_at(computation.pk)
    computation.refresh_from_db()
    assert computation.state == ComputationState.DONE
    assert len(computation.answer["results"]) == 2


@pytest.mark.parametrize("clock_was_set_back", [False, True])
def test_what_a_dead_worker_held_is_sent_again_and_its_late_answer_refused(
    world: World, clock_was_set_back: bool
) -> None:
    lost = claimed(world)
    assert services.requeue_lost() == 0
    age = timedelta(hours=-1) if clock_was_set_back else timedelta(seconds=services.SILENT_S + 1)
    Computation.objects.update(heard_at=timezone.now() - age)
    assert services.requeue_lost() == 1
    assert not services.note_progress(lost, {"done": 1, "of": 2}, {"results": []})
    services.finish(lost, {"results": ["late"]})
    computing.work_at(lost.pk)
    lost.refresh_from_db()
    assert [row["policy"] for row in lost.answer["results"]] == QUESTION["policies"]


def test_a_question_that_the_engine_refuses_says_why(world: World) -> None:
    refused = answered(world, {**QUESTION, "scenario": {**SCENARIO, "stages": 7}})
    assert refused.state == ComputationState.FAILED
    assert "dc_of_stage" in refused.error


def test_what_is_deleted_is_no_longer_worked_at(world: World) -> None:
    computation = claimed(world)
    services.remove(world.users["operator"], Computation.objects.get(pk=computation.pk))
    assert not services.note_progress(computation, {"done": 1, "of": 2}, None)
    services.finish(computation, {"results": []})
    assert not Computation.objects.exists()
