"""Forms of the inventory. They check and clean; saving is the services' part."""

from typing import Any

from django import forms

from engine.cluster.gpus import catalogue
from webapp.accounts.models import OPERATORS, Team
from webapp.formkit import Sectioned, limit, team_field
from webapp.inventory.models import DataCenter, Node, WanLink


class DataCenterForm(Sectioned, forms.ModelForm):
    gpu_type = forms.ChoiceField(
        label="GPU type", choices=lambda: [(name, name) for name in sorted(catalogue())]
    )
    layout = [
        ("Data centre", "", ["team", "name", "place"]),
        ("GPUs", "Nodes say how many there are", ["gpu_type", "price_per_gpu_hour", "intra_gbps"]),
        ("On the map", "Empty: placed by hand", ["latitude", "longitude"]),
    ]

    class Meta:
        model = DataCenter
        fields = ["name", "place", "gpu_type", "price_per_gpu_hour", "intra_gbps", "latitude", "longitude"]
        labels = {
            "price_per_gpu_hour": "Price, $/GPU h",
            "intra_gbps": "Bandwidth inside, Gbit/s",
            "latitude": "Latitude, °",
            "longitude": "Longitude, °",
        }
        help_texts = {
            "name": "As in us-east.",
            "intra_gbps": "Between two nodes of this data centre; data-parallel all-reduce runs over it.",
        }

    def __init__(self, *args: Any, user: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        if self.instance.pk is None:  # a data centre stays with its team
            team_field(self, user)

    def clean(self) -> dict[str, Any]:
        cleaned = super().clean() or {}
        if "team" in cleaned:
            self.instance.team = cleaned["team"]
        if (cleaned.get("latitude") is None) != (cleaned.get("longitude") is None):
            self.add_error("longitude", "Give both latitude and longitude, or neither.")
        return cleaned


class NodeForm(Sectioned, forms.ModelForm):
    layout = [
        ("Node", "", ["name", "dc"]),
        ("Hardware", "", ["gpus", "device"]),
        ("Network", "", ["host"]),
    ]

    class Meta:
        model = Node
        fields = ["name", "dc", "gpus", "device", "host"]
        labels = {"host": "Address"}
        help_texts = {
            "name": "Its broker user and queue carry this name; it cannot be changed later.",
            "host": "Host name or IP address under which other nodes reach it.",
        }

    def __init__(self, *args: Any, user: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        limit(self, ["dc"], DataCenter.objects.filter(team__in=Team.objects.with_role(user, OPERATORS)))
        if self.instance.pk is not None:
            self.fields["name"].disabled = True
            limit(self, ["dc"], DataCenter.objects.filter(team=self.instance.dc.team))


class LinkForm(Sectioned, forms.ModelForm):
    layout = [
        ("Between", "", ["a", "b"]),
        ("Network", "The same in both directions", ["latency_ms", "bandwidth_gbps", "connections"]),
        ("Price", "", ["egress_price_per_gb"]),
    ]

    class Meta:
        model = WanLink
        fields = ["a", "b", "latency_ms", "bandwidth_gbps", "connections", "egress_price_per_gb"]
        labels = {
            "a": "Data centre",
            "b": "and data centre",
            "latency_ms": "Latency one way, ms",
            "bandwidth_gbps": "Bandwidth a node pair, Gbit/s",
            "connections": "TCP connections a node pair",
            "egress_price_per_gb": "Egress, $/GB",
        }
        help_texts = {"connections": "Empty: as many as the bandwidth takes at this latency. 1: single TCP."}

    def __init__(self, *args: Any, user: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        limit(self, ["a", "b"], DataCenter.objects.filter(team__in=Team.objects.with_role(user, OPERATORS)))
        if self.instance.pk is not None:
            self.fields["a"].disabled = self.fields["b"].disabled = True

    def clean(self) -> dict[str, Any]:
        cleaned = super().clean() or {}
        a, b = cleaned.get("a"), cleaned.get("b")
        if not a or not b:
            return cleaned
        if a == b:
            self.add_error("b", "A link joins two different data centres.")
        elif a.team_id != b.team_id:
            self.add_error("b", f"{a} and {b} belong to different teams.")
        elif a.pk > b.pk:
            cleaned["a"], cleaned["b"] = b, a
        pair = WanLink.objects.filter(a=cleaned["a"], b=cleaned["b"]).exclude(pk=self.instance.pk)
        if pair.exists():
            self.add_error("b", f"There is a link between {a} and {b} already.")
        return cleaned
