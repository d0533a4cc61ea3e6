"""Archive, restore and delete, of one thing or of several chosen in a list: the same for every kind."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from django.contrib import messages
from django.core.exceptions import ValidationError
from django.http import Http404, HttpRequest, HttpResponse
from django.shortcuts import redirect, render
from django.urls import URLPattern, path, reverse
from django.utils.http import urlencode
from django.views.decorators.http import require_http_methods, require_POST

from webapp.accounts.models import OPERATORS
from webapp.accounts.permissions import require, require_somewhere
from webapp.accounts.services.archiving import Busy, archive, restore
from webapp.common.parts import told_parts

MOST_AT_ONCE = 200  # a page of a list has no more
MOST_NAMED = 12  # on the page that asks before a deletion


@dataclass(frozen=True, slots=True, kw_only=True)
class ArchivePages:
    """The three addresses of one kind of things. They take the things' keys as `pk`, as often as there are.

    kind, several : in words; `kind` is also what parts are registered of (webapp.common.parts).
    address : what the names of the addresses begin with, as "planning:plan": there are its -list and -detail.
    rows : those of the kind, with their teams.
    remove : the service that deletes: (actor, rows) → how many.
    stays : of some things, what outlives them, as sentences.
    against : of some things, why they cannot be deleted, as a sentence; empty where they can.
    """

    kind: str
    several: str
    address: str
    rows: Callable[[], Any]
    remove: Callable[[Any, Any], int]
    stays: Callable[[Sequence[Any]], list[str]] = lambda things: []
    against: Callable[[Sequence[Any]], str] = lambda things: ""

    def urls(self) -> list[URLPattern]:
        """The addresses below the kind's list."""
        name = self.address.partition(":")[2]
        archives, restores = require_POST(self.archive_page), require_POST(self.restore_page)
        deletes = require_http_methods(["GET", "HEAD", "POST"])(self.delete_page)
        return [
            path("archive/", archives, name=f"{name}-archive"),
            path("restore/", restores, name=f"{name}-restore"),
            path("delete/", deletes, name=f"{name}-delete"),
        ]

    def bulk(self, request: HttpRequest) -> str:
        """`address` where the user may do this to some things, for `list_page`; else empty."""
        own = getattr(request, "team_roles", ())
        user: Any = request.user
        return self.address if user.is_superuser or any(role in OPERATORS for _, role in own) else ""

    def archive_page(self, request: HttpRequest) -> HttpResponse:
        return self._changed(request, archive, "Archived {}. The filter Archived of the list shows {}.")

    def restore_page(self, request: HttpRequest) -> HttpResponse:
        return self._changed(request, restore, "Restored {}. The list shows {} again.")

    def delete_page(self, request: HttpRequest) -> HttpResponse:
        """What goes and what stays; deletes once that was confirmed."""
        things = self._chosen(request)
        if not things:
            return self._none_chosen(request)
        address = f"{reverse(f'{self.address}-delete')}?{urlencode([('pk', thing.pk) for thing in things])}"
        if request.method == "POST" and "confirmed" not in request.POST:
            return redirect(address)
        blocked = next((thing.busy for thing in things if thing.busy), "") or self.against(things)
        if request.method == "POST" and not blocked:
            try:
                self.remove(request.user, self._rows(things))
                messages.success(request, f"Deleted {self._named(things)}.")
                return redirect(f"{self.address}-list")
            except Busy as error:
                blocked = str(error)
        status = 409 if request.method == "POST" else 200
        return render(request, "components/delete.html", self._asked(things, blocked), status=status)

    def _changed(self, request: HttpRequest, change: Callable[[Any, Any], int], message: str) -> HttpResponse:
        things = self._chosen(request)
        if not things:
            return self._none_chosen(request)
        try:
            change(request.user, self._rows(things))
            it = "it" if len(things) == 1 else "them"
            messages.success(request, message.format(self._named(things), it))
        except Busy as error:
            messages.error(request, str(error))
        return self._back(request, things)

    def _asked(self, things: list[Any], blocked: str) -> dict[str, Any]:
        """The context of the page that asks before a deletion."""
        one = things[0] if len(things) == 1 else None
        above = [(self.several.capitalize(), reverse(f"{self.address}-list"))]
        here = reverse(f"{self.address}-detail", args=[one.pk]) if one else above[0][1]
        return {
            "title": f"Delete {self._named(things)}?",
            "things": things,
            "named": [] if one else things[:MOST_NAMED],
            "unnamed": max(0, len(things) - MOST_NAMED),
            "goes": told_parts(self.kind, things),
            "stays": self.stays(things),
            "blocked": blocked,
            "cancel_url": here,
            "crumbs": [*above, (str(one), here)] if one else above,
            "submit_label": f"Delete {self._named(things)}",
        }

    def _chosen(self, request: HttpRequest) -> list[Any]:
        """The things that the request names, all of which the user may change.

        Raises
        ------
        Http404
            The user does not see one of them, or it is gone.
        PermissionDenied
            The user is no operator of one of their teams.
        """
        require_somewhere(request.user)
        data = request.POST if request.method == "POST" else request.GET
        keys = list(dict.fromkeys(data.getlist("pk")))[:MOST_AT_ONCE]
        try:
            rows = self.rows().visible_to(request.user)
            pk = rows.model._meta.pk
            chosen_rows = list(rows.filter(pk__in=[pk.to_python(key) for key in keys]))
        except (ValidationError, OverflowError):
            raise Http404 from None
        if len(chosen_rows) < len(keys):
            raise Http404
        for team in {thing.team for thing in chosen_rows}:
            require(request.user, team)
        return chosen_rows

    def _rows(self, things: list[Any]) -> Any:
        return self.rows().filter(pk__in=[thing.pk for thing in things])

    def _named(self, things: list[Any]) -> str:
        return str(things[0]) if len(things) == 1 else f"{len(things)} {self.several}"

    def _none_chosen(self, request: HttpRequest) -> HttpResponse:
        messages.error(request, f"Nothing was chosen. Tick the {self.several} in the list first.")
        return self._back(request, [])

    def _back(self, request: HttpRequest, things: list[Any]) -> HttpResponse:
        """To the list as it was, or to the page of the one thing."""
        if "query" not in request.POST and len(things) == 1:
            return redirect(f"{self.address}-detail", pk=things[0].pk)
        there = reverse(f"{self.address}-list")
        query = request.POST.get("query", "")
        return redirect(f"{there}?{query}" if query else there)
