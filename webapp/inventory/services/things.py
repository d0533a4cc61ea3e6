"""Data centres, nodes and links: created, changed and deleted."""

from typing import Any

from django.db import models, transaction
from django.db.models import ProtectedError

from webapp.accounts.models import Team
from webapp.accounts.permissions import require
from webapp.accounts.services import record
from webapp.inventory.models import DataCenter, Node, WanLink
from webapp.inventory.services.broker import drop_broker_user


class Blocked(Exception):
    """A deletion that would take history with it; the message names what stands against it."""


def team_of(thing: DataCenter | Node | WanLink) -> Team:
    """The team that owns `thing`."""
    if isinstance(thing, DataCenter):
        return thing.team
    return thing.dc.team if isinstance(thing, Node) else thing.a.team


@transaction.atomic
def save(actor: Any, thing: DataCenter | Node | WanLink) -> DataCenter | Node | WanLink:
    """Create or change a data centre, node or link.

    Raises
    ------
    PermissionDenied
        `actor` is no operator of its team.
    ValidationError
        A field or constraint is broken.
    """
    require(actor, team_of(thing))
    if isinstance(thing, WanLink) and thing.a_id > thing.b_id:
        thing.a, thing.b = thing.b, thing.a  # one pair, one row: the lower id first
    thing.full_clean()
    old = None if thing._state.adding else _values(type(thing)._default_manager.get(pk=thing.pk))
    new = _values(thing)
    thing.save()
    if old is None:
        record(actor, "create", thing, team=team_of(thing), after=new)
    else:
        changed = [name for name in new if new[name] != old.get(name)]
        record(
            actor, "change", thing, team=team_of(thing),
            before={name: old[name] for name in changed}, after={name: new[name] for name in changed},
        )  # fmt: skip
    return thing


@transaction.atomic
def delete(actor: Any, thing: DataCenter | Node | WanLink) -> None:
    """Delete a data centre, node or link that nothing refers to.

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


def blocked_by(thing: DataCenter | Node | WanLink) -> str:
    """Why `thing` cannot be deleted, as a sentence; empty where it can."""
    from webapp.jobs.models import Run  # jobs know the inventory, not the other way round

    if isinstance(thing, WanLink):
        return ""
    ranks = {"ranks__dc": thing} if isinstance(thing, DataCenter) else {"ranks__node": thing}
    runs = Run.objects.filter(**ranks).distinct().select_related("job")
    parts = [_some("run", "runs", [str(run) for run in runs[:4]], runs.count())]
    if isinstance(thing, DataCenter):
        nodes = thing.nodes.all()
        links = WanLink.objects.filter(models.Q(a=thing) | models.Q(b=thing)).select_related("a", "b")
        parts.append(_some("node", "nodes", [node.name for node in nodes[:4]], len(nodes)))
        parts.append(_some("link", "links", [str(link) for link in links[:4]], len(links)))
    used = ", ".join(part for part in parts if part)
    return f"{thing} cannot be deleted: {used} would lose it." if used else ""


def _values(thing: models.Model) -> dict[str, Any]:
    """The editable fields of `thing` as JSON values, for the audit row."""
    fields = [field for field in thing._meta.concrete_fields if field.editable and not field.primary_key]
    return {field.name: _plain(field.value_from_object(thing)) for field in fields}


def _plain(value: Any) -> Any:
    return value if value is None or isinstance(value, int | float | str) else str(value)


def _some(one: str, many: str, names: list[str], total: int) -> str:
    if not total:
        return ""
    more = f" and {total - len(names)} more" if total > len(names) else ""
    return f"{one if total == 1 else many} {', '.join(names)}{more}"
