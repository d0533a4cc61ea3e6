"""Names of tenancies become unique within a team; of several with one name, the later ones get a number."""

import itertools

from django.db import migrations, models

LONGEST = 70  # characters of a name that get a number: 80 with it, at most


def number_names(apps, schema_editor):
    """The oldest of a name keeps it, and no tenancy whose name was its own gets another."""
    tenancies = apps.get_model("prefill", "Tenancy").objects.using(schema_editor.connection.alias)
    rows = list(tenancies.order_by("pk").values_list("pk", "team", "name"))
    given = {(team, name) for _, team, name in rows}
    seen = set()
    for pk, team, name in rows:
        if (team, name) in seen:
            numbered = (f"{name[:LONGEST]} {n}" for n in itertools.count(2))
            free = next(each for each in numbered if (team, each) not in given)
            given.add((team, free))
            tenancies.filter(pk=pk).update(name=free)
        seen.add((team, name))


class Migration(migrations.Migration):

    dependencies = [
        ("prefill", "0002_search"),
    ]

    operations = [
        migrations.RunPython(number_names, migrations.RunPython.noop),
        migrations.AddConstraint(
            model_name="tenancy",
            constraint=models.UniqueConstraint(
                fields=("team", "name"),
                name="tenancy_name_unique",
                violation_error_message="The team has a tenancy of this name already.",
            ),
        ),
    ]
