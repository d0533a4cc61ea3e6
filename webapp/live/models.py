"""Telemetry of runs: raw spans for the last iterations, rollups for good."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

from django.conf import settings
from django.contrib.postgres.fields import ArrayField
from django.db import models
from django.db.models import Q
from django.utils import timezone

from engine.job.events.prefill import CoordinatorState as Reported
from webapp.inventory.models import DataCenter, Node
from webapp.jobs.models import Run, Status


class SpanBatch(models.Model):
    """The spans of one rank in one iteration, as span codes, times in ms since the run's epoch."""

    run = models.ForeignKey(Run, on_delete=models.CASCADE, related_name="+")
    generation = models.PositiveIntegerField()
    rank = models.PositiveIntegerField()
    iteration = models.PositiveIntegerField()
    start = models.FloatField()  # Unix seconds
    end = models.FloatField()
    spans = models.JSONField()

    class Meta:
        ordering = ["run", "iteration", "rank"]
        constraints = [
            models.UniqueConstraint(fields=["run", "generation", "iteration", "rank"], name="spanbatch_key"),
        ]

    def __str__(self) -> str:
        return f"spans of rank {self.rank}, iteration {self.iteration}, run {self.run_id}"


class KeptRange(models.Model):
    """Iterations of a run whose spans stay, however old they are: somebody has copied a link to them.

    first, last : the iterations, from 0, both inside.
    bytes : of their spans in the database, when the range was made.
    """

    run = models.ForeignKey(Run, on_delete=models.CASCADE, related_name="+")
    first = models.PositiveIntegerField()
    last = models.PositiveIntegerField()
    bytes = models.PositiveBigIntegerField()
    created_by = models.ForeignKey(
        settings.AUTH_USER_MODEL, null=True, on_delete=models.PROTECT, related_name="+"
    )
    created_at = models.DateTimeField(auto_now_add=True)

    class Meta:
        ordering = ["run", "first", "last"]
        constraints = [
            models.UniqueConstraint(fields=["run", "first", "last"], name="keptrange_key"),
            models.CheckConstraint(
                condition=Q(last__gte=models.F("first")), name="keptrange_last_after_first"
            ),
        ]

    def __str__(self) -> str:
        return f"{self.iterations} of {self.run}"

    @property
    def iterations(self) -> str:
        """Its iterations as people count them, from 1: "iterations 12 to 14"."""
        first, last = self.first + 1, self.last + 1
        return f"iteration {first:,}" if first == last else f"iterations {first:,} to {last:,}"

    @property
    def view(self) -> str:
        """What the address of the run's page ends with where its timeline shows this range."""
        return f"it={self.first + 1}&last={self.last + 1}"


class IterationStat(models.Model):
    """The rollup of one iteration; each column is filled by the first event that knows it.

    busy_s, sync_s : {rank: seconds} of F, R, B, W and of all-reduce and optimizer.
    traffic : {rank: [[from_dc, to_dc, bytes, start, end]…]} of its WAN transfers, ms since the epoch.
    dc_utilization, link_gbps : of the whole iteration: by data centre; by direction of a link, per node pair
        while something is sent (null where nothing was).
    is_compact : busy_s, sync_s and traffic are forgotten; what comes late changes nothing any more.
    """

    run = models.ForeignKey(Run, on_delete=models.CASCADE, related_name="iterations")
    iteration = models.PositiveIntegerField()
    start = models.FloatField(null=True)  # Unix seconds
    end = models.FloatField(null=True)
    loss = models.FloatField(null=True)
    bits_per_byte = models.FloatField(null=True)  # the same loss by the bytes of the text
    validation_loss = models.FloatField(null=True)  # of the held-out text, after it
    validation_bits_per_byte = models.FloatField(null=True)
    grad_norm = models.FloatField(null=True)
    learning_rate = models.FloatField(null=True)
    tokens = models.PositiveBigIntegerField(null=True)
    ranks = models.PositiveIntegerField(default=0)  # whose spans are in
    busy_s = models.JSONField(default=dict)
    sync_s = models.JSONField(default=dict)
    traffic = models.JSONField(default=dict)
    utilization = models.FloatField(null=True)
    dc_utilization = ArrayField(models.FloatField(), null=True)
    link_gbps = ArrayField(models.FloatField(null=True), null=True)
    is_compact = models.BooleanField(default=False)

    class Meta:
        ordering = ["run", "iteration"]
        constraints = [
            models.UniqueConstraint(fields=["run", "iteration"], name="iterationstat_key"),
            models.CheckConstraint(
                condition=Q(start__isnull=True) | Q(end__isnull=True) | Q(end__gte=models.F("start")),
                name="iterationstat_end_after_start",
            ),
        ]

    def __str__(self) -> str:
        return f"iteration {self.iteration} of run {self.run_id}"


