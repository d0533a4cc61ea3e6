"""Runs that re-plan: what the page says of it once, and what it predicts from then on."""

from typing import Any

import pytest

from engine.job.adapt.better import better_placement
from engine.job.events.event import from_dict
from engine.job.launch import single_machine
from engine.job.recovery.layout import change
from tests.events import T0
from tests.runtime.test_replacement import conditions, placed
from tests.site.telemetry import ADAPTED, adapted, layout_changed, take_in
from tests.site.test_incidents import RECOVERED
from tests.site.test_reconcile import Nodes, nodes, running  # noqa: F401  (a fixture)
from webapp.jobs import services
from webapp.jobs.models import MarkLevel, PastPrediction, Run, RunEvent
from webapp.jobs.prediction import measured_payload, predicted_payload
from webapp.jobs.services import forget_old_predictions
from webapp.live.incidents import incidents_of
from webapp.live.models import IterationStat
from webapp.live.selectors import predicted, snapshot, spans_between

CAUSE = (
    "a message between S2 and S3 holds its link for 80.0 ms instead of 40.0, "
    "forward on S6 takes 26.1 ms instead of 20.0."
)

OF_ANOTHER_JOB = "microbatches 1, chunks 1, traversal straight, sharing spatial, gate none\nP0 S0: F0 B0"


@pytest.fixture
def run(world: Any, nodes: Nodes) -> Run:  # noqa: F811
    new = running(world, nodes)
    Run.objects.filter(pk=new.pk).update(steps=100)
    return new


def send(run: Run, *events: dict[str, Any]) -> list[tuple[int, dict[str, Any]]]:
    """Take in what the node of the first rank says; the messages to browsers."""
    node = run.ranks.get(rank=0).node.name
    key = {"run": str(run.pk), "generation": run.generation}
    return take_in([(node, f"1790000000000-{i}", {**event, **key}) for i, event in enumerate(events)])


def test_a_new_plan_is_a_mark_that_says_why_and_comes_once(run: Run) -> None:
    assert services.record_adapted(run, from_dict(adapted(run)))
    assert not services.record_adapted(run, from_dict(adapted(run))), "at least once"
    (mark,) = RunEvent.objects.filter(run=run, text__contains="Re-planned")
    assert mark.level == MarkLevel.WARN
    assert mark.text == (
        f"Re-planned with Varuna from iteration 42 on: {CAUSE} "
        "An iteration should now take 1,286 ms instead of 1,484 ms."
    )


def test_a_plan_that_stays_says_so(run: Run) -> None:
    services.record_adapted(run, from_dict(adapted(run, replanned=False, after_s=1.4837)))
    (mark,) = RunEvent.objects.filter(run=run, text__contains="stays because")
    assert mark.text == (
        f"The plan stays because Varuna found no better one: {CAUSE} "
        "An iteration should now take 1,484 ms; 1,103 ms were planned."
    )


def lasts(codes: list[Any], rank: int, op: str) -> float:
    """How long an op of a rank is predicted to take, ms."""
    (own,) = [row for first, *row in codes if first == rank]
    return next(code[3] - code[2] for code in own if code[0] == op)


def test_from_then_on_the_times_that_were_measured_are_predicted(run: Run) -> None:
    launch = run.predicted
    ((_, message),) = send(run, adapted(run, slower=1.3))
    run.refresh_from_db()
    assert run.predicted_since == 41
    assert lasts(run.predicted["spans"], 0, "F") == pytest.approx(1.3 * lasts(launch["spans"], 0, "F"))
    assert lasts(run.predicted["spans"], 1, "F") == pytest.approx(lasts(launch["spans"], 1, "F"))
    assert run.predicted["iteration_ms"] > launch["iteration_ms"]
    assert message["predicted"] == {**run.predicted, "since": 41}
    before = {"since": 0, "iteration_ms": launch["iteration_ms"], "utilization": launch["utilization"]}
    assert spans_between(run, 40, 40)["predicted_before"] == [{**before, "spans": launch["spans"]}]
    assert spans_between(run, 41, 60)["predicted_before"] == [before], "those iterations have the later one"
    shown = snapshot(run.pk)
    assert (shown["predicted"], shown["predicted_before"]) == (message["predicted"], [before])


