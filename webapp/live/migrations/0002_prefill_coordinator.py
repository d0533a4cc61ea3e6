"""A desk is a prefill coordinator from now on: the same rows under the name that the pages say."""

import django.db.models.deletion
from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [("live", "0001_initial")]
    operations = [
        migrations.RenameModel(old_name="Desk", new_name="PrefillCoordinator"),
        migrations.AlterField(
            model_name="prefillcoordinator",
            name="run",
            field=models.ForeignKey(
                on_delete=django.db.models.deletion.CASCADE, related_name="coordinators", to="jobs.run"
            ),
        ),
        migrations.RenameIndex(
            model_name="prefillcoordinator", old_name="desk_open_by_model", new_name="coordinator_open_by_model"
        ),
        migrations.RemoveConstraint(model_name="prefillcoordinator", name="desk_key"),
        migrations.RemoveConstraint(model_name="prefillcoordinator", name="desk_state_known"),
        migrations.AddConstraint(
            model_name="prefillcoordinator",
            constraint=models.UniqueConstraint(fields=("run", "dc"), name="coordinator_key"),
        ),
        migrations.AddConstraint(
            model_name="prefillcoordinator",
            constraint=models.CheckConstraint(
                condition=models.Q(("state__in", ["open", "closed"])), name="coordinator_state_known"
            ),
        ),
    ]