class LogLine(models.Model):
    """One line that a rank wrote. `seq` is the event's id, which grows on a node."""

    run = models.ForeignKey(Run, on_delete=models.CASCADE, related_name="+")
    rank = models.PositiveIntegerField()
    seq = models.PositiveBigIntegerField()
    at = models.DateTimeField()
    text = models.TextField()
    dropped = models.PositiveIntegerField(default=0)  # lines of a flood that this one stands for

    class Meta:
        ordering = ["run", "seq", "rank"]
        indexes = [models.Index(fields=["run", "seq"], name="logline_in_order")]
        constraints = [models.UniqueConstraint(fields=["run", "rank", "seq"], name="logline_key")]

    def __str__(self) -> str:
        return self.text


class CoordinatorState(models.TextChoices):
    OPEN = Reported.OPEN.value, "Open"
    CLOSED = Reported.CLOSED.value, "Closed"


# A prefill coordinator says something every second; one that has said nothing for so long is not used.
COORDINATOR_SILENT_S = 10.0


class CoordinatorQuerySet(models.QuerySet["PrefillCoordinator"]):
    def visible_to(self, user: Any) -> CoordinatorQuerySet:
        """Prefill coordinators of the runs that `user` sees."""
        return self.filter(run__in=Run.objects.visible_to(user))

    def usable(self) -> CoordinatorQuerySet:
        """Those that take prompts now: open, heard of lately, of a run that trains."""
        since = timezone.now() - timedelta(seconds=COORDINATOR_SILENT_S)
        return self.filter(state=CoordinatorState.OPEN, run__status=Status.RUNNING, heard_at__gte=since)

    def existing(self) -> CoordinatorQuerySet:
        """Those whose process may live: open when last heard of, of a run that is not over."""
        return self.filter(state=CoordinatorState.OPEN, run__in=Run.objects.open())


class PrefillCoordinator(models.Model):
    """Where a run takes the prompts of one data centre (engine.prefill.messages), as last reported.

    rank : by which it is greeted.  said_at : Unix seconds by its own clock; what is older changes nothing.
    """

    run = models.ForeignKey(Run, on_delete=models.CASCADE, related_name="coordinators")
    dc = models.ForeignKey(DataCenter, on_delete=models.CASCADE, related_name="+")
    model = models.CharField(max_length=128)
    host = models.CharField(max_length=253)
    port = models.PositiveIntegerField()
    rank = models.PositiveIntegerField()
    state = models.CharField(max_length=6, choices=CoordinatorState.choices)
    detail = models.CharField(max_length=300, blank=True)
    said_at = models.FloatField()
    heard_at = models.DateTimeField()

    objects = CoordinatorQuerySet.as_manager()

    class Meta:
        ordering = ["run", "dc"]
        indexes = [
            models.Index(fields=["model"], condition=Q(state="open"), name="coordinator_open_by_model")
        ]
        constraints = [
            models.UniqueConstraint(fields=["run", "dc"], name="coordinator_key"),
            models.CheckConstraint(
                condition=Q(state__in=CoordinatorState.values), name="coordinator_state_known"
            ),
        ]

    def __str__(self) -> str:
        return f"{self.model} in {self.dc_id}, run {self.run_id}"

    @property
    def is_silent(self) -> bool:
        """Whether it has said nothing for so long that it is handed no prompts."""
        return self.heard_at < timezone.now() - timedelta(seconds=COORDINATOR_SILENT_S)


