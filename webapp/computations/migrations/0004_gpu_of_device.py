"""The seats of a placement's network become what they are: the GPU of each device."""

from django.db import migrations

OLD, NEW = "seats", "gpu_of_device"


def _renamed(apps, schema_editor, old, new):
    """Call the GPUs `new` in all networks that call them `old`."""
    rows = apps.get_model("computations", "Computation").objects.using(schema_editor.connection.alias)
    for row in rows.filter(kind="placement", request__network__has_key=old).only("request").iterator():
        network = {new if name == old else name: value for name, value in row.request["network"].items()}
        row.request = {**row.request, "network": network}
        row.save(update_fields=["request"])


def name_gpus(apps, schema_editor):
    """Rename in the requests of all placements."""
    _renamed(apps, schema_editor, OLD, NEW)


def name_seats(apps, schema_editor):
    """The way back."""
    _renamed(apps, schema_editor, NEW, OLD)


class Migration(migrations.Migration):
    dependencies = [("computations", "0003_search")]
    operations = [migrations.RunPython(name_gpus, name_seats)]
