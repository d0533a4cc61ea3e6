"""Which node shows the first samples of a job that is about to be launched: one that would read them."""

from typing import Any

from engine.errors import InputError
from engine.job.locations import device_of, pool_of_rank
from webapp.accounts.models import Team
from webapp.inventory.models import Node, SamplePreview
from webapp.inventory.selectors import pools
from webapp.inventory.services import preview_samples
from webapp.jobs.dry import data_words
from webapp.jobs.gpu_inventory import GpuInventory, GpuOfRank
from webapp.planning.document import site_job


def preview_of(
    actor: Any, team: Team, document: dict[str, Any], gpu_of_rank: GpuOfRank = ()
) -> SamplePreview:
    """Ask a node for the first samples of a job, for `actor`.

    Raises
    ------
    PermissionDenied
        `actor` is no operator of the team.
    InputError
        No node of the first stage answers now.
    """
    name = pool_of_rank(document)[0]
    node = _first_node(team, document, gpu_of_rank, name)
    return preview_samples(actor, node, document, reads=data_words(site_job(document)), dc=name)


def _first_node(team: Team, document: dict[str, Any], gpu_of_rank: GpuOfRank, name: str) -> Node:
    """The node of rank 0 where that is known; else one of its pool, rather one with an idle GPU."""
    pool = pools(team, [name]).get(name)
    nodes = Node.objects.online().exclude(acl_sha256="").filter(pool=pool, device=device_of(document))
    if gpu_of_rank:
        nodes = nodes.filter(name=gpu_of_rank[0][0])
    idle = [node.pk for node, _ in GpuInventory([(team.pk, document)]).idle(team.pk, document).get(name, [])]
    rows = nodes.select_related("dc__team").order_by("name")
    node = rows.filter(pk__in=idle).first() or rows.first()
    if node is None:
        where = gpu_of_rank[0][0] if gpu_of_rank else name
        allowed = "no node there answers now, and the first stage would read the data there: try again later"
        raise InputError("samples", where, allowed)
    return node
