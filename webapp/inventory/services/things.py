"""Data centres, GPU pools, nodes and links: created, changed and deleted."""

from typing import Any, TypeVar

from django.db import models, transaction
from django.db.models import ProtectedError

from webapp.accounts.models import Team
from webapp.accounts.permissions import require
from webapp.accounts.services import record
from webapp.inventory.models import DataCenter, GpuPool, LinkSource, Node, Thing, WanLink
from webapp.inventory.services.blocked import blocked_by
from webapp.inventory.services.broker import drop_broker_user
from webapp.inventory.services.links import MEASURED, record_measurement

T = TypeVar("T", bound=Thing)


class Blocked(Exception):
    """A deletion that would take history with it; the message names what stands against it."""


def team_of(thing: Thing) -> Team:
    """The team that owns `thing`."""
    if isinstance(thing, DataCenter):
        return thing.team
    return thing.a.team if isinstance(thing, WanLink) else thing.dc.team


@transaction.atomic
def create_datacenter(actor: Any, dc: DataCenter, pool: GpuPool | None = None) -> DataCenter:
    """Create a data centre and its first GPU pool. Raises as `save` does; nothing is kept then."""
    save(actor, dc)
    if pool is not None:
        pool.dc = dc
        save(actor, pool)
    return dc


@transaction.atomic
def save(actor: Any, thing: T) -> T:
    """Create or change a data centre, pool, node or link.

    Raises
    ------
    PermissionDenied
        `actor` is no operator of its team.
    ValidationError
        A field or constraint is broken.
    """
    if isinstance(thing, Node):
        thing.dc = thing.pool.dc
    require(actor, team_of(thing))
    if isinstance(thing, WanLink) and thing.a_id > thing.b_id:
        thing.a, thing.b = thing.b, thing.a  # one pair, one row: the lower id first
    thing.full_clean()
    old = None if thing._state.adding else _values(type(thing)._default_manager.get(pk=thing.pk))
    new = _values(thing)
    thing.save()
    changed = [name for name in new if old is None or new[name] != old.get(name)]
    if isinstance(thing, WanLink):
        _declare(thing, changed, actor)
    if old is None:
        record(actor, "create", thing, team=team_of(thing), after=new)
    elif changed:
        record(
            actor,
            "change",
            thing,
            team=team_of(thing),
            before={name: old[name] for name in changed},
            after={name: new[name] for name in changed},
        )
    return thing


@transaction.atomic
def delete(actor: Any, thing: Thing) -> None:
    """Delete a data centre (with its empty pools), pool, node or link that nothing refers to.

    Raises
    ------
    Blocked
        Runs, nodes or links refer to it; the message says which.
    """
    require(actor, team_of(thing))
    reason = blocked_by(thing)
    if reason:
        raise Blocked(reason)
    record(actor, "delete", thing, team=team_of(thing), before=_values(thing))
    if isinstance(thing, Node):
        drop_broker_user(thing)
    try:
        thing.delete()
    except ProtectedError as error:
        names = ", ".join(sorted(str(other) for other in error.protected_objects))
        raise Blocked(f"{thing} is still used by {names}.") from None


def _declare(link: WanLink, changed: list[str], actor: Any) -> None:
    """Begin, or go on with, the history of `link`: somebody has typed in its fields `changed`."""
    typed = {name: getattr(link, name) if name in changed else None for name in MEASURED}
    if not any(name in changed for name in MEASURED):
        return
    row = record_measurement(
        link, connections=link.connections, source=LinkSource.DECLARED, actor=actor, **typed
    )
    for name, value in typed.items():
        if value is not None:
            setattr(link, MEASURED[name], row)
    link.save(update_fields=list(MEASURED.values()))


def _values(thing: models.Model) -> dict[str, Any]:
    """The editable fields of `thing` as JSON values, for the audit row; other things by their names."""
    fields = [field for field in thing._meta.concrete_fields if field.editable and not field.primary_key]
    return {field.name: _plain(getattr(thing, field.name)) for field in fields}


def _plain(value: Any) -> Any:
    return value if value is None or isinstance(value, int | float | str) else str(value)
