import django.contrib.postgres.indexes
import webapp.common.search
from django.db import migrations


class Migration(migrations.Migration):

    dependencies = [
        ('accounts', '0002_search'),
        ('inventory', '0001_initial'),
    ]

    operations = [
        migrations.AddIndex(
            model_name='datacenter',
            index=django.contrib.postgres.indexes.GinIndex(webapp.common.search.Words('name', 'place'), name='datacenter_words'),
        ),
        migrations.AddIndex(
            model_name='node',
            index=django.contrib.postgres.indexes.GinIndex(webapp.common.search.Words('name', 'host'), name='node_words'),
        ),
    ]