def test_each_iteration_has_the_last_plan_before_it(run: Run) -> None:
    launch = run.predicted["iteration_ms"]
    send(run, adapted(run, slower=1.3), adapted(run, slower=2.0, iteration=60, t=T0 + 9))
    run.refresh_from_db()
    prediction = predicted(run, (50, 50))
    assert [row["since"] for row in prediction["predicted_before"]] == [0, 41]
    assert ["spans" in row for row in prediction["predicted_before"]] == [False, True]
    rows = [*prediction["predicted_before"], prediction["predicted"]]
    assert launch == rows[0]["iteration_ms"] < rows[1]["iteration_ms"] < rows[2]["iteration_ms"]


def test_ranks_that_begin_anew_have_the_schedule_of_the_launch_again(run: Run) -> None:
    launch = run.predicted
    recovered = {
        "kind": "recovery",
        "rank": 0,
        "failed": "rank",
        "detail": "rank 4: killed by SIGKILL",
        "from": "memory",
        "noticed": T0,
        "detected_s": 0.0,
        "iteration": 50,
        "lost_s": 3.25,
        "attempt": 2,
        "t": T0 + 30,
    }
    ((_, message),) = send(run, adapted(run), adapted(run, iteration=60, t=T0 + 9), recovered)
    run.refresh_from_db()
    assert (run.predicted, run.predicted_since) == (launch, 50)
    assert [row["since"] for row in message["predicted_before"]] == [0, 41], "60 was never reached"


def test_a_recovery_without_another_plan_changes_no_prediction(run: Run) -> None:
    recovered = {
        "kind": "recovery",
        "rank": 0,
        "failed": "rank",
        "detail": "rank 4: killed",
        "from": "memory",
        "noticed": T0,
        "detected_s": 0.0,
        "iteration": 5,
        "lost_s": 1.0,
        "attempt": 2,
        "t": T0,
    }
    services.record_recovery(run, from_dict(recovered))
    run.refresh_from_db()
    assert (run.predicted, run.predicted_since) == (predicted_payload(run.job.document), 0)
    assert not PastPrediction.objects.filter(run=run).exists()


def test_spans_of_predictions_of_forgotten_iterations_are_forgotten_and_their_figures_stay(run: Run) -> None:
    send(run, adapted(run), adapted(run, iteration=60, t=T0 + 9))
    Run.objects.filter(pk=run.pk).update(iteration=59)
    assert forget_old_predictions(keep=18, spans_held={}) == 1
    assert [bool(past.spans) for past in PastPrediction.objects.filter(run=run)] == [False, True]
    assert forget_old_predictions(keep=18, spans_held={}) == 0


@pytest.mark.parametrize(
    ("shown", "stay"), [((0, 0), True), ((40, 41), True), ((42, 50), False), ((60, 60), False)]
)
def test_predictions_that_a_kept_range_shows_keep_their_spans(
    run: Run, shown: tuple[int, int], stay: bool
) -> None:
    """The first held for iterations 0 to 41, as the run re-planned for iteration 42."""
    send(run, adapted(run))
    Run.objects.filter(pk=run.pk).update(iteration=999)
    forget_old_predictions(keep=18, spans_held={run.pk: [shown]})
    first = PastPrediction.objects.filter(run=run).earliest("since")
    assert bool(first.spans) == stay


