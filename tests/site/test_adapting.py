"""Runs that plan anew: what the page says of it, and that it says it once."""

from typing import Any

import pytest

from tests.site.telemetry import ADAPTED
from tests.site.test_reconcile import Nodes, nodes, running  # noqa: F401  (a fixture)
from webapp.jobs import services
from webapp.jobs.models import MarkLevel, RunEvent
from webapp.live.services.intake import take_in

CAUSE = (
    "a message between S2 and S3 holds its link for 80.0 ms instead of 40.0, "
    "forward on S6 takes 26.1 ms instead of 20.0."
)
STAYS = " The predicted timeline stays that of the plan at launch."


def test_a_new_plan_is_a_mark_that_says_why_and_comes_once(world: Any, nodes: Nodes) -> None:  # noqa: F811
    run = running(world, nodes)
    assert services.record_adapted(run, ADAPTED)
    assert not services.record_adapted(run, ADAPTED), "at least once"
    (mark,) = RunEvent.objects.filter(run=run, text__contains="anew")
    assert mark.level == MarkLevel.WARN
    assert mark.text == (
        f"Planned anew with varuna from iteration 42 on: {CAUSE} "
        f"An iteration should now take 1,286 ms instead of 1,484 ms.{STAYS}"
    )


def test_a_plan_that_stays_says_so(world: Any, nodes: Nodes) -> None:  # noqa: F811
    run = running(world, nodes)
    services.record_adapted(run, {**ADAPTED, "replanned": False, "after_s": 1.4837})
    (mark,) = RunEvent.objects.filter(run=run, text__contains="stays,")
    assert mark.text == (
        f"The plan stays, varuna has no better one: {CAUSE} "
        f"An iteration should now take 1,484 ms; 1,103 ms were planned.{STAYS}"
    )


@pytest.mark.parametrize(
    "broken", [{"deviations": [{"what": "X", "at": [0]}]}, {"t": "soon"}, {"before_s": None}]
)
def test_what_cannot_be_read_is_refused_and_the_rest_taken(
    broken: dict[str, Any],
    world: Any,
    nodes: Nodes,  # noqa: F811
) -> None:
    run = running(world, nodes)
    node = run.ranks.get(rank=0).node.name
    base = {"run": str(run.pk), "generation": run.generation}
    take_in(
        [
            (node, "1790000000000-0", {**ADAPTED, **base, **broken}),
            (node, "1790000000000-1", {**ADAPTED, **base}),
        ],
        set(),
    )
    assert RunEvent.objects.filter(run=run, text__contains="anew").count() == 1
