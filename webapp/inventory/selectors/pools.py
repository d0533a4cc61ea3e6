"""Names of GPU pools in plans and job documents: `<dc>` where it is alone there, else `<dc>:<gpu_type>`."""

from collections import defaultdict
from collections.abc import Iterable

from webapp.accounts.models import Team
from webapp.inventory.models import DataCenter, GpuPool

MOST_NAMED = 3  # nodes or GPUs that a sentence names


def pools(team: Team, names: Iterable[str]) -> dict[str, GpuPool]:
    """The pools of `team` that `names` mean; a name that means none is left out. See `pools_of_teams`."""
    return {name: pool for (_, name), pool in pools_of_teams((team.pk, name) for name in names).items()}


def pools_of_teams(team_names: Iterable[tuple[int, str]]) -> dict[tuple[int, str], GpuPool]:
    """The pools that names mean, by team's id and name, in one query. Pools come with `dc`.

    The bare name of a data centre that has got further pools since means its first: the one that the name
    was written for.
    """
    pairs = list(dict.fromkeys(team_names))
    names = {datacenter_name(name) for _, name in pairs}
    rows = GpuPool.objects.filter(dc__team__in={team for team, _ in pairs}, dc__name__in=names)
    by_dc: dict[tuple[int, str], list[GpuPool]] = defaultdict(list)
    for pool in rows.select_related("dc").order_by("pk"):
        by_dc[pool.dc.team_id, pool.dc.name].append(pool)
    by_pair = {}
    for team, name in pairs:
        dc, _, gpu_type = name.partition(":")
        fitting = [pool for pool in by_dc[team, dc] if gpu_type in ("", pool.gpu_type)]
        if fitting:
            by_pair[team, name] = fitting[0]
    return by_pair


def named_pools(dcs: Iterable[DataCenter], device: str | None = None) -> dict[str, GpuPool]:
    """Every pool of `dcs`, in their order, by its name in plans; with `dc`, `node_count`, `gpu_count`.

    device : of the nodes that count; None: all of them.

    Algorithm 1 fills data centres that are alike in the order in which they are listed.
    """
    at = {dc.pk: place for place, dc in enumerate(dcs)}
    rows = list(GpuPool.objects.filter(dc__in=at).select_related("dc").with_counts(device))
    rows.sort(key=lambda pool: at[pool.dc_id])  # of one data centre they stay sorted by GPU type
    here: dict[int, int] = defaultdict(int)
    for pool in rows:
        here[pool.dc_id] += 1
    return {pool.dc.name if here[pool.dc_id] == 1 else str(pool): pool for pool in rows}


def datacenter_name(name: str) -> str:
    """The data centre of the pool that a plan calls `name`."""
    return name.partition(":")[0]


def several(names: Iterable[str]) -> str:
    """The first few of `names` of nodes or GPUs, each once, and how many more there are."""
    unique = list(dict.fromkeys(names))
    more = f" and {len(unique) - MOST_NAMED} more" if len(unique) > MOST_NAMED else ""
    return ", ".join(unique[:MOST_NAMED]) + more
