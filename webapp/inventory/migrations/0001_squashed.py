import django.contrib.postgres.indexes
import django.core.validators
import django.db.models.deletion
import django.utils.timezone
import webapp.common.search
import webapp.inventory.models.limits
from django.conf import settings
from django.db import migrations, models

# One pair, one row: a node stands in a pool of its own data centre. Django has no key of two columns.
SAME_DC = """
ALTER TABLE inventory_gpupool ADD CONSTRAINT gpupool_id_dc_unique UNIQUE (id, dc_id);
ALTER TABLE inventory_node ADD CONSTRAINT node_pool_of_dc FOREIGN KEY (pool_id, dc_id)
    REFERENCES inventory_gpupool (id, dc_id) DEFERRABLE INITIALLY DEFERRED;
"""
NOT_SAME_DC = """
ALTER TABLE inventory_node DROP CONSTRAINT node_pool_of_dc;
ALTER TABLE inventory_gpupool DROP CONSTRAINT gpupool_id_dc_unique;
"""


class Migration(migrations.Migration):

    replaces = [('inventory', '0001_initial'), ('inventory', '0002_search'), ('inventory', '0003_refused_since'), ('inventory', '0004_fabric'), ('inventory', '0005_samples')]

    initial = True

    dependencies = [
        ('accounts', '0002_search'),
    ]

    operations = [
        migrations.CreateModel(
            name='DataCenter',
            fields=[
                ('id', models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name='ID')),
                ('name', models.CharField(max_length=40, validators=[django.core.validators.RegexValidator('\\A[a-z0-9]([a-z0-9-]{0,38}[a-z0-9])?\\Z', 'Lower-case letters, digits and inner hyphens, at most 40 characters, as in us-east-1.')])),
                ('place', models.CharField(blank=True, max_length=120)),
                ('country', models.CharField(blank=True, max_length=2, validators=[webapp.inventory.models.limits.known_country])),
                ('time_zone', models.CharField(blank=True, max_length=40, validators=[webapp.inventory.models.limits.known_time_zone])),
                ('intra_gbps', models.FloatField(default=100, validators=[django.core.validators.MinValueValidator(0.001), django.core.validators.MaxValueValidator(1000000000.0)])),
                ('fabric', models.CharField(choices=[('any-to-any', 'Any-to-any'), ('rail-optimised', 'Rail-optimised'), ('rail-only', 'Rail-only')], default='any-to-any', max_length=20)),
                ('hb_domain', models.PositiveIntegerField(blank=True, null=True, validators=[django.core.validators.MinValueValidator(1)])),
                ('latitude', models.FloatField(blank=True, null=True, validators=[django.core.validators.MinValueValidator(-90), django.core.validators.MaxValueValidator(90)])),
                ('longitude', models.FloatField(blank=True, null=True, validators=[django.core.validators.MinValueValidator(-180), django.core.validators.MaxValueValidator(180)])),
                ('draining_since', models.DateTimeField(editable=False, null=True)),
                ('created_at', models.DateTimeField(auto_now_add=True)),
                ('team', models.ForeignKey(on_delete=django.db.models.deletion.PROTECT, related_name='datacenters', to='accounts.team')),
            ],
            options={
                'verbose_name': 'data centre',
                'ordering': ['name'],
                'indexes': [
                    django.contrib.postgres.indexes.GinIndex(webapp.common.search.Words('name', 'place'), name='datacenter_words'),
                ],
                'constraints': [
                    models.UniqueConstraint(fields=('team', 'name'), name='datacenter_name_unique', violation_error_message='The team has a data centre of this name already.'),
                    models.CheckConstraint(condition=models.Q(('intra_gbps__gt', 0)), name='datacenter_intra_positive'),
                    models.CheckConstraint(condition=models.Q(models.Q(('fabric', 'any-to-any'), ('hb_domain__isnull', True)), models.Q(('fabric__in', ['rail-optimised', 'rail-only']), ('hb_domain__gte', 1), ('hb_domain__isnull', False)), _connector='OR'), name='datacenter_rails_have_domains', violation_error_message='Rails need GPUs per HB domain; without rails leave it empty.'),
                    models.CheckConstraint(condition=models.Q(('latitude__isnull', True), ('latitude__range', (-90, 90)), _connector='OR'), name='datacenter_latitude_range'),
                    models.CheckConstraint(condition=models.Q(('longitude__isnull', True), ('longitude__range', (-180, 180)), _connector='OR'), name='datacenter_longitude_range'),
                ],
            },
        ),
        migrations.CreateModel(
            name='GpuPool',
            fields=[
                ('id', models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name='ID')),
                ('gpu_type', models.CharField(max_length=40, validators=[webapp.inventory.models.limits.known_gpu_type], verbose_name='GPU type')),
                ('price_per_gpu_hour', models.DecimalField(decimal_places=4, default=0, max_digits=10, validators=[django.core.validators.MinValueValidator(0)])),
                ('created_at', models.DateTimeField(auto_now_add=True)),
                ('dc', models.ForeignKey(on_delete=django.db.models.deletion.CASCADE, related_name='pools', to='inventory.datacenter', verbose_name='data centre')),
            ],
            options={
                'verbose_name': 'GPU pool',
                'ordering': ['dc__name', 'gpu_type'],
                'constraints': [
                    models.UniqueConstraint(fields=('dc', 'gpu_type'), name='gpupool_type_unique', violation_error_message='The data centre has a pool of this GPU type already.'),
                    models.CheckConstraint(condition=models.Q(('price_per_gpu_hour__gte', 0)), name='gpupool_price_not_negative'),
                ],
            },
        ),
        migrations.CreateModel(
            name='LinkMeasurement',
            fields=[
                ('id', models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name='ID')),
                ('at', models.DateTimeField(default=django.utils.timezone.now)),
                ('latency_ms', models.FloatField(blank=True, null=True, validators=[django.core.validators.MinValueValidator(0), django.core.validators.MaxValueValidator(10000)])),
                ('bandwidth_gbps', models.FloatField(blank=True, null=True, validators=[django.core.validators.MinValueValidator(0.001), django.core.validators.MaxValueValidator(100000.0)])),
                ('connections', models.PositiveIntegerField(blank=True, null=True, validators=[django.core.validators.MinValueValidator(1), django.core.validators.MaxValueValidator(256)])),
                ('source', models.CharField(choices=[('declared', 'Declared'), ('probe', 'Probe'), ('run', 'Run')], max_length=10)),
                ('actor', models.ForeignKey(null=True, on_delete=django.db.models.deletion.PROTECT, related_name='+', to=settings.AUTH_USER_MODEL)),
            ],
            options={
                'ordering': ['-at', '-id'],
                'constraints': [
                    models.CheckConstraint(condition=models.Q(('source__in', ['declared', 'probe', 'run'])), name='measurement_source_known'),
                    models.CheckConstraint(condition=models.Q(('latency_ms__isnull', False), ('bandwidth_gbps__isnull', False), _connector='OR'), name='measurement_says_something', violation_error_message='A measurement has a latency, a bandwidth, or both.'),
                    models.CheckConstraint(condition=models.Q(('latency_ms__isnull', True), ('latency_ms__gte', 0), _connector='OR'), name='measurement_latency_not_negative'),
                    models.CheckConstraint(condition=models.Q(('bandwidth_gbps__isnull', True), ('bandwidth_gbps__gt', 0), _connector='OR'), name='measurement_bandwidth_positive'),
                ],
            },
        ),
        migrations.CreateModel(
            name='Node',
            fields=[
                ('id', models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name='ID')),
                ('name', models.CharField(max_length=40, unique=True, validators=[django.core.validators.RegexValidator('\\A[a-z0-9]([a-z0-9-]{0,38}[a-z0-9])?\\Z', 'Lower-case letters, digits and inner hyphens, at most 40 characters, as in us-east-1.')])),
                ('gpus', models.PositiveIntegerField(validators=[django.core.validators.MinValueValidator(1), django.core.validators.MaxValueValidator(1024)], verbose_name='GPUs')),
                ('device', models.CharField(choices=[('cpu', 'CPU'), ('emulated', 'Emulated GPU'), ('cuda', 'CUDA GPU')], default='cuda', max_length=10)),
                ('host', models.CharField(default='127.0.0.1', max_length=253, validators=[webapp.inventory.models.limits.known_address])),
                ('port_from', models.PositiveIntegerField(default=29500, validators=[django.core.validators.MinValueValidator(1024), django.core.validators.MaxValueValidator(65535)], verbose_name='first port')),
                ('port_to', models.PositiveIntegerField(default=29599, validators=[django.core.validators.MinValueValidator(1024), django.core.validators.MaxValueValidator(65535)], verbose_name='last port')),
                ('draining_since', models.DateTimeField(editable=False, null=True)),
                ('created_at', models.DateTimeField(auto_now_add=True)),
                ('acl_sha256', models.CharField(blank=True, editable=False, max_length=64)),
                ('enrolled_at', models.DateTimeField(editable=False, null=True)),
                ('refused_since', models.DateTimeField(editable=False, null=True)),
                ('last_seen', models.DateTimeField(editable=False, null=True)),
                ('seen_gpus', models.PositiveIntegerField(editable=False, null=True)),
                ('seen_device', models.CharField(blank=True, editable=False, max_length=10)),
                ('version', models.CharField(blank=True, editable=False, max_length=40)),
                ('seen_ranks', models.JSONField(default=list, editable=False)),
                ('seen_hardware', models.JSONField(default=dict, editable=False)),
                ('clock_offset_ms', models.FloatField(editable=False, null=True)),
                ('clock_rtt_ms', models.FloatField(editable=False, null=True)),
                ('dc', models.ForeignKey(on_delete=django.db.models.deletion.PROTECT, related_name='nodes', to='inventory.datacenter', verbose_name='data centre')),
                ('pool', models.ForeignKey(on_delete=django.db.models.deletion.PROTECT, related_name='nodes', to='inventory.gpupool', verbose_name='GPU pool')),
            ],
            options={
                'ordering': ['name'],
                'indexes': [
                    django.contrib.postgres.indexes.GinIndex(webapp.common.search.Words('name', 'host'), name='node_words'),
                ],
                'constraints': [
                    models.CheckConstraint(condition=models.Q(('gpus__gte', 1), ('gpus__lte', 1024)), name='node_gpus_range'),
                    models.CheckConstraint(condition=models.Q(('device__in', ['cpu', 'emulated', 'cuda'])), name='node_device_known'),
                    models.CheckConstraint(condition=models.Q(('port_from__gte', 1024), ('port_from__lte', models.F('port_to')), ('port_to__lte', 65535)), name='node_ports_range'),
                ],
            },
        ),
        migrations.CreateModel(
            name='JoinToken',
            fields=[
                ('id', models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name='ID')),
                ('token_sha256', models.CharField(max_length=64, unique=True)),
                ('created_at', models.DateTimeField(auto_now_add=True)),
                ('expires_at', models.DateTimeField()),
                ('used_at', models.DateTimeField(null=True)),
                ('used_from', models.GenericIPAddressField(null=True)),
                ('created_by', models.ForeignKey(null=True, on_delete=django.db.models.deletion.PROTECT, related_name='+', to=settings.AUTH_USER_MODEL)),
                ('node', models.ForeignKey(on_delete=django.db.models.deletion.CASCADE, related_name='join_tokens', to='inventory.node')),
            ],
            options={
                'ordering': ['-created_at', '-id'],
            },
        ),
        migrations.CreateModel(
            name='NodeProbe',
            fields=[
                ('id', models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name='ID')),
                ('at', models.DateTimeField(null=True)),
                ('probe', models.CharField(max_length=32)),
                ('asked_at', models.DateTimeField()),
                ('ok', models.BooleanField(null=True)),
                ('rtt_ms', models.FloatField(null=True)),
                ('offset_ms', models.FloatField(null=True)),
                ('error', models.CharField(blank=True, max_length=200)),
                ('asked_by', models.ForeignKey(null=True, on_delete=django.db.models.deletion.PROTECT, related_name='+', to=settings.AUTH_USER_MODEL)),
                ('source', models.ForeignKey(on_delete=django.db.models.deletion.CASCADE, related_name='probes', to='inventory.node')),
                ('target', models.ForeignKey(on_delete=django.db.models.deletion.CASCADE, related_name='probed', to='inventory.node')),
            ],
            options={
                'ordering': ['-asked_at', '-id'],
                'indexes': [
                    models.Index(fields=['source', 'target', '-asked_at'], name='inventory_n_source__baa3e2_idx'),
                ],
                'constraints': [
                    models.UniqueConstraint(fields=('probe', 'source', 'target'), name='nodeprobe_pair_unique'),
                    models.CheckConstraint(condition=models.Q(('source', models.F('target')), _negated=True), name='nodeprobe_two_nodes'),
                ],
            },
        ),
        migrations.CreateModel(
            name='SamplePreview',
            fields=[
                ('id', models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name='ID')),
                ('asked_at', models.DateTimeField(default=django.utils.timezone.now)),
                ('at', models.DateTimeField(null=True)),
                ('preview', models.CharField(max_length=32, unique=True)),
                ('reads', models.CharField(max_length=600)),
                ('samples', models.JSONField(default=list)),
                ('error', models.CharField(blank=True, max_length=2000)),
                ('asked_by', models.ForeignKey(on_delete=django.db.models.deletion.CASCADE, related_name='+', to=settings.AUTH_USER_MODEL)),
                ('node', models.ForeignKey(on_delete=django.db.models.deletion.CASCADE, related_name='previews', to='inventory.node')),
            ],
            options={
                'ordering': ['-asked_at', '-id'],
                'indexes': [
                    models.Index(fields=['asked_by', '-asked_at'], name='inventory_s_asked_b_f38059_idx'),
                ],
            },
        ),
        migrations.CreateModel(
            name='WanLink',
            fields=[
                ('id', models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name='ID')),
                ('latency_ms', models.FloatField(validators=[django.core.validators.MinValueValidator(0), django.core.validators.MaxValueValidator(10000)])),
                ('bandwidth_gbps', models.FloatField(validators=[django.core.validators.MinValueValidator(0.001), django.core.validators.MaxValueValidator(100000.0)])),
                ('connections', models.PositiveIntegerField(blank=True, null=True, validators=[django.core.validators.MinValueValidator(1), django.core.validators.MaxValueValidator(256)])),
                ('egress_price_per_gb', models.DecimalField(decimal_places=4, default=0, max_digits=10, validators=[django.core.validators.MinValueValidator(0)])),
                ('a', models.ForeignKey(on_delete=django.db.models.deletion.PROTECT, related_name='+', to='inventory.datacenter')),
                ('b', models.ForeignKey(on_delete=django.db.models.deletion.PROTECT, related_name='+', to='inventory.datacenter')),
                ('bandwidth_from', models.ForeignKey(editable=False, null=True, on_delete=django.db.models.deletion.SET_NULL, related_name='+', to='inventory.linkmeasurement')),
                ('latency_from', models.ForeignKey(editable=False, null=True, on_delete=django.db.models.deletion.SET_NULL, related_name='+', to='inventory.linkmeasurement')),
            ],
            options={
                'verbose_name': 'WAN link',
                'ordering': ['a__name', 'b__name'],
                'constraints': [
                    models.UniqueConstraint(fields=('a', 'b'), name='wanlink_pair_unique'),
                    models.CheckConstraint(condition=models.Q(('a__lt', models.F('b'))), name='wanlink_pair_ordered'),
                    models.CheckConstraint(condition=models.Q(('latency_ms__gte', 0)), name='wanlink_latency_not_negative'),
                    models.CheckConstraint(condition=models.Q(('bandwidth_gbps__gt', 0)), name='wanlink_bandwidth_positive'),
                    models.CheckConstraint(condition=models.Q(('egress_price_per_gb__gte', 0)), name='wanlink_egress_not_negative'),
                ],
            },
        ),
        migrations.CreateModel(
            name='LinkTrial',
            fields=[
                ('id', models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name='ID')),
                ('asked_at', models.DateTimeField(default=django.utils.timezone.now)),
                ('at', models.DateTimeField(null=True)),
                ('trial', models.CharField(max_length=32, unique=True)),
                ('emulated', models.BooleanField(default=False)),
                ('rtt_ms', models.FloatField(null=True)),
                ('rates', models.JSONField(default=list)),
                ('error', models.CharField(blank=True, max_length=300)),
                ('asked_by', models.ForeignKey(on_delete=django.db.models.deletion.PROTECT, related_name='+', to=settings.AUTH_USER_MODEL)),
                ('source', models.ForeignKey(on_delete=django.db.models.deletion.CASCADE, related_name='+', to='inventory.node')),
                ('target', models.ForeignKey(on_delete=django.db.models.deletion.CASCADE, related_name='+', to='inventory.node')),
                ('link', models.ForeignKey(on_delete=django.db.models.deletion.CASCADE, related_name='trials', to='inventory.wanlink')),
            ],
            options={
                'ordering': ['-asked_at', '-id'],
                'indexes': [
                    models.Index(fields=['link', '-asked_at'], name='inventory_l_link_id_916cbd_idx'),
                ],
                'constraints': [
                    models.CheckConstraint(condition=models.Q(('source', models.F('target')), _negated=True), name='linktrial_two_nodes'),
                ],
            },
        ),
        migrations.AddField(
            model_name='linkmeasurement',
            name='link',
            field=models.ForeignKey(on_delete=django.db.models.deletion.CASCADE, related_name='measurements', to='inventory.wanlink'),
        ),
        migrations.AddIndex(
            model_name='linkmeasurement',
            index=models.Index(fields=['link', '-at'], name='inventory_l_link_id_fd67a3_idx'),
        ),
        migrations.RunSQL(SAME_DC, NOT_SAME_DC),
    ]
