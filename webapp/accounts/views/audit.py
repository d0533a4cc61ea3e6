"""The audit: what was changed by whom, filtered, one by one, and exported."""

from typing import Any

from django.apps import apps
from django.http import HttpRequest, HttpResponse, StreamingHttpResponse
from django.shortcuts import render
from django.urls import NoReverseMatch, reverse

from webapp.accounts import selectors
from webapp.accounts.diff import differences
from webapp.accounts.export import exported
from webapp.accounts.filters import AuditFilterSet
from webapp.accounts.models import ADMINS, AuditEntry, Membership, Team, User
from webapp.accounts.permissions import require_somewhere, visible_or_404
from webapp.accounts.tables import AuditTable
from webapp.common.lists import list_page
from webapp.common.queries import whole

SAME_REQUEST = 20
EXPORTED = (
    "id",
    "at",
    "actor",
    "team",
    "verb",
    "object_type",
    "object_id",
    "object_label",
    "before",
    "after",
    "request_id",
    "message",
)


def audit_list(request: HttpRequest) -> HttpResponse:
    """The rows that the user may see."""
    require_somewhere(request.user, ADMINS)
    query = request.GET.urlencode()
    exports = [
        (f"{reverse('accounts:audit-export', args=[kind])}?{query}", label)
        for kind, label in (("csv", "Export CSV"), ("jsonl", "Export JSON lines"))
    ]
    return list_page(
        request,
        title="Audit",
        rows=_rows(request),
        filter_class=AuditFilterSet,
        table_class=AuditTable,
        empty="No changes yet.",
        template="accounts/audit_list.html",
        context={"exports": exports},
    )


def audit_detail(request: HttpRequest, pk: int) -> HttpResponse:
    """One row: its differences, its object, and what else the same request did."""
    require_somewhere(request.user, ADMINS)
    entry = visible_or_404(AuditEntry.objects.select_related("actor", "team"), request.user, pk=pk)
    changes = differences(entry.before, entry.after)
    same = AuditEntry.objects.none()
    if entry.request_id:
        same = _rows(request).filter(request_id=entry.request_id).exclude(pk=pk).order_by("at", "pk")
    context = {
        "title": f"{entry.object_label}: {entry.verb}",
        "entry": entry,
        "differences": changes,
        "url": object_url(entry, request.user),
        "same": same[:SAME_REQUEST],
        "history": reverse("accounts:audit-list")
        + f"?object_type={entry.object_type}&object_id={entry.object_id}",
    }
    return render(request, "accounts/audit_detail.html", context)


def audit_export(request: HttpRequest, kind: str) -> StreamingHttpResponse:
    """Exactly the rows that the filter shows, in its order, all pages of them."""
    require_somewhere(request.user, ADMINS)
    return exported(
        request,
        kind,
        name="audit",
        rows=_rows(request),
        filter_class=AuditFilterSet,
        table_class=AuditTable,
        fields=EXPORTED,
        values=exported_values,
    )


def exported_values(entry: AuditEntry) -> dict[str, Any]:
    """The fields of a row as JSON values."""
    return {
        "id": entry.pk,
        "at": entry.at.isoformat(),
        "actor": entry.actor.username if entry.actor else None,
        "team": entry.team.name if entry.team else None,
        **{name: getattr(entry, name) for name in EXPORTED[4:]},
    }


def object_url(entry: AuditEntry, user: Any) -> str:
    """The page of the object of `entry`, where it still exists and `user` may see it; else empty."""
    if entry.object_type == "membership":  # has no page of its own: that of its person
        membership = Membership.objects.visible_to(user).filter(pk=entry.object_id).first()
        return reverse("accounts:person-detail", args=[membership.user_id]) if membership else ""
    model = next((m for m in apps.get_models() if m._meta.model_name == entry.object_type), None)
    if model is None or whole(entry.object_id) is None:
        return ""
    # A model whose page is not called after it says how that is called.
    name = getattr(model, "page_name", f"{model._meta.app_label}:{entry.object_type}-detail")
    try:
        url = reverse(name, args=[entry.object_id])
    except NoReverseMatch:
        return ""
    return url if _visible(model, user).filter(pk=entry.object_id).exists() else ""


def _visible(model: Any, user: Any) -> Any:
    if model is User:
        return selectors.people(user)
    if model is Team:
        return Team.objects.administered_by(user)
    rows = model._default_manager.all()
    return rows.visible_to(user) if hasattr(rows, "visible_to") else rows.none()


def _rows(request: HttpRequest) -> Any:
    return AuditEntry.objects.visible_to(request.user).select_related("actor", "team")
