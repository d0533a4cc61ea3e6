"""Labels and notes that a team writes on its things."""

from typing import Any

from django.core.exceptions import ValidationError
from django.db import transaction

from webapp.accounts.permissions import require
from webapp.accounts.services.audit import record
from webapp.common.described import LONGEST_NOTE, parsed_labels


@transaction.atomic
def describe(actor: Any, thing: Any, *, labels: str, note: str) -> bool:
    """Give `thing` these labels and this note instead of those that it has; whether that changes it.

    Parameters
    ----------
    thing : a row with both (webapp.common.described).

    Raises
    ------
    PermissionDenied
        `actor` is no operator of its team.
    ValidationError
        The labels are none, or the note is too long.
    """
    require(actor, thing.team)
    after = {"labels": parsed_labels(labels), "note": note}
    if len(note) > LONGEST_NOTE:
        raise ValidationError({"note": f"A note has at most {LONGEST_NOTE:,} characters."})
    row = type(thing)._default_manager.select_for_update(of=("self",)).get(pk=thing.pk)
    before = {name: getattr(row, name) for name in after}
    if before == after:
        return False
    row.labels, row.note = after["labels"], after["note"]
    row.save(update_fields=[*after])
    record(actor, "describe", row, team=thing.team, before=before, after=after)
    return True
