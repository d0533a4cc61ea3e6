"""What a plan counted on and the inventory no longer has. A plan keeps it by value and protects nothing."""

from webapp.inventory.models import WanLink
from webapp.inventory.selectors import pools
from webapp.planning.models import Plan


def missing(plan: Plan) -> list[str]:
    """GPU pools and links of the plan's document that are no longer there, in words; two queries."""
    names = [dc["name"] for dc in plan.request["datacenters"]]
    known = pools(plan.team, names)
    sites = {name: pool.dc_id for name, pool in known.items()}
    rows = WanLink.objects.filter(a__in=set(sites.values()), b__in=set(sites.values()))
    joined = {frozenset(pair) for pair in rows.values_list("a", "b")}
    return [
        *(f"GPU pool {name}" for name in names if name not in known),
        *(f"link {a} – {b}" for a, b in _links(plan) if _is_gone(a, b, sites, joined)),
    ]


def _links(plan: Plan) -> list[list[str]]:
    return [link["between"] for link in plan.request.get("links", [])]


def _is_gone(a: str, b: str, sites: dict[str, int], joined: set[frozenset[int]]) -> bool:
    """Whether two pools that are there are no longer joined; those of one data centre need no link."""
    ends = {sites.get(a), sites.get(b)}
    return None not in ends and len(ends) == 2 and ends not in joined
