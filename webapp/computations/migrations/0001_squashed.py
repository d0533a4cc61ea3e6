import django.contrib.postgres.indexes
import django.db.models.deletion
import uuid
import webapp.common.search
from django.conf import settings
from django.db import migrations, models


class Migration(migrations.Migration):

    replaces = [('computations', '0001_initial'), ('computations', '0002_archive'), ('computations', '0003_search'), ('computations', '0004_gpu_of_device'), ('computations', '0005_site_identity'), ('computations', '0006_papers'), ('computations', '0007_traces'), ('computations', '0008_replays'), ('computations', '0009_cross_dc')]

    initial = True

    dependencies = [
        ('accounts', '0002_search'),
    ]

    operations = [
        migrations.CreateModel(
            name='Beat',
            fields=[
                ('id', models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name='ID')),
                ('name', models.CharField(max_length=40, unique=True)),
                ('at', models.DateTimeField()),
                ('since', models.DateTimeField()),
            ],
        ),
        migrations.CreateModel(
            name='SiteIdentity',
            fields=[
                ('id', models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name='ID')),
                ('identity', models.UUIDField(default=uuid.uuid4, editable=False)),
                ('made_at', models.DateTimeField(auto_now_add=True)),
            ],
            options={
                'verbose_name_plural': 'site identities',
            },
        ),
        migrations.CreateModel(
            name='Computation',
            fields=[
                ('archived_at', models.DateTimeField(editable=False, null=True)),
                ('id', models.UUIDField(default=uuid.uuid4, editable=False, primary_key=True, serialize=False)),
                ('kind', models.CharField(choices=[('schedules', 'Comparison'), ('sweep', 'Sweep'), ('placement', 'Placement'), ('refine', 'Refinement'), ('plan', 'Plan'), ('run', 'Schedule of a run'), ('papers', 'Papers'), ('trace', 'Trace'), ('what-if', 'What-if of a trace'), ('replay', 'Replay of requests'), ('cross-dc', 'Data or pipeline parallelism')], max_length=16)),
                ('name', models.CharField(max_length=80)),
                ('request', models.JSONField()),
                ('state', models.CharField(choices=[('queued', 'Queued'), ('running', 'Running'), ('done', 'Done'), ('failed', 'Failed'), ('cancelled', 'Cancelled')], default='queued', max_length=16)),
                ('progress', models.JSONField(null=True)),
                ('answer', models.JSONField(null=True)),
                ('error', models.TextField(blank=True)),
                ('claim', models.UUIDField(null=True)),
                ('idempotency_key', models.CharField(blank=True, editable=False, max_length=64)),
                ('cancel_asked', models.BooleanField(default=False)),
                ('created_at', models.DateTimeField(auto_now_add=True)),
                ('sent_at', models.DateTimeField(auto_now_add=True)),
                ('started_at', models.DateTimeField(null=True)),
                ('heard_at', models.DateTimeField(null=True)),
                ('finished_at', models.DateTimeField(null=True)),
                ('created_by', models.ForeignKey(null=True, on_delete=django.db.models.deletion.PROTECT, related_name='+', to=settings.AUTH_USER_MODEL)),
                ('team', models.ForeignKey(on_delete=django.db.models.deletion.PROTECT, related_name='computations', to='accounts.team')),
            ],
            options={
                'ordering': ['-created_at'],
                'indexes': [django.contrib.postgres.indexes.GinIndex(webapp.common.search.Words('name'), name='computation_words'), models.Index(fields=['team', '-created_at'], name='computation_of_team'), models.Index(condition=models.Q(('state__in', ('queued', 'running'))), fields=['state', 'heard_at'], name='computation_open')],
                'constraints': [models.CheckConstraint(condition=models.Q(('state__in', ['queued', 'running', 'done', 'failed', 'cancelled'])), name='computation_state_known'), models.CheckConstraint(condition=models.Q(('kind__in', ['schedules', 'sweep', 'placement', 'refine', 'plan', 'run', 'papers', 'trace', 'what-if', 'replay', 'cross-dc'])), name='computation_kind_known'), models.UniqueConstraint(condition=models.Q(('idempotency_key', ''), _negated=True), fields=('created_by', 'idempotency_key'), name='computation_asked_once')],
            },
        ),
    ]
