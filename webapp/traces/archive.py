"""Archiving and deleting traces."""

from webapp.accounts.archive_pages import ArchivePages
from webapp.common.parts import Part
from webapp.traces.models import TraceFile, TraceWhatIf
from webapp.traces.selectors import traces
from webapp.traces.services import delete_traces

KIND = "trace"
pages = ArchivePages(
    kind=KIND,
    several="traces",
    address="traces:trace",
    remove=delete_traces,
    rows=lambda: traces().select_related("team").defer("request", "answer"),
)
PARTS = (
    Part(
        of=KIND,
        order=10,
        one="uploaded file",
        several="uploaded files",
        rows=lambda things: TraceFile.objects.filter(trace__in=[thing.pk for thing in things]),
    ),
    Part(
        of=KIND,
        order=20,
        one="what-if request",
        several="what-if requests",
        rows=lambda things: TraceWhatIf.objects.filter(trace__in=[thing.pk for thing in things]),
    ),
)
