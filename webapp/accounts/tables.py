"""Tables of people, teams, invitations and audit rows."""

from typing import Any

import django_tables2 as tables
from django.urls import reverse
from django.utils.html import format_html

from webapp.accounts.diff import summary
from webapp.accounts.models import AuditEntry, Invitation, InvitationState, Membership, Team
from webapp.common.tables import DASH, NumberColumn, Table, TimeColumn, state

# Code of the style sheet's shapes for states of accounts and invitations.
SHAPES = {
    InvitationState.OPEN: "waiting",
    InvitationState.ACCEPTED: "succeeded",
    InvitationState.REVOKED: "failed",
    InvitationState.EXPIRED: "cancelled",
}


def account_state(*, active: bool, locked: bool) -> str:
    """The state of an account as HTML."""
    if not active:
        return state("cancelled", "Deactivated")
    return state("failed", "Locked out") if locked else state("online", "Active")


class MemberTable(Table):
    user = tables.LinkColumn(
        "accounts:person-detail", args=[tables.A("user_id")], verbose_name="User", order_by="user__username"
    )
    name = tables.Column(
        "Name", accessor="user__get_full_name", order_by=("user__last_name", "user__first_name")
    )
    email = tables.Column("E-mail", accessor="user__email")
    team = tables.Column(order_by="team__name")
    role = tables.Column()
    account = tables.Column(empty_values=(), order_by=("user__is_active",))
    last_login = TimeColumn("Last login", accessor="user__last_login", style="ago")
    joined_at = TimeColumn("Member since", style="day")
    narrow = ("user", "role", "account")

    class Meta(Table.Meta):
        model = Membership
        fields = ("user", "name", "email", "team", "role", "account", "last_login", "joined_at")
        order_by = "user"

    def render_account(self, record: Any) -> str:
        return account_state(active=record.user.is_active, locked=record.locked)

    def render_name(self, value: str) -> str:
        return value or DASH


class TeamTable(Table):
    name = tables.LinkColumn("accounts:team-edit", args=[tables.A("pk")])
    member_count = NumberColumn("Members")
    admin_count = NumberColumn("Active admins")
    invitation_count = NumberColumn("Open invitations")
    created_at = TimeColumn("Since", style="day")

    class Meta(Table.Meta):
        model = Team
        fields = ("name", "member_count", "admin_count", "invitation_count", "created_at")
        order_by = "name"


class InvitationTable(Table):
    email = tables.Column("For")
    team = tables.Column(order_by="team__name")
    role = tables.Column()
    state = tables.Column(empty_values=(), orderable=False)
    created_at = TimeColumn("Made", style="ago")
    invited_by = tables.Column("By", order_by="invited_by__username")
    expires_at = TimeColumn("Until", style="minute")
    accepted_by = tables.Column("Accepted by", order_by="accepted_by__username")
    revoke = tables.Column("Action", empty_values=(), orderable=False)
    narrow = ("email", "state", "revoke")

    class Meta(Table.Meta):
        model = Invitation
        fields = (
            "email",
            "team",
            "role",
            "state",
            "created_at",
            "invited_by",
            "expires_at",
            "accepted_by",
            "revoke",
        )
        order_by = "-created_at"

    def render_state(self, record: Invitation) -> str:
        return state(SHAPES[record.state], record.state.label)

    def render_revoke(self, record: Invitation) -> str:
        if record.state != InvitationState.OPEN:
            return ""
        return format_html(
            '<a href="{}">Revoke…</a>', reverse("accounts:invitation-revoke", args=[record.pk])
        )


class AuditTable(Table):
    # Each order ends at the id: rows that are alike else would change places between pages and exports.
    at = TimeColumn("When", order_by=("at", "id"))
    actor = tables.Column("Who", order_by=("actor__username", "id"), default="Meridian")
    verb = tables.Column("Action", order_by=("verb", "id"))
    object_type = tables.Column("To a", order_by=("object_type", "id"))
    object_label = tables.Column(
        "Called", order_by=("object_label", "id"), attrs={"td": {"class": "wrap path"}}
    )
    change = tables.Column("What changed", empty_values=(), orderable=False, attrs={"td": {"class": "wrap"}})
    team = tables.Column(order_by=("team__name", "id"))
    narrow = ("at", "verb", "object_label")

    class Meta(Table.Meta):
        model = AuditEntry
        fields = ("at", "actor", "verb", "object_type", "object_label", "change", "team")
        order_by = "-at"

    def render_object_label(self, record: AuditEntry) -> str:
        url = reverse("accounts:audit-detail", args=[record.pk])
        return format_html('<a href="{}">{}</a>', url, record.object_label)

    def render_change(self, record: AuditEntry) -> str:
        return record.message or summary(record.before, record.after) or DASH
