from django.apps import AppConfig

from webapp.common import dependants, search
from webapp.common.navigation import Entry, register


class InventoryConfig(AppConfig):
    name = "webapp.inventory"

    def ready(self) -> None:
        from webapp.accounts.models import READERS
        from webapp.inventory.models import DataCenter, Node, WanLink
        from webapp.inventory.search import KINDS
        from webapp.inventory.selectors.datacenters import links_of, nodes_in

        dependants.register(
            dependants.Dependants(order=20, kind="node", rows=nodes_in),
            dependants.Dependants(order=30, kind="link", rows=links_of),
        )
        register(
            Entry(
                order=120,
                name="datacenters",
                label="Data centres",
                address="inventory:datacenter-list",
                roles=READERS,
                rows=DataCenter.objects.visible_to,
            ),
            Entry(
                order=130,
                name="nodes",
                label="Nodes",
                address="inventory:node-list",
                roles=READERS,
                rows=Node.objects.visible_to,
            ),
            Entry(
                order=140,
                name="links",
                label="Links",
                address="inventory:link-list",
                roles=READERS,
                rows=WanLink.objects.visible_to,
            ),
            Entry(order=150, name="map", label="Map", address="inventory:map", roles=READERS),
            Entry(
                order=160,
                name="gpu-types",
                label="GPU types",
                address="inventory:gputype-list",
                roles=READERS,
            ),
        )
        search.register(*KINDS)
