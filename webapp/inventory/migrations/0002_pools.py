"""GPU types and prices move from data centres to pools, so that one site may have GPUs of several types."""

from typing import Any

import django.core.validators
import django.db.models.deletion
from django.db import migrations, models

import webapp.inventory.models.limits

# One pair, one row: a node stands in a pool of its own data centre. Django has no key of two columns.
SAME_DC = """
ALTER TABLE inventory_gpupool ADD CONSTRAINT gpupool_id_dc_unique UNIQUE (id, dc_id);
ALTER TABLE inventory_node ADD CONSTRAINT node_pool_of_dc FOREIGN KEY (pool_id, dc_id)
    REFERENCES inventory_gpupool (id, dc_id) DEFERRABLE INITIALLY DEFERRED;
"""
NOT_SAME_DC = """
ALTER TABLE inventory_node DROP CONSTRAINT node_pool_of_dc;
ALTER TABLE inventory_gpupool DROP CONSTRAINT gpupool_id_dc_unique;
"""


def one_pool_each(apps: Any, schema_editor: Any) -> None:
    """Every data centre gets the pool that it was, and its nodes stand in it."""
    pool_class = apps.get_model("inventory", "GpuPool")
    for dc in apps.get_model("inventory", "DataCenter").objects.all():
        pool = pool_class.objects.create(
            dc=dc, gpu_type=dc.gpu_type, price_per_gpu_hour=dc.price_per_gpu_hour
        )
        dc.nodes.update(pool=pool)


def first_pool_back(apps: Any, schema_editor: Any) -> None:
    """A data centre is its first pool again; further ones are lost, as there is no room for them."""
    for dc in apps.get_model("inventory", "DataCenter").objects.all():
        pool = dc.pools.order_by("pk").first()
        if pool:
            dc.gpu_type, dc.price_per_gpu_hour = pool.gpu_type, pool.price_per_gpu_hour
            dc.save()


def no_events_pending(apps: Any, schema_editor: Any) -> None:
    """PostgreSQL alters no table whose deferred checks are still due."""
    schema_editor.execute("SET CONSTRAINTS ALL IMMEDIATE")


class Migration(migrations.Migration):
    dependencies = [("inventory", "0001_initial")]

    operations = [
        migrations.AddField(
            model_name="datacenter",
            name="country",
            field=models.CharField(
                blank=True, max_length=2, validators=[webapp.inventory.models.limits.known_country]
            ),
        ),
        migrations.AddField(
            model_name="datacenter",
            name="time_zone",
            field=models.CharField(
                blank=True, max_length=40, validators=[webapp.inventory.models.limits.known_time_zone]
            ),
        ),
        migrations.CreateModel(
            name="GpuPool",
            fields=[
                (
                    "id",
                    models.BigAutoField(
                        auto_created=True, primary_key=True, serialize=False, verbose_name="ID"
                    ),
                ),
                (
                    "gpu_type",
                    models.CharField(
                        max_length=40,
                        validators=[webapp.inventory.models.limits.known_gpu_type],
                        verbose_name="GPU type",
                    ),
                ),
                (
                    "price_per_gpu_hour",
                    models.DecimalField(
                        decimal_places=4,
                        default=0,
                        max_digits=10,
                        validators=[django.core.validators.MinValueValidator(0)],
                    ),
                ),
                ("created_at", models.DateTimeField(auto_now_add=True)),
                (
                    "dc",
                    models.ForeignKey(
                        on_delete=django.db.models.deletion.CASCADE,
                        related_name="pools",
                        to="inventory.datacenter",
                        verbose_name="data centre",
                    ),
                ),
            ],
            options={"verbose_name": "GPU pool", "ordering": ["dc__name", "gpu_type"]},
        ),
        migrations.AddConstraint(
            model_name="gpupool",
            constraint=models.UniqueConstraint(
                fields=("dc", "gpu_type"),
                name="gpupool_type_unique",
                violation_error_message="The data centre has a pool of this GPU type already.",
            ),
        ),
        migrations.AddConstraint(
            model_name="gpupool",
            constraint=models.CheckConstraint(
                condition=models.Q(("price_per_gpu_hour__gte", 0)), name="gpupool_price_not_negative"
            ),
        ),
        migrations.AddField(
            model_name="node",
            name="pool",
            field=models.ForeignKey(
                null=True,
                on_delete=django.db.models.deletion.PROTECT,
                related_name="nodes",
                to="inventory.gpupool",
                verbose_name="GPU pool",
            ),
        ),
        migrations.RemoveConstraint(model_name="datacenter", name="datacenter_price_not_negative"),
        # Without a type nobody can be asked on the way back: any that the catalogue has stands in until the data is moved.
        migrations.AlterField(
            model_name="datacenter",
            name="gpu_type",
            field=models.CharField(max_length=40, default="a100-80g"),
        ),
        migrations.RunPython(one_pool_each, first_pool_back),
        migrations.RunPython(no_events_pending, no_events_pending),
        migrations.RemoveField(model_name="datacenter", name="gpu_type"),
        migrations.RemoveField(model_name="datacenter", name="price_per_gpu_hour"),
        migrations.AlterField(
            model_name="node",
            name="pool",
            field=models.ForeignKey(
                on_delete=django.db.models.deletion.PROTECT,
                related_name="nodes",
                to="inventory.gpupool",
                verbose_name="GPU pool",
            ),
        ),
        migrations.RunSQL(SAME_DC, NOT_SAME_DC),
    ]
