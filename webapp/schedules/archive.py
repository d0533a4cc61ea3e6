"""Archiving and deleting comparisons of schedules, and sweeps."""

from webapp.accounts.archive_pages import ArchivePages
from webapp.computations.models import Computation, ComputationKind
from webapp.computations.services import delete_computations

COMPARING = (ComputationKind.SCHEDULES, ComputationKind.SWEEP)
pages = ArchivePages(
    kind="comparison",
    several="comparisons",
    address="schedules:schedule",
    remove=delete_computations,
    rows=lambda: Computation.objects.of(*COMPARING).select_related("team").defer("request", "answer"),
)
