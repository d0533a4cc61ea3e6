"""Traces that people upload: the files, in parts, and what was asked about them.

The bytes are in the database, which all processes of a site share: the web process takes them, and the search
worker, perhaps on another machine, reads them. They go with the trace.
"""

from django.db import models

from webapp.computations.models import Computation


class Trace(models.Model):
    """What a computation of the kind `trace` analyses; its name, team and state are the computation's.

    bytes : of all its files.  format, workers, steps : known once it was read.
    """

    computation = models.OneToOneField(
        Computation, on_delete=models.CASCADE, primary_key=True, related_name="trace"
    )
    bytes = models.PositiveBigIntegerField()
    format = models.CharField(max_length=16, blank=True)
    workers = models.PositiveBigIntegerField(null=True)
    steps = models.PositiveBigIntegerField(null=True)

    def __str__(self) -> str:
        return self.computation.name


class TraceFile(models.Model):
    """One file of a trace, as it was uploaded."""

    trace = models.ForeignKey(Trace, on_delete=models.CASCADE, related_name="files")
    number = models.PositiveIntegerField()
    name = models.CharField(max_length=255)
    bytes = models.PositiveBigIntegerField()

    class Meta:
        ordering = ["number"]
        constraints = [
            models.UniqueConstraint(fields=["trace", "number"], name="trace_file_number"),
            models.UniqueConstraint(fields=["trace", "name"], name="trace_file_name"),
        ]

    def __str__(self) -> str:
        return self.name


class TracePart(models.Model):
    """Some bytes of a file: part `number`, from 0."""

    file = models.ForeignKey(TraceFile, on_delete=models.CASCADE, related_name="parts")
    number = models.PositiveIntegerField()
    content = models.BinaryField()

    class Meta:
        ordering = ["number"]
        constraints = [models.UniqueConstraint(fields=["file", "number"], name="trace_part_number")]

    def __str__(self) -> str:
        return f"{self.file}, part {self.number}"


class TraceWhatIf(models.Model):
    """That a computation answers questions about a trace."""

    trace = models.ForeignKey(Trace, on_delete=models.CASCADE, related_name="what_ifs")
    computation = models.OneToOneField(Computation, on_delete=models.CASCADE, related_name="of_trace")

    def __str__(self) -> str:
        return f"{self.computation} of {self.trace}"
