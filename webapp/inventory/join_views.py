"""Pages of join commands: which ones still work, who made them, and how to revoke them."""

from django.contrib import messages
from django.http import HttpRequest, HttpResponse
from django.shortcuts import redirect, render
from django.urls import reverse

from webapp.accounts.permissions import require_somewhere, visible_or_404
from webapp.common.lists import list_page
from webapp.inventory import services
from webapp.inventory.models import JoinToken
from webapp.inventory.node_tables import JoinTokenFilterSet, JoinTokenTable
from webapp.inventory.selectors.nodes import open_tokens


def join_list(request: HttpRequest) -> HttpResponse:
    """The join commands with which a machine can still become a node."""
    require_somewhere(request.user)
    return list_page(
        request,
        title="Join commands",
        note="that work now, each once; used and expired ones are in the audit",
        rows=open_tokens(request.user),
        filter_class=JoinTokenFilterSet,
        table_class=JoinTokenTable,
        empty="No join command is open. Make one on the page of a node.",
        context={"crumbs": _crumbs()[:1]},
    )


def join_revoke(request: HttpRequest, pk: int) -> HttpResponse:
    """Ask, then make the command worthless."""
    tokens = JoinToken.objects.unused().select_related("node__dc__team", "created_by")
    token = visible_or_404(tokens, request.user, pk=pk)
    page = reverse("inventory:node-detail", args=[token.node_id])
    if request.method == "POST":
        if services.revoke_join(request.user, token):
            messages.success(request, f"The join command for {token.node} no longer works.")
        else:
            messages.error(request, f"Nothing was revoked: a machine joined as {token.node} meanwhile.")
        return redirect(page)
    context = {
        "title": f"Revoke the join command for {token.node}?",
        "text": f"{token.created_by or 'Meridian'} made it. No machine can join with it any more.",
        "submit_label": "Revoke the join command",
        "cancel_url": page,
        "crumbs": _crumbs(),
    }
    return render(request, "components/confirm.html", context)


def _crumbs() -> list[tuple[str, str]]:
    return [("Nodes", reverse("inventory:node-list")), ("Join commands", reverse("inventory:join-list"))]
