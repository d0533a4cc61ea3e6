"""Admission of a call: its key, the tokens of the quota, where it may run, and the record of what it cost."""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import datetime
from time import monotonic
from typing import Any, ParamSpec, TypeVar
from uuid import uuid4

import structlog
from django.db import connection
from django.db.models import Q
from django.utils import timezone

from engine.cluster.tcp import bandwidth
from engine.prefill.handover import DecodeReceiver, KvLink
from engine.prefill.messages import context_exceeded
from webapp.inventory.models import DataCenter, WanLink
from webapp.live.models import CoordinatorQuerySet, PrefillCoordinator
from webapp.prefill import quota
from webapp.prefill.answers import ApiError
from webapp.prefill.catalogue import context_tokens
from webapp.prefill.gateway.calls import CompletionCall
from webapp.prefill.gateway.connections import CoordinatorAddress
from webapp.prefill.models import ApiKey, Outcome, Tenancy
from webapp.prefill.quota import Drawn
from webapp.prefill.served import places_of
from webapp.prefill.services import open_request, record_usage

log: Any = structlog.get_logger(__name__)
DATACENTER = "kv_transfer_params.decode.datacenter"
NO_COORDINATOR_S = 30.0  # when to try again where no run takes prompts
P = ParamSpec("P")
R = TypeVar("R")


@dataclass(slots=True, kw_only=True)
class Admission:
    """A call that the tenancy's quota admits, and what is known of it outside its prompt.

    held_tokens : of the quota.  datacenters : {data centre: name} where it may run.
    links : to the decode GPU, from data centres other than its own.
    dc : where it was sent last.  in_batch : it has no objective, and waits behind others.
    """

    key: ApiKey
    call: CompletionCall
    datacenters: dict[int, str]
    coordinators: list[CoordinatorAddress]
    held_tokens: int
    drawn: Drawn
    in_batch: bool = False
    links: dict[int, KvLink] = field(default_factory=dict)
    dc: int | None = None
    id: str = field(default_factory=lambda: new_id())
    at: datetime = field(default_factory=timezone.now)
    began_s: float = field(default_factory=monotonic)

    @property
    def tenancy(self) -> Tenancy:
        return self.key.tenancy

    @property
    def datacenter(self) -> str:
        """The name of where it was sent last; empty: nowhere."""
        return "" if self.dc is None else self.datacenters[self.dc]

    @property
    def limit(self) -> int:
        return self.tenancy.tokens_per_min or 1

    @property
    def elapsed_ms(self) -> float:
        return (monotonic() - self.began_s) * 1e3

    def refusal(self, status: int, code: str, message: str, **more: Any) -> ApiError:
        return ApiError(status, code, message, drawn=self.drawn, request=self.id, **more)


def new_id() -> str:
    """The id of a request, in its answer and in the usage."""
    return f"req_{uuid4().hex}"


async def in_thread(act: Callable[P, R], *args: P.args, **kwargs: P.kwargs) -> R:
    """Do what waits for the database or Valkey in one of the loop's threads, which outlive requests: Django's
    own way makes one for each. The connection goes back to the pool: a stream of minutes must not hold it."""

    def work() -> R:
        try:
            return act(*args, **kwargs)
        finally:
            connection.close()

    return await asyncio.to_thread(work)


def admit(key: ApiKey, call: CompletionCall, *, in_batch: bool = False) -> Admission:
    """Find where a call may run, take its tokens from the tenancy's quota, and open its record.

    From then on the call is accounted for: whoever admits it writes what came of it, and upkeep does where
    this process dies first.

    Raises
    ------
    ApiError
        The model is not the tenancy's, or too many tokens are used already.
    RedisError
        The broker does not answer.
    """
    tenancy = key.tenancy
    datacenters = {dc.pk: dc.name for dc in places_of(tenancy, call.model)}
    if isinstance(call.fields.get("prompt"), tuple) and call.most_tokens > (tenancy.longest_prompt or 0):
        context, most = context_tokens(tenancy.model), call.fields["max_tokens"]
        if call.most_tokens + most > context:
            text = context_exceeded(context, call.most_tokens, most)
            raise ApiError(400, "context_length_exceeded", text, param="prompt")
        text = f"{call.most_tokens:,} tokens, but the tenancy allows at most {tenancy.longest_prompt:,}."
        raise ApiError(413, "prompt_too_long", text, param="prompt")
    tokens = min(call.most_tokens, tenancy.longest_prompt or 0)  # the coordinator refuses what is longer
    links = links_to_decode(tenancy, call, datacenters)
    allowance = quota.take(tenancy.pk, tokens, tenancy.tokens_per_min or 1)
    if not allowance.ok:
        remaining = f"{allowance.remaining:,} of {allowance.limit:,} tokens per minute are left"
        text = f"{remaining}; this request may need {tokens:,}."
        raise ApiError(429, "rate_limit_exceeded", text, retry_after_s=allowance.wait_s, drawn=allowance)
    coordinators = [one for one in coordinators_of(tenancy, datacenters) if links is None or one.dc in links]
    admission = Admission(
        key=key,
        call=call,
        datacenters=datacenters,
        coordinators=coordinators,
        held_tokens=tokens,
        drawn=allowance,
        in_batch=in_batch,
        links={dc: link for dc, link in (links or {}).items() if link is not None},
    )
    if coordinators:  # else nothing can be delivered
        where = next(dc for dc in tenancy.datacenters if dc.pk == min(datacenters))
        open_request(key, request_id=admission.id, dc=where, at=admission.at, in_batch=in_batch)
    return admission


