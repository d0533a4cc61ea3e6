"""What stands against a deletion: the runs, nodes, links and plans that refer to a thing."""

import itertools
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from django.db import models
from django.db.models import Q

from webapp.inventory.models import DataCenter, GpuPool, Node, WanLink

if TYPE_CHECKING:
    from webapp.inventory.services.things import Thing

MOST_NAMED = 4


def blocked_by(thing: "Thing") -> str:
    """Why `thing` cannot be deleted, as a sentence that names what refers to it; empty where it can."""
    used = ", ".join(part for part in (_named(*found) for found in _referring(thing)) if part)
    return f"{thing} cannot be deleted: {used} would lose it." if used else ""


def _referring(thing: "Thing") -> Iterable[tuple[str, Any]]:
    """(what it is called, queryset) of each kind of thing that may refer to `thing`."""
    if isinstance(thing, Node):
        return [("run", _runs(Q(ranks__node=thing)))]
    if isinstance(thing, GpuPool):
        return [
            ("run", _runs(Q(ranks__node__pool=thing))),
            ("node", thing.nodes.all()),
            ("plan", _plans(thing.dc.team_id, _mention_pools(_names(thing)))),
        ]
    if isinstance(thing, WanLink):
        ends = _mention_link(_all_names(thing.a), _all_names(thing.b))
        return [("run", _runs(_of_job(ends))), ("plan", _plans(thing.a.team_id, ends))]
    mentions = _mention_pools(_all_names(thing))
    return [
        ("run", _runs(Q(ranks__dc=thing))),
        ("node", thing.nodes.all()),
        ("link", WanLink.objects.filter(Q(a=thing) | Q(b=thing)).select_related("a", "b")),
        ("plan", _plans(thing.team_id, mentions)),
        ("tenancy", _tenancies(thing)),
    ]


def _runs(where: Q) -> Any:
    from webapp.jobs.models import Run  # jobs know the inventory, not the other way round

    return Run.objects.filter(where).distinct().for_lists()


def _plans(team_id: int, mentions: list[dict[str, Any]]) -> Any:
    from webapp.planning.models import Plan

    where = _any(Q(request__contains=mention) for mention in mentions)
    return Plan.objects.filter(where, team=team_id).only("name")


def _tenancies(dc: DataCenter) -> Any:
    from webapp.prefill.models import Tenancy  # as with jobs

    return Tenancy.objects.filter(places__dc=dc)


def _of_job(mentions: list[dict[str, Any]]) -> Q:
    return _any(Q(job__document__contains=mention) for mention in mentions)


def _any(conditions: Iterable[Q]) -> Q:
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


def _mention_pools(names: list[str]) -> list[dict[str, Any]]:
    """What the document of a plan or job contains that names one of these pools."""
    return [{"datacenters": [{"name": name}]} for name in names]


def _mention_link(a: list[str], b: list[str]) -> list[dict[str, Any]]:
    """The same of a link; PostgreSQL's containment does not mind the order of the two ends."""
    return [{"links": [{"between": list(pair)}]} for pair in itertools.product(a, b)]


def _named(kind: str, rows: models.QuerySet[Any]) -> str:
    total = rows.count()
    if not total:
        return ""
    names = ", ".join(str(row) for row in rows[:MOST_NAMED])
    more = f" and {total - MOST_NAMED} more" if total > MOST_NAMED else ""
    several = f"{kind.removesuffix('y')}ies" if kind.endswith("y") else f"{kind}s"
    return f"{kind if total == 1 else several} {names}{more}"
