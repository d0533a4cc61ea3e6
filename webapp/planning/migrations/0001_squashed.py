import django.contrib.postgres.indexes
import django.db.models.deletion
import webapp.common.search
from django.conf import settings
from django.db import migrations, models


class Migration(migrations.Migration):

    replaces = [('planning', '0001_initial'), ('planning', '0002_archive'), ('planning', '0003_search'), ('planning', '0004_labels_and_notes')]

    initial = True

    dependencies = [
        ('accounts', '0002_search'),
        ('computations', '0001_squashed'),
    ]

    operations = [
        migrations.CreateModel(
            name='Plan',
            fields=[
                ('id', models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name='ID')),
                ('archived_at', models.DateTimeField(editable=False, null=True)),
                ('labels', models.CharField(blank=True, default='', max_length=310)),
                ('note', models.TextField(blank=True, default='', max_length=2000)),
                ('name', models.CharField(max_length=80)),
                ('request', models.JSONField()),
                ('result', models.JSONField()),
                ('training', models.JSONField(null=True)),
                ('computed_ms', models.FloatField()),
                ('idempotency_key', models.CharField(blank=True, editable=False, max_length=64)),
                ('created_at', models.DateTimeField(auto_now_add=True)),
                ('created_by', models.ForeignKey(null=True, on_delete=django.db.models.deletion.PROTECT, related_name='+', to=settings.AUTH_USER_MODEL)),
                ('team', models.ForeignKey(on_delete=django.db.models.deletion.PROTECT, related_name='plans', to='accounts.team')),
            ],
            options={
                'ordering': ['-created_at', '-id'],
                'indexes': [
                    django.contrib.postgres.indexes.GinIndex(webapp.common.search.Words('name', 'labels', 'note'), name='plan_words'),
                ],
                'constraints': [
                    models.UniqueConstraint(fields=('team', 'name'), name='plan_name_unique', violation_error_message='The team has a plan of this name already; it may be archived.'),
                    models.UniqueConstraint(condition=models.Q(('idempotency_key', ''), _negated=True), fields=('created_by', 'idempotency_key'), name='plan_asked_once'),
                ],
            },
        ),
        migrations.CreateModel(
            name='PlanComputation',
            fields=[
                ('id', models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name='ID')),
                ('computation', models.OneToOneField(on_delete=django.db.models.deletion.CASCADE, related_name='of_plan', to='computations.computation')),
                ('plan', models.ForeignKey(on_delete=django.db.models.deletion.CASCADE, related_name='work', to='planning.plan')),
            ],
        ),
    ]
