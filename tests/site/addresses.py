"""The addresses of all pages about what a database holds, for whoever opens them one after the other."""

from django.urls import reverse

from tests.site.access import ACCESS
from tests.site.world import World
from webapp.accounts.models import Membership, Team
from webapp.inventory.models import DataCenter, Node, WanLink
from webapp.jobs.models import Run
from webapp.planning.models import Plan


def world_of_database() -> World:
    """What is in the database, as a world; as much of it as is there."""
    team = Team.objects.order_by("pk").first()
    assert team
    members = Membership.objects.filter(team=team).select_related("user").order_by("-pk")
    users = {str(member.role): member.user for member in members}
    dcs = list(DataCenter.objects.filter(team=team).order_by("pk"))
    link, plan = WanLink.objects.order_by("pk").first(), Plan.objects.order_by("pk").first()
    nodes = list(Node.objects.filter(dc__team=team).order_by("pk"))
    return World(team=team, users=users, dcs=dcs, nodes=nodes, link=link, plan=plan)  # type: ignore[arg-type]


def addresses(world: World) -> dict[str, str]:
    """URL name → address, of all that answers to GET about what `world` has (ACCESS knows every address)."""
    run = Run.objects.order_by("pk").first()
    if run:
        world.launch = lambda: run  # type: ignore[method-assign]  # the same run for all addresses
    by_name = {}
    for name, access in ACCESS.items():
        if access.get is None:
            continue
        try:
            by_name[name] = reverse(name, kwargs=access.args(world))
        except Exception as error:
            # Without data centres there is no page of one, and without a viewer no page of theirs.
            if not world.dcs or isinstance(error, KeyError):
                continue
            if not isinstance(error, AssertionError):
                raise
            by_name[name] = reverse(name, kwargs={"pk": world.launch().pk})  # it trains already
    return by_name
