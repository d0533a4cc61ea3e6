"""Log lines of ranks as rows: written in bulk, floods thinned, the last lines of each rank kept."""

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime

from django.conf import settings
from django.db import transaction
from django.db.models import Count

from engine.job.events.training import Log
from webapp.inventory.models import Node
from webapp.jobs import notify
from webapp.jobs.models import MarkLevel, Run
from webapp.jobs.services import add_mark
from webapp.live.models import AgentLoss, LogLine

MOST_IN_A_BATCH = 400  # lines of one rank in one batch (200 ms); of more, the first and the last are kept
LONGEST_LINE = 4_000


def line_of(run: Run, event: Log) -> LogLine:
    """The row of one `log` event.

    Raises
    ------
    ValueError
        No agent sent it: it has no `id`, by which lines are kept in order and once.
    """
    if event.id is None:
        raise ValueError("id is missing")
    text, when = event.line.rstrip("\r\n")[:LONGEST_LINE], datetime.fromtimestamp(event.t, UTC)
    return LogLine(run=run, rank=event.rank, seq=event.id, at=when, text=text)


def thinned(lines: Sequence[LogLine], most: int = MOST_IN_A_BATCH) -> list[LogLine]:
    """At most `most` of `lines`: of a flood the first and the last, and between them a line that says so.

    The same lines give the same answer, so a batch that is taken in again changes nothing.
    """
    if len(lines) <= most:
        return list(lines)
    head, tail = most // 2, most - most // 2 - 1
    left_out = lines[head : len(lines) - tail]
    note = LogLine(
        run=left_out[0].run,
        rank=left_out[0].rank,
        seq=left_out[0].seq,
        at=left_out[0].at,
        text=f"{len(left_out):,} lines left out: {len(lines):,} arrived at once",
        dropped=len(left_out),
    )
    return [*lines[:head], note, *lines[len(lines) - tail :]]


@transaction.atomic
def store(lines: Mapping[tuple[int, int], Sequence[LogLine]]) -> None:
    """Write the new lines of each (run, rank); those that are known change nothing."""
    rows = [line for rank_lines in lines.values() for line in thinned(_in_order(rank_lines))]
    LogLine.objects.bulk_create(rows, ignore_conflicts=True, batch_size=2_000)


def _in_order(lines: Sequence[LogLine]) -> list[LogLine]:
    """By `seq`, each once."""
    return [line for _, line in sorted({line.seq: line for line in lines}.items())]


@transaction.atomic
def record_loss(node_name: str, lost: int) -> None:
    """Tell the runs on a node how many spans and log lines its agent has dropped since it last said so.

    `lost` counts from the agent's start, so a smaller number than before is that of a new agent.
    """
    row = AgentLoss.objects.filter(node__name=node_name).first()
    before = row.lost if row else 0
    if lost == before:
        return
    node = Node.objects.filter(name=node_name).first()
    if node is None:
        return
    AgentLoss.objects.update_or_create(node=node, defaults={"lost": lost})
    new = lost - before if lost > before else lost
    for run in Run.objects.open().filter(ranks__node=node).distinct() if new else ():
        text = f"Node {node.name} dropped {new:,} spans and log lines: its buffer was full."
        add_mark(run, MarkLevel.WARN, text)
        notify.run_changed(run.pk)


@transaction.atomic
def forget_old_lines(keep: int | None = None) -> int:
    """Delete all but the last `keep` lines of each rank (setting KEEP_LOG_LINES); returns how many."""
    keep = settings.KEEP_LOG_LINES if keep is None else keep
    deleted = 0
    for run, rank in _long_logs(keep):
        own = LogLine.objects.filter(run=run, rank=rank)
        oldest = own.order_by("-seq").values_list("seq", flat=True)[keep - 1]
        deleted += own.filter(seq__lt=oldest).delete()[0]
    return deleted


def _long_logs(keep: int) -> list[tuple[int, int]]:
    """(run, rank) with more than `keep` lines."""
    counted = LogLine.objects.order_by().values("run", "rank").annotate(lines=Count("pk"))
    return [(row["run"], row["rank"]) for row in counted.filter(lines__gt=keep)]
