"""How runs are found: by the name of their job, the number of the attempt, labels and note."""

from django.db.models import Q
from django.urls import reverse

from webapp.common.archived import dated
from webapp.common.described import labelled
from webapp.common.queries import whole
from webapp.common.search import Rows, of_which
from webapp.jobs.models import Job, Run

MOST_ATTEMPTS = 2**31 - 1  # that the column can hold


def _runs_with(word: str) -> Q:
    named = of_which("job", word, Job, "name") | of_which("pk", word, Run, "labels", "note")
    attempt = whole(word, MOST_ATTEMPTS)
    return named if attempt is None else named | Q(generation=attempt)


KINDS = (
    Rows(
        order=40,
        name="run",
        label="Runs",
        rows=lambda user: Run.objects.visible_to(user).for_lists(),
        matches=_runs_with,
        named="job__name",
        hit=lambda run: (
            str(run),
            reverse("jobs:run-detail", args=[run.pk]),
            f"{run.state.label}, launched {dated(run)}{labelled(run)}",
        ),
    ),
)
