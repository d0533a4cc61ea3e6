"""How documents of plans and jobs name what is in the inventory."""

import itertools
from collections.abc import Iterable
from typing import Any

from django.db.models import Q

from webapp.inventory.models import DataCenter, GpuPool, WanLink


def mentions(thing: DataCenter | GpuPool | WanLink) -> list[dict[str, Any]]:
    """What a document contains that names `thing`: one of these, as PostgreSQL's containment asks for it."""
    if isinstance(thing, WanLink):
        # Containment does not mind the order of the two ends.
        pairs = itertools.product(_all_names(thing.a), _all_names(thing.b))
        return [{"links": [{"between": list(pair)}]} for pair in pairs]
    names = _names(thing) if isinstance(thing, GpuPool) else _all_names(thing)
    return [{"datacenters": [{"name": name}]} for name in names]


def any_of(conditions: Iterable[Q]) -> Q:
    """What one of `conditions` holds for; nothing where there is none."""
    whole = Q(pk__in=[])
    for condition in conditions:
        whole |= condition
    return whole


def _all_names(dc: DataCenter) -> list[str]:
    """Every name under which plans may know a pool of `dc`."""
    return [dc.name, *(f"{dc.name}:{pool.gpu_type}" for pool in dc.pools.all())]


def _names(pool: GpuPool) -> list[str]:
    """Every name under which plans may know `pool`: the bare one means the first of its data centre."""
    first = pool.dc.pools.order_by("pk").first()
    return [str(pool), *([pool.dc.name] if first == pool else [])]
