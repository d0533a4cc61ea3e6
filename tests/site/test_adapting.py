"""Runs that re-plan: what the page says of it once, and what it predicts from then on."""

from typing import Any

import pytest

from engine.job.events.event import from_dict
from tests.events import T0
from tests.site.telemetry import ADAPTED, adapted, take_in
from tests.site.test_reconcile import Nodes, nodes, running  # noqa: F401  (a fixture)
from webapp.jobs import services
from webapp.jobs.models import MarkLevel, PastPrediction, Run, RunEvent
from webapp.jobs.prediction import predicted_payload
from webapp.jobs.services import forget_old_predictions
from webapp.live.selectors import predicted, snapshot, spans_between

CAUSE = (
    "a message between S2 and S3 holds its link for 80.0 ms instead of 40.0, "
    "forward on S6 takes 26.1 ms instead of 20.0."
)

OF_ANOTHER_JOB = "microbatches 1, chunks 1, traversal straight, sharing spatial, gate none\nP0 S0: F0 B0"


@pytest.fixture
def run(world: Any, nodes: Nodes) -> Run:  # noqa: F811
    made = running(world, nodes)
    Run.objects.filter(pk=made.pk).update(steps=100)
    return made


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
    told = predicted(run, (50, 50))
    assert [row["since"] for row in told["predicted_before"]] == [0, 41]
    assert ["spans" in row for row in told["predicted_before"]] == [False, True]
    rows = [*told["predicted_before"], told["predicted"]]
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
    assert forget_old_predictions(keep=18, held={}) == 1
    assert [bool(past.spans) for past in PastPrediction.objects.filter(run=run)] == [False, True]
    assert forget_old_predictions(keep=18, held={}) == 0


@pytest.mark.parametrize(
    ("shown", "stay"), [((0, 0), True), ((40, 41), True), ((42, 50), False), ((60, 60), False)]
)
def test_predictions_that_a_kept_range_shows_keep_their_spans(
    run: Run, shown: tuple[int, int], stay: bool
) -> None:
    """The first held for iterations 0 to 41, as the run re-planned for iteration 42."""
    send(run, adapted(run))
    Run.objects.filter(pk=run.pk).update(iteration=999)
    forget_old_predictions(keep=18, held={run.pk: [shown]})
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
