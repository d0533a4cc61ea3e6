"""List, detail, create, edit and delete of one kind of thing: what differs is said, not written again."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import redis
from django.contrib import messages
from django.core.exceptions import ValidationError
from django.db import transaction
from django.http import HttpRequest, HttpResponse
from django.shortcuts import redirect, render
from django.urls import reverse

from webapp.accounts.permissions import require, require_somewhere, visible_or_404
from webapp.common.additions import extended
from webapp.common.lists import list_page
from webapp.inventory import services
from webapp.inventory.selectors import detail_context

BROKER_AWAY = "the broker does not answer. Nothing has changed."


@dataclass(frozen=True, slots=True, kw_only=True)
class Pages:
    """List, detail, create, edit and delete of one kind of thing.

    above : (thing) → [(label, URL)] of the pages above it where its address does not tell them.
    home : (thing) → the page that shows it; by default its own.
    created : (request, thing) → the answer once one was created; by default the page that shows it.
    """

    name: str  # of its URLs
    one: str
    title: str
    empty: str
    rows: Callable[[], Any]  # queryset of the list
    whole: Callable[[], Any]  # queryset of one
    form: Any
    table: Any
    filter: Any
    actions: tuple[tuple[str, str], ...] = ()  # URL name and label of further buttons of the list
    form_template: str = "components/form.html"
    above: Callable[[Any], list[tuple[str, str]]] | None = None
    home: Callable[[Any], str] | None = None
    created: Callable[[HttpRequest, Any], HttpResponse] | None = None

    def list(self, request: HttpRequest) -> HttpResponse:
        return list_page(
            request,
            title=self.title,
            rows=self.rows().visible_to(request.user),
            filter_class=self.filter,
            table_class=self.table,
            empty=self.empty,
            create=(f"inventory:{self.name}-create", f"Add {self.one}"),
            actions=[(reverse(url_name), label) for url_name, label in self.actions],
        )

    def detail(self, request: HttpRequest, pk: int) -> HttpResponse:
        thing = visible_or_404(self.whole(), request.user, pk=pk)
        context = extended(self.name, request, detail_context(request, thing))
        return render(request, f"inventory/{self.name}_detail.html", context)

    def create(self, request: HttpRequest) -> HttpResponse:
        require_somewhere(request.user)
        initial = self.form.given(request)
        form = self.form(request.POST or None, initial=initial, user=request.user)
        back = reverse(f"inventory:{self.name}-list")
        return self._form_page(request, form, f"Add {self.one}", back)

    def create_in(self, request: HttpRequest, dc: int) -> HttpResponse:
        """Create one in the data centre `dc`, from whose page the reader comes."""
        from webapp.inventory.models import DataCenter

        place = visible_or_404(DataCenter.objects.select_related("team"), request.user, pk=dc)
        require(request.user, place.team)
        form = self.form(request.POST or None, initial={"dc": place}, user=request.user)
        back = reverse("inventory:datacenter-detail", args=[dc])
        crumbs = [("Data centres", reverse("inventory:datacenter-list")), (str(place), back)]
        return self._form_page(request, form, f"Add {self.one} to {place}", back, crumbs=crumbs)

    @transaction.atomic
    def edit(self, request: HttpRequest, pk: int) -> HttpResponse:
        thing = visible_or_404(self.whole(), request.user, pk=pk)
        require(request.user, services.team_of(thing))
        form = self.form(request.POST or None, instance=thing, user=request.user)
        return self._form_page(request, form, f"Edit {thing}", self._url(thing), **self._crumbs(thing))

    def delete(self, request: HttpRequest, pk: int) -> HttpResponse:
        thing = visible_or_404(self.whole(), request.user, pk=pk)
        require(request.user, services.team_of(thing))
        blocked = services.blocked_by(thing)
        if request.method == "POST" and not blocked:
            try:
                services.delete(request.user, thing)
                messages.success(request, f"The {self.one} {thing} was deleted.")
                return redirect(self._after(thing))
            except services.Blocked as error:
                blocked = str(error)
            except (redis.RedisError, OSError):
                blocked = f"{thing} was not deleted: {BROKER_AWAY}"
        context = {
            "title": f"Delete {thing}?",
            "object": thing,
            "blocked": blocked,
            "cancel_url": self._url(thing),
            "text": f"The {self.one} {thing} will be deleted permanently.",
            "submit_label": f"Delete {thing}",
            **self._crumbs(thing),
        }
        return render(
            request, "components/confirm.html", context, status=409 if request.method == "POST" else 200
        )

    def _url(self, thing: Any) -> str:
        return self.home(thing) if self.home else reverse(f"inventory:{self.name}-detail", args=[thing.pk])

    def _after(self, thing: Any) -> str:
        """Where one is after `thing` is gone: its list, or the page that showed it among others."""
        return self.home(thing) if self.home else reverse(f"inventory:{self.name}-list")

    def _crumbs(self, thing: Any) -> dict[str, Any]:
        return {"crumbs": self.above(thing)} if self.above else {}

    def _form_page(
        self, request: HttpRequest, form: Any, title: str, cancel_url: str, **context: Any
    ) -> HttpResponse:
        is_new = form.instance.pk is None
        if request.method == "POST" and form.is_valid():
            try:
                saved = form.save_as(request.user)
                new_page = self.created if is_new else None
                return new_page(request, saved) if new_page else redirect(self._url(saved))
            except ValidationError as error:
                form.take_errors(error)
        page = {
            "title": title,
            "form": form,
            "sections": form.sections,
            "notes": form.notes(),
            "submit_label": title if is_new else "Save changes",
            "cancel_url": cancel_url,
        }
        return render(request, self.form_template, page | context, status=422 if form.errors else 200)
