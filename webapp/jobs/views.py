"""The list of runs."""

from django.http import HttpRequest, HttpResponse
from django.urls import reverse

from webapp.common.lists import list_page
from webapp.jobs import archive
from webapp.jobs.filters import RunFilterSet
from webapp.jobs.models import Run
from webapp.jobs.tables import RunTable


def run_list(request: HttpRequest) -> HttpResponse:
    return list_page(
        request,
        title="Runs",
        rows=Run.objects.visible_to(request.user).for_lists().with_models(),
        filter_class=RunFilterSet,
        table_class=RunTable,
        create=("jobs:swap-launch", "New swap run"),
        bulk=archive.pages.bulk(request),
        compare="jobs:run-compare",
        actions=[
            (reverse("jobs:run-queue"), "Queue"),
            (reverse("jobs:run-compare"), "Compare runs"),
        ],
        empty="No runs yet. Open a plan and launch an option, or launch workers that swap.",
    )
