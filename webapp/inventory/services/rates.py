"""The rate of a link: measured by one node of each end when somebody asks, kept in the link's history."""

import secrets
from collections.abc import Iterable
from typing import Any

from django.db import transaction
from django.utils import timezone

from engine.cluster import tcp
from engine.errors import InputError
from engine.job.events.node import LinkRate, Rates
from webapp.accounts.permissions import require
from webapp.accounts.services import record
from webapp.inventory.dispatch import BrokerDown, Send, send_task
from webapp.inventory.models import Device, LinkTrial, Node, WanLink
from webapp.inventory.services.links import record_measurement

TASK = "workers.measure_link"
COUNTS = (1, 2, 4, 8, 16, 32)  # TCP connections; it ends where more give no more
SECONDS = 1.0  # of sending, with each
PATIENCE_S = 10.0
KEPT = 20  # trials per link
LEAST_GBPS = 0.001


@transaction.atomic
def measure_link(actor: Any, link: WanLink, *, send: Send | None = None) -> LinkTrial:
    """Have a node of each end of `link` measure its round trip and its rate by number of connections.

    Nodes without running ranks are taken first. Between emulated nodes the link is emulated with the figures
    in use; two other nodes must be on two machines.

    Raises
    ------
    PermissionDenied
        `actor` is no operator of the link's team.
    InputError
        An end has no node that is online, or both are on one machine, or a trial is still under way.
    """
    require(actor, link.a.team)
    last = link.trials.first()
    if last and last.is_waiting:
        raise InputError("link", str(link), "a measurement is running already; wait for its result")
    source, target = _pair(link)
    trial = LinkTrial.objects.create(
        trial=secrets.token_hex(16),
        link=link,
        source=source,
        target=target,
        asked_by=actor,
        emulated=_is_emulated(source, target),
    )
    record(actor, "measure", link, team=link.a.team, after={"from": source.name, "to": target.name})
    transaction.on_commit(lambda: _ask(trial, send))
    return trial


def _pair(link: WanLink) -> tuple[Node, Node]:
    ends = []
    for dc in (link.a, link.b):
        nodes = sorted(Node.objects.online().exclude(acl_sha256="").filter(dc=dc), key=_busyness)
        if not nodes:
            raise InputError("link", str(link), f"no agent of {dc} is online: both ends have to measure")
        ends.append(nodes)
    for source in ends[0]:
        for target in ends[1]:
            if _is_emulated(source, target) or source.host != target.host:
                return source, target
    allowed = "the nodes of both ends are on one machine, so there is no WAN to measure"
    raise InputError("link", str(link), allowed)


def _busyness(node: Node) -> tuple[int, str]:
    return len(node.seen_ranks), node.name


def _is_emulated(source: Node, target: Node) -> bool:
    return source.device == target.device == Device.EMULATED


def _ask(trial: LinkTrial, send: Send | None) -> None:
    link, target = trial.link, trial.target
    figures = {
        "latency_ms": link.latency_ms,
        "bandwidth_gbps": link.bandwidth_gbps,
        "window_bytes": tcp.WINDOW_BYTES,
    }
    common = {
        "trial": trial.trial,
        "secret": secrets.token_hex(16),
        "port": target.probe_port,
        "counts": list(COUNTS),
        "emulated": figures if trial.emulated else None,
        "seconds": SECONDS,
        "patience_s": PATIENCE_S,
    }
    peer = {"host": target.host, "port": target.probe_port}
    try:
        (send or send_task)(target.name, TASK, common)
        (send or send_task)(trial.source.name, TASK, common | {"peer": peer})
    except BrokerDown:
        LinkTrial.objects.filter(pk=trial.pk, at=None).update(
            at=timezone.now(), error="The broker does not answer, so the nodes were not asked."
        )


@transaction.atomic
def record_rates(name: str, event: Rates) -> bool:
    """Keep what node `name` measured; returns whether it was asked and had not answered yet.

    Each rate becomes a row of the link's history, the best one with the latency (half the round trip). No
    audit row: nobody decided anything.
    """
    rows = LinkTrial.objects.select_for_update(of=("self",)).select_related("link__a__team")
    trial = rows.filter(trial=event.trial, source__name=name, at=None).first()
    if trial is None:
        return False
    rates = _rates(event.rates)
    trial.at = timezone.now()
    if event.error or not rates or event.rtt_ms is None:
        trial.error = (event.error or "The node gave no reason.")[:300]
    else:
        trial.rates, trial.rtt_ms = rates, event.rtt_ms
        _into_history(trial)
    trial.save()
    newest = trial.link.trials.values_list("pk", flat=True)[:KEPT]
    trial.link.trials.exclude(pk__in=list(newest)).delete()
    return True


def _into_history(trial: LinkTrial) -> None:
    best = max(trial.rates, key=lambda rate: rate["gbps"])
    for rate in sorted(trial.rates, key=lambda rate: rate is best):
        record_measurement(
            trial.link,
            latency_ms=trial.rtt_ms / 2 if rate is best and trial.rtt_ms is not None else None,
            bandwidth_gbps=rate["gbps"],
            connections=rate["connections"],
            source="probe",
            actor=None,
        )


def _rates(readings: Iterable[LinkRate]) -> list[dict[str, Any]]:
    """The rates in an event; none where one cannot be true."""
    rates = [rate.model_dump() for rate in readings]
    sound = all(rate["gbps"] >= LEAST_GBPS and rate["connections"] in COUNTS for rate in rates)
    return rates if sound else []
