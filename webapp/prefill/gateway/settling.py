"""Requests whose web process died before it wrote what came of them: closed by what coordinators delivered.

A prefill coordinator counts what it sends (engine.serve.delivered). What was delivered is charged, as if the
client had left at that moment. Where the coordinator is gone too, nobody can say what was delivered: nothing
is charged.
"""

import asyncio
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import timedelta

import structlog
from django.utils import timezone

from engine.control.errors import ChannelLost
from engine.prefill.messages import MOST_ACCOUNTED, Account, Accounted
from webapp.common.ages import older
from webapp.live.models import PrefillCoordinator
from webapp.prefill.gateway.admission import addresses_of
from webapp.prefill.gateway.connections import CoordinatorAddress
from webapp.prefill.models import OpenRequest, Outcome, Tenancy
from webapp.prefill.services import record_usage

log = structlog.get_logger(__name__)
# A web process that lives has written sooner what came of a request that no coordinator knows.
SETTLE_AFTER = timedelta(minutes=2)
# So long a coordinator that does not answer may come back, before what it had is taken for undelivered.
GIVE_UP_AFTER = timedelta(minutes=15)
ASK_S = 5.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Told:
    """What the coordinators of a tenancy say.

    by_request : {request: (data centre, what was delivered there)}, of those that one knows.
    silent : one of them did not answer.
    """

    by_request: dict[str, tuple[int, Accounted]]
    silent: bool


def settle_open_requests(*, after: timedelta = SETTLE_AFTER, give_up_after: timedelta = GIVE_UP_AFTER) -> int:
    """Close the open requests that arrived at least `after` ago and are not under way; returns how many."""
    by_tenancy: defaultdict[int, list[OpenRequest]] = defaultdict(list)
    old = OpenRequest.objects.filter(older("at", after))
    for row in old.select_related("tenancy", "key", "dc").order_by("at")[:MOST_ACCOUNTED]:
        by_tenancy[row.tenancy_id].append(row)
    return sum(_settle(rows, give_up_after) for rows in by_tenancy.values())


def _settle(rows: Sequence[OpenRequest], give_up_after: timedelta) -> int:
    tenancy = rows[0].tenancy
    accounts = asyncio.run(_ask(_coordinators(tenancy), [row.request_id for row in rows]))
    now = timezone.now()
    closed = 0
    for row in rows:
        dc, accounted = accounts.by_request.get(row.request_id, (row.dc_id, None))
        if accounted is None and accounts.silent and abs(now - row.at) < give_up_after:
            continue
        if accounted is None or accounted.fate != "open":
            _close(row, dc, accounted)
            closed += 1
    return closed


def _coordinators(tenancy: Tenancy) -> list[CoordinatorAddress]:
    rows = PrefillCoordinator.objects.existing()
    return addresses_of(rows, tenancy, {dc.pk: dc.name for dc in tenancy.datacenters})


def _close(row: OpenRequest, dc: int, accounted: Accounted | None) -> None:
    delivered = accounted is not None and accounted.is_delivered
    reason = "site_lost" if accounted is None or accounted.fate in ("done", "cancelled") else accounted.fate
    record_usage(
        row.tenancy,
        request_id=row.request_id,
        dc=next((place for place in row.tenancy.datacenters if place.pk == dc), row.dc),
        at=row.at,
        outcome=Outcome.DELIVERED if delivered else Outcome.ABORTED,
        prompt_tokens=accounted.prompt_tokens if accounted else 0,
        key=row.key,
        reason="" if delivered else reason,
        ttft_ms=(accounted.ttft_ms or 0.0) if accounted and delivered else None,
        in_batch=row.in_batch,
    )
    log.warning("a request outlived its web process", request=row.request_id, delivered=delivered)


async def _ask(coordinators: Iterable[CoordinatorAddress], requests: Sequence[str]) -> Told:
    """Ask all coordinators at once: which of them had a request is not written down."""
    queue = list(coordinators)
    answers = await asyncio.gather(*(_accounts(one, requests) for one in queue))
    by_request = {}
    for coordinator, accounts in zip(queue, answers, strict=True):
        for account in accounts or ():
            better = account.is_delivered or account.request not in by_request
            if account.fate != "unknown" and better:
                by_request[account.request] = (coordinator.dc, account)
    return Told(by_request=by_request, silent=any(accounts is None for accounts in answers))


async def _accounts(to: CoordinatorAddress, requests: Sequence[str]) -> list[Accounted] | None:
    """What a coordinator delivered of `requests`; None where it does not answer."""
    try:
        async with asyncio.timeout(ASK_S):
            channel = await to.call(ASK_S)
            try:
                await channel.send(Account(requests=tuple(requests)))
                accounts: list[Accounted] = []
                async for message in channel.messages():
                    if isinstance(message, Accounted):
                        accounts.append(message)
                    if len(accounts) == len(requests):
                        return accounts
            finally:
                channel.abort()
    except (OSError, ChannelLost) as error:
        log.warning("a prefill coordinator was not asked what it delivered", dc=to.dc_name, error=str(error))
    return None
