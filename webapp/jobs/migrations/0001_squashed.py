import django.contrib.postgres.indexes
import django.db.models.deletion
import webapp.common.search
from django.conf import settings
from django.db import migrations, models


class Migration(migrations.Migration):

    replaces = [('jobs', '0001_initial'), ('jobs', '0002_archive'), ('jobs', '0003_search'), ('jobs', '0004_gpu_of_rank'), ('jobs', '0005_checkpoints'), ('jobs', '0006_labels_and_notes'), ('jobs', '0007_priority'), ('jobs', '0008_progressed_at'), ('jobs', '0009_queue_order'), ('jobs', '0010_worker_left')]

    initial = True

    dependencies = [
        ('accounts', '0002_search'),
        ('computations', '0001_squashed'),
        ('inventory', '0001_squashed'),
        ('planning', '0001_squashed'),
    ]

    operations = [
        migrations.CreateModel(
            name='Job',
            fields=[
                ('id', models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name='ID')),
                ('name', models.CharField(max_length=80)),
                ('document', models.JSONField()),
                ('plan_copy', models.JSONField(default=dict)),
                ('gpu_of_rank', models.JSONField(default=list)),
                ('created_at', models.DateTimeField(auto_now_add=True)),
                ('created_by', models.ForeignKey(null=True, on_delete=django.db.models.deletion.PROTECT, related_name='+', to=settings.AUTH_USER_MODEL)),
                ('plan', models.ForeignKey(null=True, on_delete=django.db.models.deletion.SET_NULL, related_name='jobs', to='planning.plan')),
                ('team', models.ForeignKey(on_delete=django.db.models.deletion.PROTECT, related_name='jobs', to='accounts.team')),
            ],
            options={
                'ordering': ['-created_at', '-id'],
                'indexes': [
                    django.contrib.postgres.indexes.GinIndex(webapp.common.search.Words('name'), name='job_words'),
                ],
            },
        ),
        migrations.CreateModel(
            name='Run',
            fields=[
                ('id', models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name='ID')),
                ('archived_at', models.DateTimeField(editable=False, null=True)),
                ('labels', models.CharField(blank=True, default='', max_length=310)),
                ('note', models.TextField(blank=True, default='', max_length=2000)),
                ('generation', models.PositiveIntegerField()),
                ('desired_state', models.CharField(choices=[('running', 'Running'), ('cancelled', 'Stopped')], default='running', max_length=10)),
                ('status', models.CharField(choices=[('queued', 'Queued'), ('starting', 'Starting'), ('running', 'Running'), ('stopping', 'Stopping'), ('succeeded', 'Finished'), ('failed', 'Failed'), ('cancelled', 'Stopped')], default='queued', max_length=10)),
                ('status_reason', models.CharField(blank=True, max_length=500)),
                ('waits_for', models.CharField(blank=True, max_length=300)),
                ('status_since', models.DateTimeField()),
                ('priority', models.SmallIntegerField(choices=[(1, 'High'), (0, 'Normal'), (-1, 'Low')], default=0)),
                ('queue_order', models.BigIntegerField(editable=False, null=True)),
                ('steps', models.PositiveIntegerField()),
                ('iteration', models.IntegerField(default=-1)),
                ('progressed_at', models.DateTimeField(editable=False, null=True)),
                ('secret', models.CharField(editable=False, max_length=64)),
                ('rendezvous_port', models.PositiveIntegerField(null=True)),
                ('predicted', models.JSONField(default=dict)),
                ('predicted_since', models.PositiveIntegerField(default=0)),
                ('result', models.JSONField(null=True)),
                ('created_at', models.DateTimeField(auto_now_add=True)),
                ('epoch', models.FloatField(null=True)),
                ('started_at', models.DateTimeField(null=True)),
                ('finished_at', models.DateTimeField(null=True)),
                ('live_seq', models.PositiveBigIntegerField(default=0)),
                ('mark_seq', models.PositiveBigIntegerField(default=0)),
                ('marks_told', models.PositiveBigIntegerField(default=0)),
                ('idempotency_key', models.CharField(blank=True, editable=False, max_length=64)),
                ('needs_action', models.BooleanField(default=False)),
                ('boundary_why', models.CharField(blank=True, max_length=200)),
                ('stop_after', models.PositiveIntegerField(null=True)),
                ('again', models.BooleanField(default=False)),
                ('saved_step', models.PositiveIntegerField(null=True)),
                ('saved_where', models.CharField(blank=True, max_length=1000)),
                ('resumes_step', models.PositiveIntegerField(null=True)),
                ('resumes_from', models.CharField(blank=True, max_length=1000)),
                ('moves', models.BooleanField(default=False)),
                ('cuts', models.JSONField(default=list)),
                ('created_by', models.ForeignKey(null=True, on_delete=django.db.models.deletion.PROTECT, related_name='+', to=settings.AUTH_USER_MODEL)),
                ('job', models.ForeignKey(on_delete=django.db.models.deletion.PROTECT, related_name='runs', to='jobs.job')),
                ('moved_from', models.ForeignKey(null=True, on_delete=django.db.models.deletion.PROTECT, related_name='+', to='jobs.run')),
                ('search', models.ForeignKey(null=True, on_delete=django.db.models.deletion.PROTECT, related_name='+', to='computations.computation')),
            ],
            options={
                'ordering': ['-created_at', '-id'],
                'indexes': [
                    models.Index(fields=['status'], name='jobs_run_status_1b1df4_idx'),
                    models.Index(fields=['-created_at', '-id'], name='run_newest_first'),
                    models.Index(fields=['-finished_at'], name='run_ended_last'),
                    models.Index(condition=models.Q(('moves', True)), fields=['id'], name='run_to_move'),
                    django.contrib.postgres.indexes.GinIndex(webapp.common.search.Words('labels', 'note'), name='run_words'),
                ],
                'constraints': [
                    models.UniqueConstraint(fields=('job', 'generation'), name='run_generation_unique'),
                    models.UniqueConstraint(condition=models.Q(('idempotency_key', ''), _negated=True), fields=('created_by', 'idempotency_key'), name='run_asked_once'),
                    models.CheckConstraint(condition=models.Q(('status__in', ['queued', 'starting', 'running', 'stopping', 'succeeded', 'failed', 'cancelled'])), name='run_status_known'),
                    models.CheckConstraint(condition=models.Q(('desired_state__in', ['running', 'cancelled'])), name='run_desired_known'),
                    models.CheckConstraint(condition=models.Q(('generation__gte', 1)), name='run_generation_positive'),
                    models.CheckConstraint(condition=models.Q(('priority__in', [1, 0, -1])), name='run_priority_known'),
                    models.CheckConstraint(condition=models.Q(models.Q(('finished_at__isnull', False), ('status__in', ('succeeded', 'failed', 'cancelled'))), models.Q(models.Q(('status__in', ('succeeded', 'failed', 'cancelled')), _negated=True), ('finished_at__isnull', True)), _connector='OR'), name='run_finished_iff_terminal'),
                ],
            },
        ),
        migrations.CreateModel(
            name='RankState',
            fields=[
                ('id', models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name='ID')),
                ('rank', models.PositiveIntegerField()),
                ('pipeline', models.PositiveIntegerField()),
                ('stage', models.PositiveIntegerField()),
                ('gpu', models.PositiveIntegerField()),
                ('state', models.CharField(choices=[('assigned', 'Assigned'), ('starting', 'Starting'), ('ready', 'Ready'), ('running', 'Running'), ('finished', 'Finished'), ('failed', 'Failed'), ('stopped', 'Stopped'), ('left', 'Left')], default='assigned', max_length=10)),
                ('state_since', models.DateTimeField()),
                ('detail', models.CharField(blank=True, max_length=500)),
                ('exit_code', models.IntegerField(null=True)),
                ('pid', models.PositiveIntegerField(null=True)),
                ('last_line', models.CharField(blank=True, max_length=500)),
                ('dispatched_at', models.DateTimeField(null=True)),
                ('dispatches', models.PositiveIntegerField(default=0)),
                ('start', models.PositiveIntegerField(default=1)),
                ('dc', models.ForeignKey(on_delete=django.db.models.deletion.PROTECT, related_name='+', to='inventory.datacenter')),
                ('node', models.ForeignKey(on_delete=django.db.models.deletion.PROTECT, related_name='ranks', to='inventory.node')),
                ('run', models.ForeignKey(on_delete=django.db.models.deletion.CASCADE, related_name='ranks', to='jobs.run')),
            ],
            options={
                'ordering': ['run', 'rank'],
                'constraints': [
                    models.UniqueConstraint(fields=('run', 'rank'), name='rankstate_rank_unique'),
                    models.UniqueConstraint(fields=('run', 'node', 'gpu'), name='rankstate_gpu_unique'),
                    models.CheckConstraint(condition=models.Q(('state__in', ['assigned', 'starting', 'ready', 'running', 'finished', 'failed', 'stopped', 'left'])), name='rankstate_state_known'),
                ],
            },
        ),
        migrations.CreateModel(
            name='PastPrediction',
            fields=[
                ('id', models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name='ID')),
                ('since', models.PositiveIntegerField()),
                ('iteration_ms', models.FloatField()),
                ('utilization', models.FloatField(null=True)),
                ('spans', models.JSONField(default=list)),
                ('run', models.ForeignKey(on_delete=django.db.models.deletion.CASCADE, related_name='+', to='jobs.run')),
            ],
            options={
                'ordering': ['run', 'since'],
                'constraints': [
                    models.UniqueConstraint(fields=('run', 'since'), name='pastprediction_key'),
                ],
            },
        ),
        migrations.CreateModel(
            name='RunCheckpoint',
            fields=[
                ('id', models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name='ID')),
                ('step', models.PositiveIntegerField()),
                ('status', models.CharField(choices=[('saved', 'Saved'), ('failed', 'Not saved'), ('torn', 'Torn'), ('removed', 'Removed')], max_length=7)),
                ('where', models.CharField(max_length=1000)),
                ('size', models.PositiveBigIntegerField(null=True)),
                ('took_s', models.FloatField(null=True)),
                ('detail', models.CharField(blank=True, max_length=500)),
                ('at', models.DateTimeField()),
                ('run', models.ForeignKey(on_delete=django.db.models.deletion.CASCADE, related_name='checkpoints', to='jobs.run')),
            ],
            options={
                'ordering': ['run', '-step', '-id'],
                'indexes': [
                    django.contrib.postgres.indexes.HashIndex(fields=['where'], name='runcheckpoint_where'),
                    models.Index(fields=['run', '-step'], name='runcheckpoint_of_run'),
                ],
                'constraints': [
                    models.CheckConstraint(condition=models.Q(('status__in', ['saved', 'failed', 'torn', 'removed'])), name='runcheckpoint_status_known'),
                ],
            },
        ),
        migrations.CreateModel(
            name='RunEvent',
            fields=[
                ('id', models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name='ID')),
                ('seq', models.PositiveBigIntegerField()),
                ('at', models.DateTimeField()),
                ('level', models.CharField(choices=[('info', 'Info'), ('warn', 'Warning'), ('error', 'Error')], max_length=5)),
                ('text', models.CharField(max_length=600)),
                ('cost', models.JSONField(default=dict)),
                ('run', models.ForeignKey(on_delete=django.db.models.deletion.CASCADE, related_name='events', to='jobs.run')),
            ],
            options={
                'ordering': ['run', 'seq'],
                'constraints': [
                    models.UniqueConstraint(fields=('run', 'seq'), name='runevent_seq_unique'),
                    models.CheckConstraint(condition=models.Q(('level__in', ['info', 'warn', 'error'])), name='runevent_level_known'),
                ],
            },
        ),
    ]
