"""The fields of usage in its exports, and statements as CSV."""

from collections.abc import Iterable
from typing import Any

from webapp.accounts.export import csv_line, harmless
from webapp.prefill.models import UsageEvent

FIELDS = (
    "request_id",
    "at",
    "tenancy",
    "model",
    "data_center",
    "outcome",
    "reason",
    "prompt_tokens",
    "ttft_ms",
    "ttft_objective_ms",
    "price_microusd_per_million_tokens",
    "charge_microusd",
)
STATEMENT = (
    "month",
    "tenancy",
    "tenant",
    "price_microusd_per_million_tokens",
    "requests",
    "delivered",
    "delivered_prompt_tokens",
    "charge_microusd",
)


def values(event: UsageEvent) -> dict[str, Any]:
    """The fields of an event as JSON values."""
    return {
        "request_id": event.request_id,
        "at": event.at.isoformat(),
        "tenancy": event.tenancy.name,
        "model": event.tenancy.model,
        "data_center": event.dc.name,
        "outcome": event.outcome,
        "reason": event.reason,
        "prompt_tokens": event.prompt_tokens,
        "ttft_ms": event.ttft_ms,
        "ttft_objective_ms": event.ttft_objective_ms,
        "price_microusd_per_million_tokens": event.price,
        "charge_microusd": event.charge,
    }


def statement_csv(rows: Iterable[dict[str, Any]], month: str) -> str:
    """A statement's rows (selectors.statement) as CSV."""
    lines = [csv_line(STATEMENT)]
    keys = (
        "tenancy__name",
        "tenancy__tenant__username",
        "price",
        "requests",
        "delivered",
        "tokens",
        "charged",
    )
    lines += [csv_line([month, *(harmless(row[key]) for key in keys)]) for row in rows]
    return "".join(lines)
