from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [("jobs", "0005_checkpoints")]

    operations = [
        migrations.AddField("rankstate", "start", models.PositiveIntegerField(default=1)),
    ]