class PrefillCounts(models.Model):
    """What a prefill coordinator did in some time. `refused` and `failed` are {reason: requests}.

    missed : delivered after their objective.  prefill_ms : GPU time, over all `gpus` of the data centre.
    waited_ms : that training ops were due while a chunk still ran, over all of them.
    guard_ms : kept free before an op of the GPU that needs most; null where it was not told.
    slowdown : of training, as a share (0.01: iterations take 1 % longer); null where it is not known.
    """

    run = models.ForeignKey(Run, on_delete=models.CASCADE, related_name="+")
    dc = models.ForeignKey(DataCenter, on_delete=models.CASCADE, related_name="+")
    window_s = models.FloatField()
    accepted = models.PositiveIntegerField()
    refused = models.JSONField(default=dict)
    delivered = models.PositiveIntegerField()
    failed = models.JSONField(default=dict)
    missed = models.PositiveIntegerField()
    waiting = models.PositiveIntegerField()
    prefill_ms = models.FloatField()
    waited_ms = models.FloatField(default=0.0)
    guard_ms = models.FloatField(null=True)
    gpus = models.PositiveIntegerField()
    slowdown = models.FloatField(null=True)

    class Meta:
        abstract = True


class PrefillSecond(PrefillCounts):
    """A prefill coordinator's report of about a second.

    t : Unix seconds of its end.  waiting : requests that wait at that time.
    """

    t = models.FloatField()
    paused = models.BooleanField()

    class Meta:
        ordering = ["run", "dc", "t"]
        constraints = [models.UniqueConstraint(fields=["run", "dc", "t"], name="prefillsecond_key")]

    def __str__(self) -> str:
        return f"prefill of run {self.run_id} in {self.dc_id} until {self.t}"


class PrefillMinute(PrefillCounts):
    """The reports whose `t` lies in one minute (since 1970), added up when they are forgotten.

    waiting, slowdown, guard_ms : the most.
    """

    minute = models.PositiveIntegerField()
    paused_s = models.FloatField()

    class Meta:
        ordering = ["run", "dc", "minute"]
        constraints = [models.UniqueConstraint(fields=["run", "dc", "minute"], name="prefillminute_key")]

    def __str__(self) -> str:
        return f"prefill of run {self.run_id} in {self.dc_id}, minute {self.minute}"


class GpuReading(models.Model):
    """What a GPU of a node did when its agent last spoke of it; null is what the agent cannot tell.

    utilization : 0 to 1.  memory_bytes : in use on a CUDA GPU; else of the process that stands for the GPU.
    at : when the broker heard of it.
    """

    node = models.ForeignKey(Node, on_delete=models.CASCADE, related_name="+")
    gpu = models.PositiveIntegerField()
    at = models.DateTimeField()
    utilization = models.FloatField(null=True)
    memory_bytes = models.PositiveBigIntegerField(null=True)
    memory_total_bytes = models.PositiveBigIntegerField(null=True)
    temperature_c = models.FloatField(null=True)
    power_w = models.FloatField(null=True)

    class Meta:
        ordering = ["node", "gpu"]
        constraints = [models.UniqueConstraint(fields=["node", "gpu"], name="gpureading_key")]

    def __str__(self) -> str:
        return f"GPU {self.gpu} of {self.node_id}"


class RefusedEvents(models.Model):
    """How many events of a node were refused, and why the last of them."""

    node = models.OneToOneField(Node, on_delete=models.CASCADE, related_name="+")
    count = models.PositiveBigIntegerField(default=0)
    why = models.CharField(max_length=300, blank=True)
    at = models.DateTimeField(null=True)

    class Meta:
        ordering = ["node"]

    def __str__(self) -> str:
        return f"{self.count} refused of {self.node_id}"


class AgentLoss(models.Model):
    """How many spans and log lines the agent of a node has dropped since its start, as far as was told."""

    node = models.OneToOneField(Node, on_delete=models.CASCADE, related_name="+")
    lost = models.PositiveBigIntegerField(default=0)

    def __str__(self) -> str:
        return f"{self.lost} lost on {self.node_id}"
