import django.contrib.postgres.indexes
import webapp.common.search
from django.conf import settings
from django.db import migrations


class Migration(migrations.Migration):

    dependencies = [
        ('accounts', '0002_search'),
        ('planning', '0002_archive'),
        migrations.swappable_dependency(settings.AUTH_USER_MODEL),
    ]

    operations = [
        migrations.AddIndex(
            model_name='plan',
            index=django.contrib.postgres.indexes.GinIndex(webapp.common.search.Words('name'), name='plan_words'),
        ),
    ]
