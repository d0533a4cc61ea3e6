"""Replays of request traces: started; a replay is ended and deleted as any computation is."""

from collections.abc import Sequence
from typing import Any

from django.core.files.uploadedfile import UploadedFile
from django.db import transaction

from webapp.accounts.models import Team
from webapp.computations import services as computations
from webapp.computations.models import Computation, ComputationKind
from webapp.traces.services import keep_files


def start_replay(
    actor: Any,
    *,
    team: Team,
    name: str,
    request: dict[str, Any],
    files: Sequence[UploadedFile] = (),
    key: str = "",
) -> Computation:
    """Send a replay to the search worker, once it is committed with the trace that was uploaded for it.

    Parameters
    ----------
    request : `ReplayForm.question`.
    key : idempotency key: what `actor` has started with the same key before is returned.

    Raises
    ------
    PermissionDenied
        `actor` is no operator of `team`.
    ValidationError
        The team's traces would be larger than it may keep, or the name is too long.
    """
    with transaction.atomic():
        computation = computations.start(
            actor, team=team, kind=ComputationKind.REPLAY, name=name, request=request, key=key
        )
        if files:
            keep_files(computation, files)
    return computation
