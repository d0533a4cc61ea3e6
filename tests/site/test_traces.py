"""The Traces pages: from the upload over the search worker to figures, timeline and what-ifs."""

import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from django.test import Client

from engine.analyze.formats import load
from engine.analyze.result import analyze
from engine.commands.analyze import command
from tests.site.traces import BYTEDANCE, STEP_S, UTILIZATION, analysed, file_of, spans, trace, uploaded
from tests.site.world import World
from webapp.computations import services as computations
from webapp.computations.computing import work_at
from webapp.computations.models import Computation, ComputationKind
from webapp.traces.models import Trace, TraceFile, TracePart
from webapp.traces.selectors import told
from webapp.traces.services import PART_BYTES, delete_traces
from webapp.traces.timeline import drawn
from webapp.traces.work import _unpacked

pytestmark = pytest.mark.django_db


@pytest.fixture
def operator(world: World) -> Client:
    return world.client("operator")


def upload(client: Client, world: World, *files: Any, **more: Any) -> Any:
    return client.post("/traces/new/", {"team": world.team.pk, "trace": list(files), **more})


def problems(answer: Any) -> str:
    assert answer.status_code == 422
    return " ".join(str(text) for texts in answer.context["form"].errors.values() for text in texts)


def test_an_upload_is_analysed_and_shows_the_closed_form_of_its_pipeline(
    world: World, operator: Client
) -> None:
    answer = upload(operator, world, file_of("run-7.json"))
    computation = Computation.objects.get(kind=ComputationKind.TRACE)
    assert answer["Location"] == f"/traces/{computation.pk}/"
    assert computation.name == "run-7.json"
    assert "Waiting for the search worker" in operator.get(answer["Location"]).content.decode()
    work_at(computation.pk)
    page = operator.get(answer["Location"])
    facts = {fact.label: fact.value for fact in page.context["facts"]}
    assert facts["Iteration"] == f"{STEP_S:.2f}"
    assert facts["Utilization"] == f"{100 * UTILIZATION:.1f}"
    assert facts["Bubbles"] == f"{100 * (1 - UTILIZATION):.1f}"
    line = operator.get("/traces/").content.decode()
    assert "Meridian spans" in line
    assert "Done" in line


def test_the_download_is_what_the_command_prints(world: World, operator: Client, tmp_path: Path) -> None:
    path = tmp_path / "spans.json"
    path.write_bytes(spans())
    printed = json.loads(CliRunner().invoke(command, [str(path), "--json"]).stdout)
    computation = trace(world)
    assert json.loads(operator.get(f"/traces/{computation.pk}/analysis.json").content) == printed


def test_a_parquet_trace_with_its_meta_file_has_its_authors_figures(world: World, operator: Client) -> None:
    names = ("trace-ST.parquet", "meta-ST.yaml")
    computation = analysed(world, *(file_of(name, (BYTEDANCE / name).read_bytes()) for name in names))
    assert computation.state == "done", computation.error
    authors = json.loads((BYTEDANCE / "result-ST.json").read_text())
    assert computation.trace.format == "bytedance"
    assert computation.answer is not None
    ours = computation.answer["analysis"]["slowdown"]
    assert any(ours == pytest.approx(value, rel=1e-6) for value in numbers(authors)), ours


def numbers(value: Any) -> list[float]:
    """Every number in a document."""
    if isinstance(value, dict | list):
        inner = value.values() if isinstance(value, dict) else value
        return [number for each in inner for number in numbers(each)]
    return [value] if isinstance(value, float) else []


def test_the_timeline_has_every_op_where_it_was_measured(world: World, operator: Client) -> None:
    drawn = operator.get(f"/traces/{trace(world).pk}/timeline.json").json()
    assert [lane["stage"] for lane in drawn["lanes"]] == [0, 1]
    assert drawn["predicted"]["iteration_ms"] == 1e3 * STEP_S
    assert drawn["predicted"]["utilization"] == pytest.approx(UTILIZATION)
    told_ops = {(lane[0], *code) for lane in drawn["predicted"]["spans"] for code in lane[1:]}
    measured = {
        (span["stage"], span["op"], span["microbatch"], 1e3 * span["start"], 1e3 * span["end"])
        for span in json.loads(spans())["spans"]
        if span["track"] == "gpu"
    }
    assert told_ops == measured


