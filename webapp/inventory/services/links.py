"""What is known of links: figures declared and measured, and which of them are in use."""

from typing import Any

from django.db import transaction

from webapp.accounts.permissions import require
from webapp.accounts.services import record
from webapp.inventory.models import LinkMeasurement, WanLink

# The fields of a link that have a history, each with the field that says where its value is from.
MEASURED = {"latency_ms": "latency_from", "bandwidth_gbps": "bandwidth_from"}


@transaction.atomic
def record_measurement(
    link: WanLink,
    *,
    latency_ms: float | None,
    bandwidth_gbps: float | None,
    connections: int | None,
    source: str,
    actor: Any,
) -> LinkMeasurement:
    """Keep one row of the history of `link`; the values in use stay as they are.

    Parameters
    ----------
    latency_ms : one way; None: not measured.
    bandwidth_gbps : of one node pair and direction, over `connections` TCP connections; None: not measured.
    source : declared, probe or run (LinkSource).
    actor : who asked for it; None: Meridian itself.

    Raises
    ------
    PermissionDenied
        `actor` is no operator of the link's team.
    ValidationError
        A figure is out of range, or there is none.
    """
    require(actor, link.a.team)
    row = LinkMeasurement(
        link=link,
        latency_ms=latency_ms,
        bandwidth_gbps=bandwidth_gbps,
        connections=connections,
        source=source,
        actor=actor,
    )
    row.full_clean(exclude=["link", "actor"])
    row.save()
    return row


@transaction.atomic
def use_measurement(actor: Any, measurement: LinkMeasurement) -> WanLink:
    """Put the figures of `measurement` into use: plans made from now on reckon with them.

    A figure that it lacks stays as it is; so do the connections that the operator asked for.
    """
    link = (
        WanLink.objects.select_for_update(of=("self",))
        .select_related("a__team", "b")
        .get(pk=measurement.link_id)
    )
    require(actor, link.a.team)
    values = {name: getattr(measurement, name) for name in MEASURED if getattr(measurement, name) is not None}
    before = {name: getattr(link, name) for name in values}
    for name, value in values.items():
        setattr(link, name, value)
        setattr(link, MEASURED[name], measurement)
    link.full_clean()
    link.save()
    record(
        actor,
        "use-measurement",
        link,
        team=link.a.team,
        before=before,
        after=values,
        message=f"{measurement.get_source_display()} of {measurement.at:%Y-%m-%d %H:%M:%S} UTC",
    )
    return link
