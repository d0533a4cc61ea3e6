"""Forms of the inventory. They check and clean; saving is the services' part."""

from typing import Any

from django import forms
from django.http import HttpRequest

from engine.cluster.gpus import catalogue
from engine.cluster.regions import countries
from webapp.accounts.forms import team_field
from webapp.accounts.models import OPERATORS, Team
from webapp.common.editing import EditForm
from webapp.common.formkit import PlainSelect, Sectioned, limit
from webapp.inventory import services
from webapp.inventory.catalogue import known_countries, region_notes, region_values
from webapp.inventory.models import DataCenter, FabricKind, GpuPool, WanLink
from webapp.inventory.models.limits import time_zones


def gpu_types() -> list[tuple[str, str]]:
    """The catalogue's GPU types as choices."""
    return [(name, f"{name} · {gpu.label}") for name, gpu in sorted(catalogue().items())]


class InventoryForm(Sectioned, EditForm):
    """Base of the inventory's forms."""

    @classmethod
    def given(cls, request: HttpRequest) -> dict[str, Any]:
        """What the address of the form for a new thing fills in."""
        return {name: request.GET[name] for name in cls.base_fields if name in request.GET}

    def notes(self) -> list[str]:
        """Where values that nobody has typed in are from."""
        return []

    def save_as(self, user: Any) -> Any:
        """Create or change the thing in the name of `user`; raises as `services.save` does."""
        return services.save(user, self.instance)


class DataCenterForm(InventoryForm):
    """A data centre; a new one with its first GPU pool, further ones have their own form."""

    country = forms.ChoiceField(
        choices=lambda: [
            ("", "–"),
            *((code, f"{name} ({code})") for code, name in known_countries(countries())),
        ],
        required=False,
        widget=PlainSelect,
        help_text="The law of this country applies to data stored or processed there.",
    )
    time_zone = forms.ChoiceField(
        label="Time zone",
        choices=lambda: [("", "–"), *((zone, zone) for zone in time_zones())],
        required=False,
        widget=PlainSelect,
    )
    gpu_type = forms.ChoiceField(label="GPU type", choices=gpu_types)
    price_per_gpu_hour = forms.DecimalField(
        label="Price, $/GPU h", min_value=0, max_digits=10, decimal_places=4, initial=0
    )
    layout = [
        ("Data centre", "", ["team", "name", "place", "country", "time_zone"]),
        ("Network inside", "", ["intra_gbps", "fabric", "hb_domain"]),
        ("GPUs", "Nodes report how many there are", ["gpu_type", "price_per_gpu_hour"]),
        ("On the map", "Leave empty to set the location later", ["latitude", "longitude"]),
    ]

    class Meta:
        model = DataCenter
        fields = [
            "name",
            "place",
            "country",
            "time_zone",
            "intra_gbps",
            "fabric",
            "hb_domain",
            "latitude",
            "longitude",
        ]
        labels = {
            "intra_gbps": "Bandwidth inside, Gbit/s",
            "hb_domain": "GPUs per HB domain",
            "latitude": "Latitude, °",
            "longitude": "Longitude, °",
        }
        help_texts = {
            "name": "For example us-east.",
            "intra_gbps": "Between two nodes of this data centre, on rails of one GPU. Activations "
            "and the all-reduce use it.",
            "fabric": "Rails join GPUs of equal number in their HB domains. Plans then count an all-reduce "
            "inside the domains and along the rails.",
            "hb_domain": "GPUs that a fast network joins, such as NVLink in a node. Leave empty without "
            "rails.",
        }

    def __init__(self, *args: Any, user: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        if self.instance.pk is None:  # a data centre stays with its team
            team_field(self, user)
        else:
            del self.fields["gpu_type"], self.fields["price_per_gpu_hour"]

    @classmethod
    def given(cls, request: HttpRequest) -> dict[str, Any]:
        """`?region=aws:eu-north-1&gpu_type=h100` fills in what the catalogue knows of that region."""
        return region_values(request.GET.get("region", ""), request.GET.get("gpu_type", ""))

    def notes(self) -> list[str]:
        return region_notes(self.initial)

    def save_as(self, user: Any) -> DataCenter:
        """Create or change the data centre in the name of `user`."""
        if self.instance.pk is not None:
            return services.save(user, self.instance)
        pool = GpuPool(
            gpu_type=self.cleaned_data["gpu_type"], price_per_gpu_hour=self.cleaned_data["price_per_gpu_hour"]
        )
        return services.create_datacenter(user, self.instance, pool)

    def clean(self) -> dict[str, Any]:
        cleaned = super().clean() or {}
        if "team" in cleaned:
            self.instance.team = cleaned["team"]
        if cleaned.get("fabric"):
            self._check_domain(cleaned["fabric"], cleaned.get("hb_domain"))
        if (cleaned.get("latitude") is None) != (cleaned.get("longitude") is None):
            self.add_error("longitude", "Enter both latitude and longitude, or neither.")
        return cleaned

    def _check_domain(self, fabric: str, hb_domain: int | None) -> None:
        has_rails = fabric != FabricKind.ANY_TO_ANY
        if "hb_domain" in self.errors or has_rails == (hb_domain is not None):
            return
        if has_rails:
            self.add_error("hb_domain", "Enter the GPUs per HB domain: rails join equal GPUs of the domains.")
        else:
            self.add_error("hb_domain", "Leave it empty with any-to-any, or choose a fabric with rails.")


class PoolForm(InventoryForm):
    """Another GPU type in a data centre, or another price of one."""

    gpu_type = forms.ChoiceField(label="GPU type", choices=gpu_types)
    layout = [("GPU pool", "Nodes report how many there are", ["dc", "gpu_type", "price_per_gpu_hour"])]

    class Meta:
        model = GpuPool
        fields = ["dc", "gpu_type", "price_per_gpu_hour"]
        labels = {"price_per_gpu_hour": "Price, $/GPU h"}

    def __init__(self, *args: Any, user: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        limit(self, ["dc"], DataCenter.objects.filter(team__in=Team.objects.with_role(user, OPERATORS)))
        if self.instance.pk is not None:  # nodes and plans know it by both
            self.fields["dc"].disabled = self.fields["gpu_type"].disabled = True


class LinkForm(InventoryForm):
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
            "bandwidth_gbps": "Bandwidth per node pair, Gbit/s",
            "connections": "TCP connections per node pair",
            "egress_price_per_gb": "Egress, $/GB",
        }
        help_texts = {
            "connections": "Leave empty for as many as the bandwidth needs at this latency. Enter 1 for a "
            "single connection."
        }

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
        first, second = sorted((a, b), key=lambda dc: dc.pk)
        if first == second:
            self.add_error("b", "A link joins two different data centres.")
        elif a.team_id != b.team_id:
            self.add_error("b", f"{a} and {b} belong to different teams.")
        elif WanLink.objects.filter(a=first, b=second).exclude(pk=self.instance.pk).exists():
            self.add_error("b", f"A link between {a} and {b} exists already.")
        else:
            cleaned["a"], cleaned["b"] = first, second
        return cleaned
