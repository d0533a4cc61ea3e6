"""Archiving and deleting placements."""

from webapp.accounts.archive_pages import ArchivePages
from webapp.computations.services import delete_computations
from webapp.placement.selectors import placements

pages = ArchivePages(
    kind="placement",
    several="placements",
    address="placement:placement",
    remove=delete_computations,
    rows=lambda: placements().select_related("team").defer("request", "answer"),
    stays=lambda things: ["Runs launched from a placement stay, on the GPUs that they had."],
)
