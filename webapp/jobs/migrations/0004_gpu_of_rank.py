"""Seats become what they are: the GPU of each rank of a job, the position of each rank of a smaller layout."""

from django.db import migrations

OLD, NEW = "seats", "position_of_rank"


def _renamed(apps, schema_editor, old, new):
    """Call the positions `new` in all cuts that call them `old`."""
    runs = apps.get_model("jobs", "Run").objects.using(schema_editor.connection.alias)
    for run in runs.exclude(cuts=[]).only("cuts").iterator():
        run.cuts = [{new if name == old else name: value for name, value in cut.items()} for cut in run.cuts]
        run.save(update_fields=["cuts"])


def name_positions(apps, schema_editor):
    """Rename in the cuts of all runs."""
    _renamed(apps, schema_editor, OLD, NEW)


def name_seats(apps, schema_editor):
    """The way back."""
    _renamed(apps, schema_editor, NEW, OLD)


class Migration(migrations.Migration):
    dependencies = [("jobs", "0003_search")]
    operations = [
        migrations.RenameField(model_name="job", old_name="seats", new_name="gpu_of_rank"),
        migrations.RunPython(name_positions, name_seats),
    ]
