"""The models that a tenant may use or ask for, whether they are served now, and for how much."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from webapp.accounts.models import Team
from webapp.prefill.models import ASKERS, Tenancy
from webapp.prefill.served import coordinators_in, open_places


@dataclass(frozen=True, slots=True, kw_only=True)
class OfferedModel:
    """A model of a tenancy in force, by the names that requests give it; or one to ask for (tenancy None).

    where : data centres in which it is served now.  price : micro-dollars per million prompt tokens; None
    before an admin has set it.
    """

    model: str
    tenancy: Tenancy | None
    names: list[str]
    where: list[str]
    price: int | None


def offered_models(user: Any, in_force: Sequence[Tenancy]) -> list[OfferedModel]:
    """What `user` may use by the tenancies `in_force`, then what else runs of the user's teams serve now."""
    opened = open_places(in_force)
    own = [
        OfferedModel(
            model=one.model,
            tenancy=one,
            names=[one.model, *one.used_names],
            where=opened[one.pk],
            price=one.price,
        )
        for one in in_force
    ]
    mine = {one.model for one in in_force}
    served: dict[str, list[str]] = {}
    coordinators = coordinators_in(Team.objects.with_role(user, ASKERS)).exclude(model__in=mine)
    for model, dc in coordinators.order_by("model", "dc__name").values_list("model", "dc__name").distinct():
        served.setdefault(model, []).append(dc)
    others = [
        OfferedModel(model=model, tenancy=None, names=[model], where=dcs, price=None)
        for model, dcs in served.items()
    ]
    return [*own, *others]


def own_prices(user: Any) -> dict[str, int]:
    """{model: micro-dollars per million prompt tokens} as it was granted to `user` last. What others pay is
    theirs."""
    granted = Tenancy.objects.filter(tenant=user, price__isnull=False).visible_to(user)
    rows = granted.order_by("decided_at").values_list("model", "price")
    return {model: price for model, price in rows if price is not None}
