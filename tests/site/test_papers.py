"""The Papers pages: from the button over the search worker to rows, plots and what is told first."""

import csv
import io
from pathlib import Path
from typing import Any

import pytest
from django.test import Client
from django.urls import reverse

from engine.reproduce import ORDERS, PAPERS, experiments
from tests.site.computations import answered, queued
from tests.site.world import World
from webapp.computations import computing, services
from webapp.computations.models import Computation, ComputationKind, ComputationState
from webapp.design import papers
from webapp.design.papers_work import reproduce

pytestmark = pytest.mark.django_db
# Quick ones, with and without plots.
TWO = {"experiments": ["atom-table2", "atom-loading"]}


@pytest.fixture
def operator(world: World) -> Client:
    return world.client("operator")


def asked_for(world: World, request: dict[str, Any] = TWO) -> Computation:
    return queued(world, request, ComputationKind.PAPERS)


def run(client: Client, world: World, what: str, **more: Any) -> Any:
    return client.post("/papers/run/", {"what": what, "team": world.team.pk, **more})


def test_every_experiment_is_of_one_paper_that_has_a_name() -> None:
    of = [name for paper in PAPERS for name in papers.of_paper(paper, experiments())]
    assert sorted(of) == sorted(experiments())
    assert set(papers.LABELS) == set(PAPERS)


def test_before_the_first_run_the_page_says_what_it_is_for(world: World, operator: Client) -> None:
    page = operator.get("/papers/").content.decode()
    assert "No figure has been computed yet" in page
    assert "Compute all figures" in page
    seen = world.client("viewer").get("/papers/").content.decode()
    assert "An operator can have them computed." in seen
    assert "Run all" not in seen


@pytest.mark.parametrize(
    ("what", "names"),
    [
        ("", list(experiments())),
        ("atom", papers.of_paper("atom", experiments())),
        ("rail-only-fig5", ["rail-only-fig5"]),
    ],
)
def test_a_button_asks_for_all_one_paper_or_one_experiment(
    world: World, operator: Client, what: str, names: list[str]
) -> None:
    run(operator, world, what, idempotency_key="once")
    run(operator, world, what, idempotency_key="once")
    computation = Computation.objects.of(ComputationKind.PAPERS).get()
    assert computation.request == {"experiments": names}
    assert computation.team == world.team


def test_what_is_no_paper_starts_nothing(world: World, operator: Client) -> None:
    answer = operator.post("/papers/run/", {"what": "atlantis", "team": world.team.pk}, follow=True)
    assert "atlantis is neither a paper nor an experiment." in answer.content.decode()
    assert run(world.client("viewer"), world, "atom").status_code == 403
    assert not Computation.objects.of(ComputationKind.PAPERS).exists()


def test_figures_appear_with_assumptions_notes_and_plots(world: World, operator: Client) -> None:
    computation = answered(world, TWO, ComputationKind.PAPERS)
    assert computation.state == ComputationState.DONE
    page = operator.get("/papers/atom/")
    text = page.content.decode()
    assert "the host link at 11.2 GB/s" in text
    assert "Met" in text
    assert text.count("Not computed yet.") == len(papers.of_paper("atom", experiments())) - 2
    (plot,) = page.context["plots"].values()
    assert (plot["name"], plot["y_label"]) == ("atom-loading", "ms")
    assert all(len(series["x"]) == len(series["y"]) == 8 for series in plot["series"])
    rows = list(csv.DictReader(io.StringIO(operator.get("/papers/", {"as": "csv"}).content.decode())))
    assert {row["experiment"] for row in rows} == set(TWO["experiments"])
    assert all(row["status"] == "met" for row in rows)


def test_rows_with_shared_links_show_every_rule_of_contention(world: World, operator: Client) -> None:
    answered(world, {"experiments": ["atlas-fig6", "atlas-table1"]}, ComputationKind.PAPERS)
    page = operator.get("/papers/atlas/").content.decode()
    assert "by rank 36, in turns 36, first come first served 36, auto 33" in page
    assert page.count("By rule of contention") == 1  # Table 1 shares nothing
    rows = list(csv.DictReader(io.StringIO(operator.get("/papers/", {"as": "csv"}).content.decode())))
    (shared,) = [each for each in rows if each["name"] == "fig6 atlas"]
    assert [float(shared[f"ours_{order}"]) for order in ORDERS] == [36, 36, 36, 33]
    assert not any(each["ours_rank"] for each in rows if each["experiment"] == "atlas-table1")


def row(**fields: Any) -> dict[str, Any]:
    plain = {"experiment": "atom-table2", "name": "a", "relation": "equal", "unit": "x", "ok": True}
    return {**plain, "paper": 100, "ours": 100, "status": "met", "assumes": "", "note": "", **fields}


