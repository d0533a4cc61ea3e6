from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [("jobs", "0006_started_again")]

    operations = [
        migrations.AddField("job", "seats", models.JSONField(default=list)),
    ]