def test_what_ifs_are_answered_next_to_the_measured_figures(world: World, operator: Client) -> None:
    computation = trace(world)
    request = {"equal_workers": "on", "factors": "1, 0.5", "idempotency_key": "once"}
    for _ in range(2):
        answer = operator.post(f"/traces/{computation.pk}/what-if/", request)
        assert answer["Location"] == f"/traces/{computation.pk}/"
    question = Computation.objects.get(kind=ComputationKind.WHAT_IF)
    assert question.request == {"questions": ["equal-workers", "stages=1,0.5"]}
    work_at(question.pk)
    rows = operator.get(f"/traces/{computation.pk}/").context["what_ifs"].rows
    assert [row["what"] for row in rows] == ["As measured", "Equal workers", "Stage times × 1, 0.5"]
    assert rows[1]["step_s"] == pytest.approx(STEP_S), "the workers are equal"
    # The first stage waits once: its second F hides 1 of the 1.5 between its first F and B.
    assert rows[2]["step_s"] == pytest.approx(4 * 3 + 0.5)
    csv = operator.get(f"/traces/{computation.pk}/what-ifs.csv").content.decode()
    assert csv.count("\n") == 4
    whole = operator.get(f"/traces/{computation.pk}/analysis.json").json()
    assert [one["what_if"] for one in whole["what_if"]] == ["equal-workers", "stages=1,0.5"]


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({}, "Nothing is different"),
        ({"factors": "1"}, "2 are needed"),
        ({"factors": "1, nan"}, "0 or more"),
        ({"factors": "1, -1"}, "0 or more"),
        ({"latency_ms": "5"}, "both figures"),
        ({"policy": "fastest"}, "not one of the available choices"),
    ],
)
def test_a_what_if_that_cannot_be_is_refused_at_its_field(
    world: World, operator: Client, change: dict[str, str], why: str
) -> None:
    answer = operator.post(f"/traces/{trace(world).pk}/what-if/", change)
    assert why in problems(answer)
    assert not Computation.objects.of(ComputationKind.WHAT_IF).exists()


def test_questions_in_words() -> None:
    assert told("policy=zb-h1").startswith("Policy ")
    assert told("link=0.02,0.004") == "Links of 20 ms latency, 4 ms transfer"


@pytest.mark.parametrize(
    ("files", "why"),
    [
        ([file_of("notes.txt", b"once upon a time")], "It must be a parquet file of ByteDance"),
        ([file_of("empty.json", b"")], "empty"),
        ([file_of("broken.json.gz", b"\x1f\x8bno")], "cannot be unpacked"),
        ([file_of("a.json"), file_of("b.json")], "is no profile of a rank"),
        ([file_of("a.json", b"[{}]"), file_of("a.json", b"[{}]")], "same name"),
        ([file_of("a.json", b"[{}]"), file_of("b.txt", b"[{}]")], "b.txt is no profile"),
        ([file_of("spans.json"), file_of("meta.yaml", b"dp: 1")], "layout of one parquet file"),
        ([file_of("meta.yaml", b"dp: 1")], "layout of one parquet file"),
        ([file_of(f"{'a' * 130}.json")], "at most 120 bytes"),
        ([file_of(f"{i}.json", b"[{}]") for i in range(101)], "at most 100"),
    ],
)
def test_what_is_no_trace_is_a_form_error(world: World, operator: Client, files: Any, why: str) -> None:
    assert why in problems(upload(operator, world, *files))
    assert not Trace.objects.exists()


def test_a_damaged_trace_fails_with_the_reason_and_no_path(world: World, operator: Client) -> None:
    computation = analysed(world, file_of("damaged.json", b'{"spans": [{"track": "gpu", "op": 3}'))
    assert computation.state == "failed"
    page = operator.get(f"/traces/{computation.pk}/").content.decode()
    assert "damaged.json" in page
    assert "/tmp" not in computation.error
    assert operator.get(f"/traces/{computation.pk}/analysis.json").status_code == 404


def test_a_trace_that_needs_too_much_memory_fails_alone(world: World, settings: Any) -> None:
    settings.TRACE_MEMORY_BYTES = 1_000_000
    computation = analysed(world)
    assert computation.state == "failed"
    assert "needs more than 0.001 GB of memory" in computation.error


def profile(rank: int) -> Any:
    """Of a GPU that computes for the first or the second half of 80 ms, without the names of ops."""
    kernel = {"ph": "X", "cat": "kernel", "name": "gemm", "pid": 0, "tid": 7, "ts": 4e4 * rank, "dur": 4e4}
    document = {"distributedInfo": {"rank": rank, "world_size": 2}, "traceEvents": [kernel]}
    return file_of(f"rank{rank}_trace.json", json.dumps(document).encode())


