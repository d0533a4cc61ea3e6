"""Traces: uploaded, asked about, deleted."""

from collections.abc import Sequence
from functools import partial
from typing import Any

from django.conf import settings
from django.core.exceptions import ValidationError
from django.core.files.uploadedfile import UploadedFile
from django.db import transaction
from django.db.models import QuerySet, Sum

from webapp.accounts.models import Team
from webapp.common.markup import as_bytes
from webapp.computations import services as computations
from webapp.computations.models import Computation, ComputationKind
from webapp.traces.models import Trace, TraceFile, TracePart, TraceWhatIf

PART_BYTES = 1 << 20  # of a file that are in memory at a time


def upload_trace(
    actor: Any, *, team: Team, name: str, files: Sequence[UploadedFile], key: str = ""
) -> Computation:
    """Keep the files of a trace, and send it to the search worker once they are committed.

    Parameters
    ----------
    key : idempotency key: what `actor` has uploaded with the same key before is returned.

    Raises
    ------
    PermissionDenied
        `actor` is no operator of `team`.
    ValidationError
        The team's traces would be larger than it may keep, or the name is too long.
    """
    with transaction.atomic():
        computation = computations.start(
            actor,
            team=team,
            kind=ComputationKind.TRACE,
            name=name,
            request={"files": [str(file.name) for file in files]},
            key=key,
        )
        keep_files(computation, files)
    return computation


def keep_files(computation: Computation, files: Sequence[UploadedFile]) -> None:
    """Keep the files that a computation reads, in the transaction that starts it; files that it has stay.

    Raises ValidationError where its team's traces would be larger than it may keep.
    """
    size = sum(file.size or 0 for file in files)
    # Of two uploads at once the second counts the first.
    team = Team.objects.select_for_update(no_key=True).get(pk=computation.team_id)
    if Trace.objects.filter(pk=computation.pk).exists():
        return
    _require_room(team, size)
    trace = Trace.objects.create(computation=computation, bytes=size)
    for number, file in enumerate(files):
        _keep(trace, number, file)


def _require_room(team: Team, size: int) -> None:
    used = Trace.objects.filter(computation__team=team).aggregate(all=Sum("bytes"))["all"] or 0
    if used + size > settings.TRACES_OF_TEAM_BYTES:
        raise ValidationError(
            {
                "trace": f"The traces of team {team} take {as_bytes(used)}, and with this one "
                f"{as_bytes(used + size)}. At most {as_bytes(settings.TRACES_OF_TEAM_BYTES)} are kept: "
                "delete traces that nobody needs."
            }
        )


def _keep(trace: Trace, number: int, file: UploadedFile) -> None:
    file_row = TraceFile.objects.create(trace=trace, number=number, name=str(file.name), bytes=file.size or 0)
    file.seek(0)
    for part, content in enumerate(iter(partial(file.read, PART_BYTES), b"")):
        TracePart.objects.create(file=file_row, number=part, content=content)


def ask_what_if(actor: Any, trace: Trace, questions: Sequence[str], *, key: str = "") -> Computation:
    """Have the search worker answer questions about a trace, of the forms that `engine.analyze` names.

    Raises PermissionDenied where `actor` is no operator of its team.
    """
    of = trace.computation
    with transaction.atomic():
        computation = computations.start(
            actor,
            team=of.team,
            kind=ComputationKind.WHAT_IF,
            name=f"{of.name[:60]}: what-ifs",
            request={"questions": list(questions)},
            key=key,
        )
        TraceWhatIf.objects.get_or_create(computation=computation, defaults={"trace": trace})
    return computation


def note_figures(computation: Computation, analysis: dict[str, Any]) -> None:
    """Keep of an analysis what lists show."""
    Trace.objects.filter(pk=computation.pk).update(
        format=analysis["format"], workers=analysis["workers"], steps=analysis["steps"]
    )


@transaction.atomic
def delete_traces(actor: Any, rows: QuerySet[Computation]) -> int:
    """Delete traces with their files and what was asked about them; returns how many.

    Raises PermissionDenied where `actor` is no operator of one of their teams.
    """
    answers = Computation.objects.filter(of_trace__trace__in=rows.values("pk"))
    computations.delete_computations(actor, answers)
    return computations.delete_computations(actor, rows)
