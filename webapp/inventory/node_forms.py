"""Forms about nodes: what they are, and what becomes of their runs when they drain."""

from typing import Any

from django import forms

from webapp.accounts.models import OPERATORS, Team
from webapp.common.formkit import limit
from webapp.inventory import services
from webapp.inventory.forms import InventoryForm
from webapp.inventory.models import GpuPool, Node, free_ports


class NodeForm(InventoryForm):
    layout = [
        ("Node", "", ["name", "pool"]),
        ("Hardware", "The machine reports its own when it joins", ["gpus", "device"]),
        ("Network", "The address at which other nodes reach it", ["host", "port_from", "port_to"]),
    ]

    class Meta:
        model = Node
        fields = ["name", "pool", "gpus", "device", "host", "port_from", "port_to"]
        labels = {"host": "Address", "port_from": "First port", "port_to": "Last port"}
        help_texts = {
            "name": "Also the name of the node's broker user and queue. It cannot be changed later.",
            "host": "Host name or IP address. A machine that joins reports its own.",
            "port_from": "Leave empty for a free range on this host. Firewalls must allow these ports.",
        }

    def __init__(self, *args: Any, user: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        pools = GpuPool.objects.select_related("dc")
        limit(self, ["pool"], pools.filter(dc__team__in=Team.objects.with_role(user, OPERATORS)))
        for name in ("port_from", "port_to"):
            self.fields[name].required = False
            self.fields[name].initial = None
            if self.instance.pk is None:
                self.initial.pop(name, None)
        if self.instance.pk is not None:
            self.fields["name"].disabled = True
            limit(self, ["pool"], pools.filter(dc__team=self.instance.dc.team))

    def clean(self) -> dict[str, Any]:
        cleaned = super().clean() or {}
        if cleaned.get("pool"):
            self.instance.dc = cleaned["pool"].dc
        first, last = cleaned.get("port_from"), cleaned.get("port_to")
        if (first is None) != (last is None) and not {"port_from", "port_to"} & self.errors.keys():
            self.add_error("port_to", "Enter both the first and the last port, or neither.")
        elif first is None and cleaned.get("host") and cleaned.get("gpus"):
            ports = free_ports(cleaned["host"], cleaned["gpus"], but=self.instance.pk)
            cleaned["port_from"], cleaned["port_to"] = ports
        elif first is not None and last is not None and first > last:
            self.add_error("port_to", f"Must not be less than the first port, {first}.")
        return cleaned


class DrainForm(forms.Form):
    """What becomes of the runs that are on a node or in a data centre."""

    runs = forms.ChoiceField(
        label="Running runs",
        choices=services.DrainRuns.choices,
        widget=forms.RadioSelect,
        initial=services.DrainRuns.FINISH,
    )
