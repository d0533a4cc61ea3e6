"""How runs are found: by the name of their job, the number of the attempt, labels and note."""

from typing import Any

from django.db.models import Q
from django.urls import reverse

from webapp.common.archived import dated
from webapp.common.described import labelled
from webapp.common.queries import whole
from webapp.common.search import Rows, of_which
from webapp.jobs.models import Job, Run

MOST_ATTEMPTS = 2**31 - 1  # that the column can hold


def _runs(user: Any) -> Any:
    return Run.objects.visible_to(user).for_lists()


def _runs_with(word: str) -> Q:
    named = of_which("job", word, Job, "name") | of_which("pk", word, Run, "labels", "note")
    attempt = whole(word, MOST_ATTEMPTS)
    return named if attempt is None else named | Q(generation=attempt)


def _run(run: Run) -> tuple[str, str, str]:
    detail = f"{run.state.label}, launched {dated(run)}{labelled(run)}"
    return str(run), reverse("jobs:run-detail", args=[run.pk]), detail


KINDS = (
    Rows(
        order=40,
        name="run",
        label="Runs",
        rows=_runs,
        matches=_runs_with,
        named="job__name",
        hit=_run,
    ),
)
