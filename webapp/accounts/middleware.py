"""Pages are for readers of a team; a tenant, and who is in no team, has an account page and nothing else."""

from collections.abc import Callable
from typing import Any, TypeVar

from django.http import Http404, HttpRequest
from django.utils.deprecation import MiddlewareMixin

from webapp.accounts.models import READERS, Membership

View = TypeVar("View", bound=Callable[..., Any])


def for_everyone(view: View) -> View:
    """Mark a view as open to whoever is logged in, in whatever role; without the mark it wants a reader."""
    view.for_everyone = True  # type: ignore[attr-defined]
    return view


class ReadersMiddleware(MiddlewareMixin):
    """Sets `request.roles` ({team id: role}) and hides the pages of readers from everybody else (404)."""

    def process_view(self, request: HttpRequest, view: Any, args: Any, kwargs: Any) -> None:
        user = request.user
        if not user.is_authenticated:
            return  # LoginRequiredMiddleware asks for a login where one is wanted
        roles = dict(Membership.objects.filter(user=user).values_list("team", "role"))
        request.roles = roles  # type: ignore[attr-defined]
        reads = user.is_superuser or any(role in READERS for role in roles.values())
        if not (reads or getattr(view, "for_everyone", False) or not getattr(view, "login_required", True)):
            raise Http404
