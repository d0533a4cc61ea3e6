"""Archiving and deleting replays."""

from webapp.accounts.archive_pages import ArchivePages
from webapp.common.parts import Part
from webapp.computations.services import delete_computations
from webapp.prefill.replays.sources import replays
from webapp.traces.models import TraceFile

KIND = "replay"
pages = ArchivePages(
    kind=KIND,
    several="replays",
    address="prefill:replay",
    remove=delete_computations,
    rows=lambda: replays().select_related("team").defer("request", "answer"),
)
PARTS = (
    Part(
        of=KIND,
        order=10,
        one="uploaded trace",
        several="uploaded traces",
        rows=lambda things: TraceFile.objects.filter(trace__in=[thing.pk for thing in things]),
    ),
)
