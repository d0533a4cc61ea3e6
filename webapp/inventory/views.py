"""Pages of the inventory. The five pages of data centres, nodes and links differ in tables and words only."""

from dataclasses import dataclass
from typing import Any

import redis
from django.contrib import messages
from django.core.exceptions import ValidationError
from django.http import HttpRequest, HttpResponse
from django.shortcuts import redirect, render
from django.urls import reverse
from django.views.decorators.http import require_POST

from webapp.accounts.permissions import require, require_somewhere, visible_or_404
from webapp.inventory import forms, services
from webapp.inventory.filters import DataCenterFilterSet, LinkFilterSet, NodeFilterSet
from webapp.inventory.models import DataCenter, Node, WanLink
from webapp.inventory.selectors import detail_context
from webapp.inventory.tables import DataCenterTable, LinkTable, NodeTable
from webapp.lists import list_page


@dataclass(frozen=True, slots=True, kw_only=True)
class Pages:
    """List, detail, create, edit and delete of one kind of thing."""

    name: str  # of its URLs
    one: str
    title: str
    empty: str
    rows: Any  # () -> queryset of the list
    whole: Any  # () -> queryset of one
    form: Any
    table: Any
    filter: Any

    def list(self, request: HttpRequest) -> HttpResponse:
        return list_page(
            request,
            title=self.title,
            rows=self.rows().visible_to(request.user),
            filter_class=self.filter,
            table_class=self.table,
            empty=self.empty,
            create=(f"inventory:{self.name}-create", f"Add {self.one}"),
        )

    def detail(self, request: HttpRequest, pk: int) -> HttpResponse:
        thing = visible_or_404(self.whole(), request.user, pk=pk)
        context = detail_context(request, thing)
        return render(request, f"inventory/{self.name}_detail.html", context)

    def create(self, request: HttpRequest) -> HttpResponse:
        require_somewhere(request.user)
        form = self.form(request.POST or None, user=request.user)
        return self._form_page(request, form, f"Add {self.one}", reverse(f"inventory:{self.name}-list"))

    def edit(self, request: HttpRequest, pk: int) -> HttpResponse:
        thing = visible_or_404(self.whole(), request.user, pk=pk)
        require(request.user, services.team_of(thing))
        form = self.form(request.POST or None, instance=thing, user=request.user)
        return self._form_page(request, form, f"Change {thing}", self._url(thing))

    def delete(self, request: HttpRequest, pk: int) -> HttpResponse:
        thing = visible_or_404(self.whole(), request.user, pk=pk)
        require(request.user, services.team_of(thing))
        blocked = services.blocked_by(thing)
        if request.method == "POST" and not blocked:
            try:
                services.delete(request.user, thing)
                return redirect(f"inventory:{self.name}-list")
            except services.Blocked as error:
                blocked = str(error)
        context = {
            "title": f"Delete {thing}?",
            "object": thing,
            "blocked": blocked,
            "cancel_url": self._url(thing),
            "text": f"The {self.one} {thing} will be gone for good.",
            "submit_label": f"Delete {thing}",
        }
        return render(
            request, "components/confirm.html", context, status=409 if request.method == "POST" else 200
        )

    def _url(self, thing: Any) -> str:
        return reverse(f"inventory:{self.name}-detail", args=[thing.pk])

    def _form_page(self, request: HttpRequest, form: Any, title: str, cancel_url: str) -> HttpResponse:
        if request.method == "POST" and form.is_valid():
            try:
                saved = form.save_as(request.user)
                return redirect(self._url(saved))
            except ValidationError as error:
                form.take_errors(error)
        label = title if form.instance.pk is None else "Save changes"
        context = {
            "title": title,
            "form": form,
            "sections": form.sections,
            "submit_label": label,
            "cancel_url": cancel_url,
        }
        return render(request, "components/form.html", context, status=422 if form.errors else 200)


datacenters = Pages(
    name="datacenter",
    one="data centre",
    title="Data centres",
    form=forms.DataCenterForm,
    empty="No data centre yet. Add the first to plan over it.",
    rows=lambda: DataCenter.objects.with_counts().prefetch_related("pools"),
    whole=lambda: DataCenter.objects.select_related("team"),
    table=DataCenterTable,
    filter=DataCenterFilterSet,
)
nodes = Pages(
    name="node",
    one="node",
    title="Nodes",
    form=forms.NodeForm,
    empty="No node yet. Add one to a data centre, enrol it, and start its agent.",
    rows=lambda: Node.objects.select_related("dc").defer("seen_ranks"),
    whole=lambda: Node.objects.select_related("dc__team"),
    table=NodeTable,
    filter=NodeFilterSet,
)
links = Pages(
    name="link",
    one="link",
    title="Links",
    form=forms.LinkForm,
    empty="No link yet. Stages of one pipeline can neighbour each other only over a link.",
    rows=lambda: WanLink.objects.select_related("a", "b"),
    whole=lambda: WanLink.objects.select_related("a__team", "b"),
    table=LinkTable,
    filter=LinkFilterSet,
)


@require_POST
def node_enrol(request: HttpRequest, pk: int) -> HttpResponse:
    """Give the node new credentials and show them, once."""
    node = visible_or_404(Node.objects.select_related("dc__team"), request.user, pk=pk)
    require(request.user, node.dc.team)
    try:
        credentials = services.enrol_node(request.user, node)
    except (redis.RedisError, OSError):
        messages.error(request, f"{node} was not enrolled: the broker does not answer. Nothing has changed.")
        return redirect("inventory:node-detail", pk=pk)
    context = detail_context(request, node) | {"credentials": credentials}
    response = render(request, "inventory/node_detail.html", context)
    response["Cache-Control"] = "no-store"
    return response
