"""What a plan counted on and is not there: no longer in the inventory, or not joined yet.

A plan keeps what it counted on by value and protects nothing.
"""

from collections import defaultdict

from webapp.inventory.models import Device, Node, WanLink
from webapp.inventory.selectors import pools, several
from webapp.planning.models import Plan


def missing(plan: Plan) -> list[str]:
    """GPU pools and links of the plan's document that are no longer there, in words; two queries."""
    names = [dc["name"] for dc in plan.request["datacenters"]]
    pools_by_name = pools(plan.team, names)
    sites = {name: pool.dc_id for name, pool in pools_by_name.items()}
    rows = WanLink.objects.filter(a__in=set(sites.values()), b__in=set(sites.values()))
    joined = {frozenset(pair) for pair in rows.values_list("a", "b")}
    links = [link["between"] for link in plan.request.get("links", [])]
    return [
        *(f"GPU pool {name}" for name in names if name not in pools_by_name),
        *(f"link {a} – {b}" for a, b in links if _is_gone(a, b, sites, joined)),
    ]


def to_join(plan: Plan) -> list[str]:
    """What must come before the GPUs that a plan counts are there, pool by pool in words; two queries.

    GPUs count that are of the device that a launch trains on, on nodes that have joined; of a plan that says
    nothing of a launch, those of any device.
    """
    pools_by_name = pools(plan.team, [dc["name"] for dc in plan.request["datacenters"]])
    nodes: dict[int, list[Node]] = defaultdict(list)
    rows = Node.objects.filter(pool__in={pool.pk for pool in pools_by_name.values()}).order_by("name")
    for node in rows.only("name", "pool", "gpus", "device", "acl_sha256"):
        nodes[node.pool_id].append(node)
    device = plan.training["device"] if plan.training else None
    counted = ((dc["name"], dc["gpus"]) for dc in plan.request["datacenters"] if dc["name"] in pools_by_name)
    return [
        text for name, gpus in counted if (text := _lacks(name, gpus, nodes[pools_by_name[name].pk], device))
    ]


def _lacks(name: str, gpus: int, nodes: list[Node], device: str | None) -> str:
    """What the pool called `name` lacks of the `gpus` that were counted; empty where it has them."""
    usable = [node for node in nodes if device in (None, node.device)]
    joined = sum(node.gpus for node in usable if node.is_enrolled)
    if joined >= gpus:
        return ""
    label = f"{Device(device).label}s" if device else "GPUs"
    text = f"{joined} of the {gpus} {label} counted in {name} have joined"
    if waiting := several(node.name for node in usable if not node.is_enrolled):
        text += f"; {waiting} must join first"
    others = sum(node.gpus for node in nodes) - sum(node.gpus for node in usable)
    return f"{text}; {others} of another device do not count" if others else text


def _is_gone(a: str, b: str, sites: dict[str, int], joined: set[frozenset[int]]) -> bool:
    """Whether two pools that are there are no longer joined; those of one data centre need no link."""
    ends = {sites.get(a), sites.get(b)}
    return None not in ends and len(ends) == 2 and ends not in joined
