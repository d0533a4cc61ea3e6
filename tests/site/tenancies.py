"""Tenancies for the tests of pages, services and the API."""

import itertools
from datetime import timedelta
from typing import Any

from django.utils import timezone

from tests.site.world import World, make_user
from webapp.accounts.models import Role, Team, User
from webapp.jobs.models import Run
from webapp.prefill import services
from webapp.prefill.models import ApiKey, Outcome, Tenancy, UsageEvent

MODEL = "llama-3-8b"
SECTION = {
    "checkpoint": "/models/llama-3-8b",
    "name": MODEL,
    "latency": {"a_ms": 3.0, "b_ms": 0.06, "c_ms": 0.0},
}
LIMITS = {"tokens_per_min": 60_000, "ttft_ms": 2_000, "longest_prompt": 4_096, "price": 60_000, "days": 90}


def _free(team: Team, name: str) -> str:
    """`name`, with the lowest number that makes it the only one of the team."""
    taken = set(Tenancy.objects.filter(team=team).values_list("name", flat=True))
    numbered = (f"{name} {number}" for number in itertools.count(2))
    return next(each for each in itertools.chain([name], numbered) if each not in taken)


def ask(world: World, actor: User | None = None, **values: Any) -> Tenancy:
    """A request by the tenant for the first two data centres."""
    tenancy = Tenancy(
        team=world.team,
        name=values.pop("name", _free(world.team, "Fathom Search")),
        model=values.pop("model", MODEL),
        **{"asked_tokens_per_min": 90_000, "asked_ttft_ms": 400, "asked_days": 90, **values},
    )
    return services.request_tenancy(actor or world.users["tenant"], tenancy, world.dcs[:2])


def serve(run: Run, **section: Any) -> Run:
    """Let the job of `run` serve a model, by default MODEL, at a time per prompt that its section says."""
    run.job.document = {**run.job.document, "prefill": {**SECTION, **section}}
    run.job.save(update_fields=["document"])
    return run


def limits(**values: Any) -> services.Limits:
    return services.Limits(**{**LIMITS, **values})


def grant(world: World, tenancy: Tenancy | None = None, **values: Any) -> Tenancy:
    """A tenancy in the first two data centres, whatever runs there supply."""
    return services.approve_tenancy(
        world.users["admin"], tenancy or ask(world), limits(**values), world.dcs[:2], oversell=True
    )


def give_key(world: World, tenancy: Tenancy | None = None) -> tuple[ApiKey, str]:
    tenancy = tenancy or grant(world)
    return services.make_key(tenancy.tenant, tenancy, "search")


def use(tenancy: Tenancy, number: int = 0, **values: Any) -> UsageEvent:
    """One delivered request of 1,000 tokens."""
    given = {"outcome": Outcome.DELIVERED, "prompt_tokens": 1_000, "ttft_ms": 120.0, "at": timezone.now()}
    dc = tenancy.places.order_by("pk")[0].dc
    return services.record_usage(
        tenancy, request_id=f"request-{tenancy.pk}-{number}", dc=dc, **{**given, **values}
    )


def end(tenancy: Tenancy, *, ago: timedelta = timedelta(seconds=1)) -> None:
    """Let the term of `tenancy` be over."""
    now = timezone.now()
    Tenancy.objects.filter(pk=tenancy.pk).update(starts_at=now - timedelta(days=1), ends_at=now - ago)


def second_tenant(world: World) -> User:
    """Another tenant of the same team."""
    return world.users.get("rival") or world.users.setdefault(
        "rival", make_user("rival", world.team, Role.TENANT)
    )
