"""Pages are for readers of a team; a tenant, and who is in no team, has an account page and nothing else."""

from collections.abc import Callable
from typing import Any, TypeVar

from django.http import Http404, HttpRequest
from django.utils.deprecation import MiddlewareMixin

from webapp.accounts.models import READERS
from webapp.accounts.selectors import team_roles

View = TypeVar("View", bound=Callable[..., Any])


def for_everyone(view: View) -> View:
    """Mark a view as open to whoever is logged in, in whatever role; without the mark it wants a reader."""
    view.for_everyone = True  # type: ignore[attr-defined]
    return view


class ReadersMiddleware(MiddlewareMixin):
    """Sets `request.team_roles` and hides the pages of readers from everybody else (404)."""

    def process_view(self, request: HttpRequest, view: Any, args: Any, kwargs: Any) -> None:
        user = request.user
        if not user.is_authenticated:
            return  # LoginRequiredMiddleware asks for a login where one is wanted
        own = team_roles(user)
        request.team_roles = own  # type: ignore[attr-defined]
        reads = user.is_superuser or any(role in READERS for _, role in own)
        if not (reads or getattr(view, "for_everyone", False) or not getattr(view, "login_required", True)):
            raise Http404
