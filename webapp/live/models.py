"""Telemetry of runs: raw spans for the last iterations, rollups for good."""

from django.contrib.postgres.fields import ArrayField
from django.db import models
from django.db.models import Q

from webapp.inventory.models import Node
from webapp.jobs.models import Run


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


class AgentLoss(models.Model):
    """How many spans and log lines the agent of a node has dropped since its start, as far as was told."""

    node = models.OneToOneField(Node, on_delete=models.CASCADE, related_name="+")
    lost = models.PositiveBigIntegerField(default=0)

    def __str__(self) -> str:
        return f"{self.lost} lost on {self.node_id}"


class Beat(models.Model):
    """That a part of the control plane lives: `at` moves while it works, since `since`."""

    name = models.CharField(max_length=40, unique=True)
    at = models.DateTimeField()
    since = models.DateTimeField()

    def __str__(self) -> str:
        return self.name