def test_profiles_of_all_ranks_that_name_no_ops_tell_utilization_alone(
    world: World, operator: Client
) -> None:
    computation = analysed(world, profile(0), profile(1))
    page = operator.get(f"/traces/{computation.pk}/")
    facts = {fact.label: fact.value for fact in page.context["facts"]}
    assert (facts["Iteration"], facts["Utilization"], facts["Slowdown"]) == ("80.0", "50.0", "–")
    assert "does not tell which op waits for which" in page.content.decode()
    assert "none" in operator.get(f"/traces/{computation.pk}/timeline.json").json()
    answer = operator.post(f"/traces/{computation.pk}/what-if/", {"equal_workers": "on"})
    assert answer.status_code == 404


def test_a_rank_that_is_missing_is_said(world: World) -> None:
    computation = analysed(world, profile(0), file_of("rank7.json", profile(0).read()))
    assert computation.state == "failed"
    assert "rank" in computation.error


def test_the_timeline_has_the_replicas_that_fit(tmp_path: Path) -> None:
    path = tmp_path / "spans.json"
    path.write_bytes(spans(pipelines=3))
    analysis = analyze(load(path))
    of_one = len(analysis.trace) // 3
    some = drawn(analysis, 2 * of_one)
    assert (some["replicas"], some["of_replicas"], len(some["lanes"])) == (2, 3, 4)
    assert drawn(analysis, of_one - 1) == {"too_large": of_one}


def test_the_page_asks_again_until_the_work_has_ended(world: World, operator: Client) -> None:
    computation = uploaded(world)
    claim = computations.claim(computation.pk)
    assert claim is not None
    computations.note_progress(claim, {"done": 0, "of": 1, "at": "analysing"}, None)
    address = f"/traces/{computation.pk}/"
    assert "Analysing" in operator.get(address, headers={"HX-Request": "true"}).content.decode()
    computations.give_up(claim, "no")
    assert operator.get(address, headers={"HX-Request": "true"}).headers["HX-Refresh"] == "true"


def test_one_upload_sent_twice_is_kept_once(world: World, operator: Client) -> None:
    for _ in range(2):
        upload(operator, world, file_of(), idempotency_key="once")
    assert Trace.objects.count() == TraceFile.objects.count() == 1


def test_a_team_keeps_so_many_bytes(world: World, operator: Client, settings: Any) -> None:
    settings.TRACES_OF_TEAM_BYTES = len(spans()) + 10
    uploaded(world)
    assert "delete traces" in problems(upload(operator, world, file_of()))
    assert Computation.objects.of(ComputationKind.TRACE).count() == 1


def test_files_are_kept_in_parts_and_come_out_as_they_were(world: World, tmp_path: Path) -> None:
    content = bytes(range(256)) * (PART_BYTES // 256) + b"the rest"
    computation = uploaded(world, file_of("rank0.json", content), file_of("rank1.json", b"{}"))
    assert TracePart.objects.count() == 3
    folder, meta = _unpacked(computation.trace, tmp_path)
    assert meta is None
    assert {path.name: path.read_bytes() for path in folder.iterdir()} == {
        "rank0.json": content,
        "rank1.json": b"{}",
    }


def test_a_deleted_trace_leaves_nothing_behind(world: World, operator: Client) -> None:
    computation = trace(world)
    operator.post(f"/traces/{computation.pk}/what-if/", {"equal_workers": "on"})
    page = operator.get("/traces/delete/", {"pk": computation.pk}).content.decode()
    assert "1 uploaded file, 1 what-if request" in page
    delete_traces(world.users["operator"], Computation.objects.filter(pk=computation.pk))
    assert not Computation.objects.of(ComputationKind.TRACE, ComputationKind.WHAT_IF).exists()
    assert not TracePart.objects.exists()


def test_stop_ends_what_waits(world: World, operator: Client) -> None:
    computation = uploaded(world)
    operator.post(f"/traces/{computation.pk}/cancel/")
    computation.refresh_from_db()
    assert computation.state == "cancelled"
    page = operator.get(f"/traces/{computation.pk}/").content.decode()
    assert "The analysis was stopped." in page
    assert computations.claim(computation.pk) is None


def test_who_only_reads_sees_figures_and_no_forms(world: World) -> None:
    page = world.client("viewer").get(f"/traces/{trace(world).pk}/").content.decode()
    assert "Slowest workers" in page
    assert "Compute what-ifs" not in page
    assert upload(world.client("viewer"), world, file_of()).status_code == 403


def test_without_traces_the_page_says_what_it_takes(world: World, operator: Client) -> None:
    page = operator.get("/traces/").content.decode()
    assert "Upload trace" in page
    assert "StragglerAnalysis" in page
