import django.contrib.postgres.indexes
import webapp.common.search
from django.conf import settings
from django.db import migrations


class Migration(migrations.Migration):

    dependencies = [
        ('accounts', '0002_search'),
        ('computations', '0002_archive'),
        migrations.swappable_dependency(settings.AUTH_USER_MODEL),
    ]

    operations = [
        migrations.AddIndex(
            model_name='computation',
            index=django.contrib.postgres.indexes.GinIndex(webapp.common.search.Words('name'), name='computation_words'),
        ),
    ]