def told(world: World, *rows: dict[str, Any]) -> None:
    """A computation whose answer has these rows."""
    result = {"title": "t", "computed_at": "2026-11-27T08:00:00+00:00", "rows": list(rows), "plots": []}
    computation = services.claim(asked_for(world).pk)
    assert computation is not None
    services.finish(computation, {"experiments": {"atom-table2": result}})


def test_the_first_screen_tells_what_differs(world: World, operator: Client) -> None:
    told(
        world,
        row(name="as printed"),
        row(name="little", status="explained", ours=80, note="99 without a cause"),
        row(name="much", status="explained", ours=250),
        row(name="impossible", status="refuted", ours=90, note="at most 91: a proof"),
        row(name="wrong", ok=False, ours=3),
        row(name="unknown", status="untested", ours=None, note="no source"),
    )
    page = operator.get("/papers/")
    assert [each["name"] for each in page.context["headlines"]] == [
        "wrong",
        "impossible",
        "much",
        "little",
        "unknown",
    ]
    text = page.content.decode()
    assert "Of 6 printed figures we meet 1, explain 2, refute 1 and cannot test 1." in text
    assert "1 is not as stated." in text
    assert "99 without a cause" in text
    assert "+150.0" in text


def test_the_newest_result_of_each_experiment_counts(world: World, operator: Client) -> None:
    told(world, row(name="old"))
    told(world, row(name="new"))
    answered(world, {"experiments": ["atom-footprint"]}, ComputationKind.PAPERS)
    results = papers.results(world.users["viewer"])
    assert [each["name"] for each in results["atom-table2"]["rows"]] == ["new"]
    assert set(results) == {"atom-table2", "atom-footprint"}
    assert papers.results(world.users["stranger"]) == {}


def test_progress_is_shown_until_the_work_ends(world: World, operator: Client) -> None:
    computation = services.claim(asked_for(world).pk)
    assert computation is not None
    services.note_progress(computation, {"done": 1, "of": 2, "at": "Table II"}, None)
    page = operator.get("/papers/computing/").content.decode()
    assert "1 of 2; at work: Table II" in page
    assert "/papers/computing/?done=1" in operator.get("/papers/").content.decode()
    assert "HX-Refresh" not in operator.get("/papers/computing/?done=1").headers
    assert operator.get("/papers/computing/?done=0").headers["HX-Refresh"] == "true"
    services.give_up(computation, "the engine failed: RuntimeError")
    assert operator.get("/papers/computing/").headers["HX-Refresh"] == "true"
    assert "the engine failed: RuntimeError" in operator.get("/papers/").content.decode()


def test_a_cancelled_run_keeps_what_it_has(world: World, operator: Client) -> None:
    # The second takes far longer than the look at whether somebody has cancelled.
    computation = asked_for(world, {"experiments": ["atom-table2", "crosspipe-dp-pp"]})

    def cancel(pk: Any) -> bool:
        """Asked for as soon as the first figures are kept."""
        row = Computation.objects.get(pk=pk)
        if row.answer and not row.cancel_asked:
            operator.post(reverse("design:papers-cancel", args=[pk]))
        return False

    computing.work_at(computation.pk, ending=lambda: cancel(computation.pk))
    computation.refresh_from_db()
    assert computation.state == ComputationState.CANCELLED
    assert list(computation.answer["experiments"]) == ["atom-table2"]
    assert "was stopped" in operator.get("/papers/").content.decode()


def test_work_that_gave_way_goes_on_where_it_was(world: World) -> None:
    computation = asked_for(world)
    computing.work_at(computation.pk, ending=lambda: bool(Computation.objects.get(pk=computation.pk).answer))
    computation.refresh_from_db()
    assert computation.state == ComputationState.QUEUED
    first = computation.answer["experiments"]["atom-table2"]
    computing.work_at(computation.pk)
    computation.refresh_from_db()
    assert computation.state == ComputationState.DONE
    assert list(computation.answer["experiments"]) == TWO["experiments"]
    assert computation.answer["experiments"]["atom-table2"] == first


def test_an_experiment_that_fails_fails_the_run(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("webapp.computations.own_process.sys.executable", "/bin/false")
    computation = answered(world, TWO, ComputationKind.PAPERS)
    assert computation.state == ComputationState.FAILED
    assert computation.error == "the engine failed: RuntimeError"


def test_a_process_that_the_system_ends_fails_the_run(
    world: World, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Without memory some libraries abort, and the kernel kills: what came until then is no answer."""
    script = tmp_path / "aborts"
    script.write_text("#!/bin/sh\nkill -9 $$\n")
    script.chmod(0o755)
    monkeypatch.setattr("webapp.computations.own_process.sys.executable", str(script))
    computation = answered(world, TWO, ComputationKind.PAPERS)
    assert computation.state == ComputationState.FAILED
    assert computation.error == "the engine failed: RuntimeError"


def test_the_kind_of_work_is_registered() -> None:
    from webapp.computations.kinds import KINDS

    assert KINDS[ComputationKind.PAPERS].work is reproduce
    assert KINDS[ComputationKind.PAPERS].gives_way