@pytest.mark.parametrize(
    "broken",
    [
        {"deviations": [{"what": "X", "at": [0]}]},
        {"t": "soon"},
        {"before_s": None},
        {"schedule": "microbatches 1"},
        {"times": [["F", 0, "long"]]},
        {"schedule": OF_ANOTHER_JOB},
    ],
)
def test_what_cannot_be_read_is_refused_and_the_rest_taken(broken: dict[str, Any], run: Run) -> None:
    launch = run.predicted
    send(run, {**adapted(run), **broken})
    run.refresh_from_db()
    assert run.predicted == launch
    assert not RunEvent.objects.filter(run=run, text__contains="Re-planned").exists()
    send(run, {**adapted(run), **broken}, adapted(run))
    assert RunEvent.objects.filter(run=run, text__contains="Re-planned").count() == 1
    assert ADAPTED["iteration"] == Run.objects.get(pk=run.pk).predicted_since


def test_a_run_in_another_layout_is_a_mark_a_prediction_and_frees_gpus_once(run: Run) -> None:
    event = layout_changed(run)
    ((_, message),) = send(run, event, event)
    run.refresh_from_db()
    (mark,) = RunEvent.objects.filter(run=run, text__startswith="Moved to another layout")
    cell = event["layout"]["job"]["cell"]
    assert set(cell["dc_of_stage"]) == {0, 1}, "none in west"
    assert mark.text.startswith(
        "Moved to another layout from iteration 42 on: 1 pipeline of 6 stages through east ("
    )
    assert "before 2 pipelines of 6 stages with" in mark.text
    assert mark.text.endswith(
        "Cause: a message between S4 and S5 holds its link for 200.0 ms instead of 40.0."
    )
    assert [cut["iteration"] for cut in run.cuts] == [41]
    assert message["predicted"]["since"] == 41
    assert run.predicted["iteration_ms"] == pytest.approx(1e3 * event["after_s"], abs=0.01)
    gone = run.ranks.filter(rank__in=event["left"])
    assert {(rank.state, rank.detail) for rank in gone} == {("finished", "The run continued without it.")}
    assert len(gone) == 6


def test_its_row_among_the_incidents_has_what_was_measured_before_and_since(run: Run) -> None:
    send(run, layout_changed(run))
    ends, t = {}, T0
    for iteration in range(30, 50):
        t += 1.9 if iteration < 41 else 9.0 if iteration == 41 else 1.1
        ends[iteration] = t
    IterationStat.objects.bulk_create(
        IterationStat(run=run, iteration=iteration, start=end - 1, end=end) for iteration, end in ends.items()
    )
    (row,) = incidents_of(run).rows
    assert (row.lost_s, row.again) == (3.5, 0)
    assert "with another layout from iteration 42, 1 pipeline of 6 stages" in row.went_on
    assert row.went_on.endswith("; measured 1,900 ms before and 1,100 ms since")
    assert services.record_recovery(run, from_dict({**RECOVERED, "iteration": 44, "t": T0 + 9}))
    later, before = incidents_of(run).rows
    assert "measured" not in later.went_on, "no new plan"
    assert before.went_on.endswith("1,100 ms since")


@pytest.mark.parametrize(
    "wrong",
    [
        {"left": [99]},
        {"iteration": 1000},
        {"times": [["F", 0, -20.0]]},
        {"times": [["F"]]},
        {"deviations": [{"what": "F", "at": [77], "planned_ms": 1, "measured_ms": 2}]},
    ],
)
def test_a_layout_that_cannot_be_of_the_run_is_refused(run: Run, wrong: dict[str, Any]) -> None:
    send(run, layout_changed(run, **wrong))
    run.refresh_from_db()
    assert not run.cuts


def test_another_placement_is_predicted_from_its_event() -> None:
    """Its pipelines go through different data centres; every rank has a lane."""
    spec = single_machine(placed(), run="test", log_dir="")
    placement = better_placement(spec, conditions((8, 1, 1)), than_s=9.0, steps=100)
    assert placement is not None
    layout = change(spec, placement.layout.applied(spec), "another layout is faster")["layout"]
    payload = measured_payload(
        layout.job, None, placement.layout.times, position_of_rank=layout.position_of_rank
    )
    assert [spans[0] for spans in payload["spans"]] == list(range(6))
    assert payload["iteration_ms"] == pytest.approx(1e3 * placement.iteration_s, rel=0.1)
