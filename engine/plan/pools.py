"""Data centres with GPUs of several types: each pool of one type is planned as a data centre of its own.

The pools of one data centre are joined by the network that all its nodes share, and each has the data
centre's links. So the site plans the pools of its inventory.
"""

import itertools
from collections.abc import Callable
from typing import Any

from engine.errors import InputError

# Fields of a pool; a data centre with pools has the others.
MOST_POOLS = 16
MOST_LINKS = 1_000_000
OF_A_POOL = ("gpus", "gpu_type", "price_per_gpu_hour", "link_gb_s", "profiled_gpu")


def with_pools(
    document: dict[str, Any], check: Callable[[dict[str, Any], str], object], intra_gbps: float
) -> dict[str, Any]:
    """The document of a plan, its data centres with `pools` as one for each pool, called `name:gpu_type`.

    Links, `order` and `allowed` that name such a data centre then name all its pools.

    Parameters
    ----------
    check : raises InputError if its first argument is no data centre; the second is its path.
    intra_gbps : of a data centre that gives none.

    Raises
    ------
    InputError
        A pool that is none, or a field that belongs into the other of the two.
    """
    sites = document.get("datacenters")
    if not isinstance(sites, list) or not any(isinstance(dc, dict) and "pools" in dc for dc in sites):
        return document
    datacenters, inside = [], []
    pools_of: dict[Any, list[str]] = {}
    for i, dc in enumerate(sites):
        if not isinstance(dc, dict) or "pools" not in dc:
            datacenters.append(dc)
            continue
        pools = _pools(dc, f"datacenters[{i}]", check)
        datacenters += pools
        name = dc["name"].strip()
        pools_of[name] = [pool["name"] for pool in pools]
        network = {
            "latency_ms": dc.get("intra_latency_ms", 0.0),
            "bandwidth_gbps": dc.get("intra_gbps") or intra_gbps,
        }
        inside += [{"between": list(pair), **network} for pair in itertools.combinations(pools_of[name], 2)]
    changed: dict[str, Any] = {
        "datacenters": datacenters,
        "links": [*_links(document.get("links") or [], pools_of), *inside],
    }
    for field in ("order", "allowed"):
        if isinstance(document.get(field), list):
            changed[field] = [pool for name in document[field] for pool in _named(name, pools_of)]
    return {**document, **changed}


def _pools(
    dc: dict[str, Any], at: str, check: Callable[[dict[str, Any], str], object]
) -> list[dict[str, Any]]:
    """The data centres in place of `dc`."""
    pools, shared = dc["pools"], {name: value for name, value in dc.items() if name != "pools"}
    is_list = isinstance(pools, list) and all(isinstance(pool, dict) for pool in pools)
    if not is_list or not 1 <= len(pools) <= MOST_POOLS:
        allowed = f"must be a list of 1 to {MOST_POOLS} of {{gpus, gpu_type, price_per_gpu_hour}}"
        raise InputError(f"{at}.pools", pools, allowed)
    for name in OF_A_POOL:
        if name in dc:
            raise InputError(f"{at}.{name}", dc[name], "write it in each of the pools")
    single, called = len(pools) == 1, set()
    expanded = []
    for j, pool in enumerate(pools):
        for name in pool:
            if name not in OF_A_POOL:
                allowed = "unknown field of a pool: allowed: " + ", ".join(OF_A_POOL)
                raise InputError(f"{at}.pools[{j}].{name}", pool[name], allowed)
        check({**shared, **pool}, f"{at}.pools[{j}]")
        kind = pool["gpu_type"] if isinstance(pool["gpu_type"], str) else str(j + 1)
        if kind in called:
            raise InputError(f"{at}.pools[{j}].gpu_type", kind, "another pool has this type: make them one")
        called.add(kind)
        expanded.append({**shared, **pool, "name": dc["name"] if single else f"{dc['name'].strip()}:{kind}"})
    return expanded


def _links(links: Any, pools_of: dict[Any, list[str]]) -> list[Any]:
    """Each link in its place, between the first pools of its ends; those between further pools after all."""
    first: list[Any] = []
    further: list[Any] = []
    for link in links if isinstance(links, list) else [links]:
        ends = link.get("between") if isinstance(link, dict) else None
        if not isinstance(ends, list) or len(ends) != 2:
            first.append(link)  # which is refused in its place
            continue
        each, *rest = itertools.product(*(_named(end, pools_of) for end in ends))
        if len(further) + len(rest) > MOST_LINKS:
            allowed = f"with the pools of their ends they are more than {MOST_LINKS:,}"
            raise InputError("links", f"{len(links):,} links", allowed)
        first.append({**link, "between": list(each)})
        further += [{**link, "between": list(pair)} for pair in rest]
    return first + further


def _named(name: Any, pools_of: dict[Any, list[str]]) -> list[Any]:
    return pools_of.get(name.strip(), [name]) if isinstance(name, str) else [name]
