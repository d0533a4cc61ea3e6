"""What the database and Valkey know of a request: who asks, what is left, where it may go, what it cost."""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import datetime
from time import monotonic
from typing import Any, ParamSpec, TypeVar
from uuid import uuid4

import structlog
from django.db import connection
from django.utils import timezone

from engine.prefill.messages import context_exceeded
from webapp.live.models import PrefillCoordinator
from webapp.prefill import quota
from webapp.prefill.answers import ApiError
from webapp.prefill.catalogue import context_tokens
from webapp.prefill.gateway.asked import Asked
from webapp.prefill.gateway.lines import CoordinatorAddress
from webapp.prefill.models import ApiKey, Outcome, Tenancy
from webapp.prefill.quota import Drawn
from webapp.prefill.served import places_of
from webapp.prefill.services import record_usage

log: Any = structlog.get_logger(__name__)
NO_COORDINATOR_S = 30.0  # when to try again where no run takes prompts
P = ParamSpec("P")
R = TypeVar("R")


@dataclass(slots=True, kw_only=True)
class Sale:
    """One request of a tenancy on its way.

    taken : tokens of its quota that it holds.  places : {data centre: name} where it may run.
    dc : where it was handed in last.  in_batch : it has no objective, and waits behind others.
    """

    key: ApiKey
    asked: Asked
    places: dict[int, str]
    coordinators: list[CoordinatorAddress]
    taken: int
    drawn: Drawn
    in_batch: bool = False
    dc: int | None = None
    id: str = field(default_factory=lambda: new_id())
    at: datetime = field(default_factory=timezone.now)
    began_s: float = field(default_factory=monotonic)

    @property
    def tenancy(self) -> Tenancy:
        return self.key.tenancy

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


def admit(key: ApiKey, asked: Asked, *, in_batch: bool = False) -> Sale:
    """Where a request may run; takes its tokens from the tenancy's quota.

    Raises
    ------
    ApiError
        The model is not the tenancy's, or too many tokens are used already.
    RedisError
        The broker does not answer.
    """
    tenancy = key.tenancy
    places = {dc.pk: dc.name for dc in places_of(tenancy, asked.model)}
    if isinstance(asked.what.get("prompt"), tuple) and asked.most_tokens > (tenancy.longest_prompt or 0):
        context, most = context_tokens(tenancy.model), asked.what["max_tokens"]
        if asked.most_tokens + most > context:
            text = context_exceeded(context, asked.most_tokens, most)
            raise ApiError(400, "context_length_exceeded", text, param="prompt")
        text = f"{asked.most_tokens:,} tokens, but the tenancy allows at most {tenancy.longest_prompt:,}."
        raise ApiError(413, "prompt_too_long", text, param="prompt")
    tokens = min(asked.most_tokens, tenancy.longest_prompt or 0)  # the coordinator refuses what is longer
    drawn = quota.take(tenancy.pk, tokens, tenancy.tokens_per_min or 1)
    if not drawn.ok:
        left = f"{drawn.remaining:,} of {drawn.limit:,} tokens per minute are left"
        text = f"{left}; this request may need {tokens:,}."
        raise ApiError(429, "rate_limit_exceeded", text, retry_after_s=drawn.wait_s, drawn=drawn)
    coordinators = coordinators_of(tenancy, places)
    return Sale(
        key=key,
        asked=asked,
        places=places,
        coordinators=coordinators,
        taken=tokens,
        drawn=drawn,
        in_batch=in_batch,
    )


def coordinators_of(tenancy: Tenancy, places: dict[int, str]) -> list[CoordinatorAddress]:
    """The open prefill coordinators of the tenancy's model in `places`, of runs of the team that sells."""
    rows = PrefillCoordinator.objects.usable().filter(
        model=tenancy.model, dc__in=places, run__job__team=tenancy.team_id
    )
    rows = rows.select_related("run").only(
        "dc", "model", "host", "port", "rank", "run__generation", "run__secret"
    )
    return [_address(row, places[row.dc_id]) for row in rows.order_by("pk")]


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


def settle(sale: Sale, tokens: int) -> None:
    """Of the tokens that were taken, keep `tokens`. Without the broker those taken stay taken."""
    try:
        sale.drawn = quota.give_back(sale.tenancy.pk, sale.taken - tokens, sale.limit)
        sale.taken = tokens
    except Exception as error:
        log.warning("tokens not given back", request=sale.id, error=type(error).__name__)


def write_usage(sale: Sale, *, outcome: Outcome, reason: str, tokens: int, ttft_ms: float | None) -> None:
    """Write what came of a request, once. Raises DatabaseError."""
    places = {dc.pk: dc for dc in sale.tenancy.datacenters}
    record_usage(
        sale.tenancy,
        request_id=sale.id,
        dc=places[sale.dc or min(sale.places)],
        at=sale.at,
        outcome=outcome,
        prompt_tokens=tokens,
        key=sale.key,
        reason=reason[:40],
        ttft_ms=ttft_ms,
        in_batch=sale.in_batch,
    )