def links_to_decode(
    tenancy: Tenancy, call: CompletionCall, datacenters: dict[int, str]
) -> dict[int, KvLink | None] | None:
    """{data centre: the link from there to the one of the decode GPU, None where it is that one itself}.

    Those without a link are left out. None: the call names no data centre of its receiver.

    Raises ApiError where there is no such data centre.
    """
    decode: DecodeReceiver | None = call.fields.get("decode")
    if decode is None or decode.datacenter is None:
        return None
    there = DataCenter.objects.filter(team=tenancy.team_id, name=decode.datacenter).first()
    if there is None:
        raise ApiError(400, "invalid_value", "There is no such data centre.", param=DATACENTER)
    rows = WanLink.objects.filter(Q(a=there, b__in=datacenters) | Q(b=there, a__in=datacenters))
    links: dict[int, KvLink | None] = {
        row.b_id if row.a_id == there.pk else row.a_id: KvLink(
            latency_ms=row.latency_ms,
            # A stage sends over one connection.
            bytes_per_s=bandwidth(row.latency_ms / 1e3, row.bandwidth_gbps * 1e9 / 8, connections=1),
        )
        for row in rows
    }
    return links | ({there.pk: None} if there.pk in datacenters else {})


def coordinators_of(tenancy: Tenancy, datacenters: dict[int, str]) -> list[CoordinatorAddress]:
    """Open prefill coordinators of the tenancy's model in `datacenters`, of runs of the team that sells."""
    return addresses_of(PrefillCoordinator.objects.usable(), tenancy, datacenters)


def addresses_of(
    coordinators: CoordinatorQuerySet, tenancy: Tenancy, datacenters: dict[int, str]
) -> list[CoordinatorAddress]:
    """Those of `coordinators` that could be sent a request of the tenancy in `datacenters`."""
    rows = coordinators.filter(model=tenancy.model, dc__in=datacenters, run__job__team=tenancy.team_id)
    rows = rows.select_related("run").only(
        "dc", "model", "host", "port", "rank", "run__generation", "run__secret"
    )
    return [_address(row, datacenters[row.dc_id]) for row in rows.order_by("pk")]


def _address(coordinator: PrefillCoordinator, dc: str) -> CoordinatorAddress:
    run = coordinator.run
    return CoordinatorAddress(
        coordinator=coordinator.pk,
        run=str(run.pk),
        generation=run.generation,
        secret=run.secret,
        dc=coordinator.dc_id,
        dc_name=dc,
        model=coordinator.model,
        host=coordinator.host,
        port=coordinator.port,
        rank=coordinator.rank,
    )


def settle(admission: Admission, tokens: int) -> None:
    """Hold `tokens` of the quota from now on, and give the rest back. Without the broker all stay held."""
    try:
        surplus = admission.held_tokens - tokens
        admission.drawn = quota.give_back(admission.tenancy.pk, surplus, admission.limit)
        admission.held_tokens = tokens
    except Exception as error:
        log.warning("tokens not given back", request=admission.id, error=type(error).__name__)


def write_usage(
    admission: Admission, *, outcome: Outcome, reason: str, tokens: int, ttft_ms: float | None
) -> None:
    """Write what came of a request, once. Raises DatabaseError."""
    rows = {dc.pk: dc for dc in admission.tenancy.datacenters}
    record_usage(
        admission.tenancy,
        request_id=admission.id,
        dc=rows[admission.dc or min(admission.datacenters)],
        at=admission.at,
        outcome=outcome,
        prompt_tokens=tokens,
        key=admission.key,
        reason=reason[:40],
        ttft_ms=ttft_ms,
        in_batch=admission.in_batch,
    )
