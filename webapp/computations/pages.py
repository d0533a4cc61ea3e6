"""What pages of all computations share: the one that is shown, stopping it, archive and search."""

import uuid
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from django.contrib import messages
from django.core.exceptions import ValidationError
from django.db.models import Q
from django.http import Http404, HttpRequest, HttpResponse
from django.shortcuts import redirect, render
from django.urls import URLPattern, path, reverse
from django.views.decorators.http import require_POST

from webapp.accounts.archive_pages import ArchivePages
from webapp.accounts.permissions import visible_or_404
from webapp.common.archived import dated
from webapp.common.search import Begin, Rows
from webapp.computations.models import Computation, ComputationQuerySet
from webapp.computations.services import ask_to_cancel, delete_computations


def stop(request: HttpRequest, computation: Computation) -> None:
    """Stop a computation, or say that it has ended; PermissionDenied for no operator of its team."""
    if not ask_to_cancel(request.user, computation):
        messages.info(request, "It has already ended.")


@dataclass(frozen=True, slots=True, kw_only=True)
class ComputationPages:
    """The pages of the computations of some kinds.

    kinds : values of `ComputationKind`.
    one, several : in words.
    address : what the names of the addresses begin with, as "placement:placement".
    label, order : of these among the things that a search finds.
    remove, stays : as `ArchivePages`.
    """

    kinds: tuple[str, ...]
    one: str
    several: str
    address: str
    label: str
    order: int
    remove: Callable[[Any, Any], int] = delete_computations
    stays: Callable[[Sequence[Any]], list[str]] = lambda things: []

    def rows(self) -> ComputationQuerySet:
        """All computations of these kinds."""
        return Computation.objects.of(*self.kinds)

    def visible(self, request: HttpRequest, pk: uuid.UUID, *deferred: str) -> Computation:
        """The one that an address names, without the columns `deferred`; Http404 for who may not see it."""
        rows = self.rows().select_related("team", "created_by").defer(*deferred)
        return visible_or_404(rows, request.user, pk=pk)

    def named(self, user: Any, text: str) -> Computation:
        """The one whose id stands in an address, without its answer; Http404 for who may not see it."""
        try:
            pk = uuid.UUID(text)
        except ValueError:
            raise Http404 from None
        return visible_or_404(self.rows().defer("answer"), user, pk=pk)

    def ask(
        self,
        request: HttpRequest,
        form: Any,
        start: Callable[[dict[str, Any]], Computation],
        *,
        template: str,
        title: str,
        submit: str,
        **context: Any,
    ) -> HttpResponse:
        """The form of a new one; once it is valid, the page of what `start` makes of its values."""
        if request.method == "POST" and form.is_valid():
            try:
                return redirect(f"{self.address}-detail", pk=start(form.cleaned_data).pk)
            except ValidationError as error:
                form.take_errors(error)
        page = {
            "title": title,
            "form": form,
            "sections": form.sections,
            "submit_label": submit,
            "cancel_url": reverse(f"{self.address}-list"),
        }
        return render(request, template, page | context, status=422 if form.errors else 200)

    @property
    def archive(self) -> ArchivePages:
        return ArchivePages(
            kind=self.one,
            several=self.several,
            address=self.address,
            remove=self.remove,
            rows=lambda: self.rows().select_related("team").defer("request", "answer"),
            stays=self.stays,
        )

    @property
    def search(self) -> Rows:
        """How they are found."""
        return Rows(
            order=self.order,
            name=self.one,
            label=self.label,
            rows=lambda user: self.rows().visible_to(user).only("name", "created_at", "archived_at"),
            named="name",
            hit=lambda row: (row.name, reverse(f"{self.address}-detail", args=[row.pk]), dated(row)),
            matches=lambda word: Q(Begin(word, "name")),
        )

    def urls(self) -> list[URLPattern]:
        """The addresses below the list that all kinds have; each kind adds its own."""
        name = f"{self.address.partition(':')[2]}-cancel"
        cancel = path("<uuid:pk>/cancel/", require_POST(self.cancel_page), name=name)
        return [*self.archive.urls(), cancel]

    def cancel_page(self, request: HttpRequest, pk: uuid.UUID) -> HttpResponse:
        """End one; what it has found stays."""
        stop(request, self.visible(request, pk, "request", "answer"))
        return redirect(f"{self.address}-detail", pk=pk)
