"""Tables of tenancies, keys and usage."""

import django_tables2 as tables

from webapp.common.money import dollars, exact_dollars
from webapp.common.tables import DASH, NumberColumn, Table, TimeColumn, state
from webapp.prefill.models import ApiKey, KeyState, Outcome, Tenancy, TenancyStatus, UsageEvent

SHAPES = {
    TenancyStatus.REQUESTED: "waiting",
    TenancyStatus.ACTIVE: "running",
    TenancyStatus.SUSPENDED: "stopping",
    TenancyStatus.REFUSED: "failed",
    TenancyStatus.WITHDRAWN: "cancelled",
    TenancyStatus.ENDED: "succeeded",
}
KEY_SHAPES = {
    KeyState.LIVE: "running",
    KeyState.EXPIRING: "stopping",
    KeyState.EXPIRED: "cancelled",
    KeyState.REVOKED: "failed",
}
OUTCOME_SHAPES = {Outcome.DELIVERED: "succeeded", Outcome.REFUSED: "waiting", Outcome.ABORTED: "failed"}


def tenancy_state(tenancy: Tenancy) -> str:
    """The state of a tenancy as HTML; a renewal that waits is shown next to it."""
    badge = state(SHAPES[tenancy.state], tenancy.state.label)
    return badge + state("waiting", "Renewal requested") if tenancy.renewal_days is not None else badge


class TenancyTable(Table):
    name = tables.LinkColumn("prefill:tenancy-detail", args=[tables.A("pk")], verbose_name="Tenancy")
    tenant = tables.Column(order_by="tenant__username")
    status = tables.Column("State")
    model = tables.Column()
    where = tables.Column("Data centres", accessor="pk", orderable=False, attrs={"td": {"class": "wrap"}})
    asked_tokens_per_min = NumberColumn("Asked", unit="tokens/min")
    tokens_per_min = NumberColumn("Granted", unit="tokens/min")
    ttft_ms = NumberColumn("TTFT", unit="ms")
    price = NumberColumn("Price", unit="$/M tokens")
    ends_at = TimeColumn("Ends", style="day")
    created_at = TimeColumn("Asked", style="minute")

    narrow = ("name", "status", "tokens_per_min")

    class Meta(Table.Meta):
        model = Tenancy
        fields = (
            "name",
            "tenant",
            "status",
            "model",
            "where",
            "asked_tokens_per_min",
            "tokens_per_min",
            "ttft_ms",
            "price",
            "ends_at",
            "created_at",
        )
        order_by = "-created_at"

    def render_status(self, record: Tenancy) -> str:
        return tenancy_state(record)

    def render_where(self, record: Tenancy) -> str:
        return ", ".join(dc.name for dc in record.datacenters)

    def render_price(self, value: int) -> str:
        return exact_dollars(value)


class KeyTable(Table):
    prefix = tables.TemplateColumn("<code>{{ record.prefix }}…</code>", verbose_name="Key", order_by="prefix")
    name = tables.Column()
    tenancy = tables.LinkColumn(
        "prefill:tenancy-detail", args=[tables.A("tenancy_id")], order_by="tenancy__name"
    )
    status = tables.Column("State", accessor="pk", orderable=False)
    created_at = TimeColumn("Made", style="minute")
    used_at = TimeColumn("Last used", style="ago")
    expires_at = TimeColumn("Valid until", style="minute")
    actions = tables.TemplateColumn(
        template_name="prefill/key_actions.html",
        verbose_name="",
        orderable=False,
        attrs={"td": {"class": "num"}},
    )

    narrow = ("prefix", "status", "actions")

    class Meta(Table.Meta):
        model = ApiKey
        fields = ("prefix", "name", "tenancy", "status", "created_at", "used_at", "expires_at", "actions")
        order_by = "-created_at"

    def render_status(self, record: ApiKey) -> str:
        return state(KEY_SHAPES[record.state], record.state.label)


class UsageTable(Table):
    request_id = tables.Column("Request", attrs={"td": {"class": "mono"}})
    at = TimeColumn("Arrived")
    tenancy = tables.LinkColumn(
        "prefill:tenancy-detail", args=[tables.A("tenancy_id")], order_by="tenancy__name"
    )
    dc = tables.Column("Data centre", order_by="dc__name")
    outcome = tables.Column()
    prompt_tokens = NumberColumn("Prompt", unit="tokens")
    ttft_ms = NumberColumn("TTFT", unit="ms")
    ttft_objective_ms = NumberColumn("Objective", unit="ms")
    charge = NumberColumn("Charged", unit="$")

    narrow = ("at", "outcome", "charge")

    class Meta(Table.Meta):
        model = UsageEvent
        fields = (
            "at",
            "tenancy",
            "request_id",
            "dc",
            "outcome",
            "prompt_tokens",
            "ttft_ms",
            "ttft_objective_ms",
            "charge",
        )
        order_by = "-at"

    def render_outcome(self, record: UsageEvent) -> str:
        label = Outcome(record.outcome).label
        words = f"{label}: {record.reason}" if record.reason else label
        return state(OUTCOME_SHAPES[Outcome(record.outcome)], words)

    def render_charge(self, value: int) -> str:
        return dollars(value, 6)


class StatementTable(Table):
    """A row a tenancy and price, and their sum at the foot."""

    name = tables.Column("Tenancy", accessor="tenancy__name", footer="All")
    tenant = tables.Column(accessor="tenancy__tenant__username")
    price = NumberColumn("Price", unit="$/M tokens")
    requests = NumberColumn("Requests", footer=lambda table: f"{table.total('requests'):,}")
    delivered = NumberColumn("Delivered", footer=lambda table: f"{table.total('delivered'):,}")
    tokens = NumberColumn("Delivered", unit="tokens", footer=lambda table: f"{table.total('tokens'):,}")
    charged = NumberColumn("Charged", unit="$", footer=lambda table: dollars(table.total("charged"), 6))

    narrow = ("name", "tokens", "charged")

    def total(self, name: str) -> int:
        return sum(row[name] or 0 for row in self.data.data)

    def render_price(self, value: int) -> str:
        return exact_dollars(value)

    def render_charged(self, value: int | None) -> str:
        return dollars(value, 6) if value is not None else DASH
