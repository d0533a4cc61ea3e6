"""GPU pools: the GPUs of one type in one data centre, at one price."""

from __future__ import annotations

from django.core.validators import MinValueValidator
from django.db import models
from django.db.models import Q
from django.db.models.functions import Coalesce

from engine.cluster.gpus import Gpu, gpu
from webapp.accounts.models import OfTeamQuerySet
from webapp.inventory.models.datacenter import DataCenter
from webapp.inventory.models.limits import known_gpu_type


class GpuPoolQuerySet(OfTeamQuerySet["GpuPool"]):
    TEAM = "dc__team"

    def with_counts(self, device: str | None = None) -> GpuPoolQuerySet:
        """Adds `node_count` and `gpu_count`; sorted, for the model's ordering ends where rows are grouped.

        device : of the nodes that count; None: all of them.
        """
        counts = models.Q(nodes__device=device) if device else None
        return self.annotate(
            node_count=models.Count("nodes", filter=counts),
            gpu_count=Coalesce(models.Sum("nodes__gpus", filter=counts), 0),
        ).order_by("dc__name", "gpu_type")


class GpuPool(models.Model):
    """The GPUs of one type in one data centre; its nodes say how many there are."""

    dc = models.ForeignKey(
        DataCenter, on_delete=models.CASCADE, related_name="pools", verbose_name="data centre"
    )
    gpu_type = models.CharField("GPU type", max_length=40, validators=[known_gpu_type])
    price_per_gpu_hour = models.DecimalField(
        max_digits=10, decimal_places=4, default=0, validators=[MinValueValidator(0)]
    )
    created_at = models.DateTimeField(auto_now_add=True)

    objects = GpuPoolQuerySet.as_manager()

    class Meta:
        ordering = ["dc__name", "gpu_type"]
        verbose_name = "GPU pool"
        constraints = [
            models.UniqueConstraint(
                fields=["dc", "gpu_type"],
                name="gpupool_type_unique",
                violation_error_message="The data centre has a pool of this GPU type already.",
            ),
            models.CheckConstraint(condition=Q(price_per_gpu_hour__gte=0), name="gpupool_price_not_negative"),
        ]

    def __str__(self) -> str:
        return f"{self.dc}:{self.gpu_type}"

    @property
    def gpu(self) -> Gpu:
        """What one of its GPUs can do. Raises InputError where the catalogue has lost the type."""
        return gpu(self.gpu_type)
