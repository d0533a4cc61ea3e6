"""Two runs next to each other: what they measured and were predicted, and where their documents differ."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import groupby

from engine.inputs import parse
from engine.job.job import TrainJob
from engine.job.shape import shape_of
from webapp.accounts.diff import Difference, differences
from webapp.common.markup import DASH
from webapp.jobs.models import Run
from webapp.live import usage
from webapp.live.models import IterationStat
from webapp.live.selectors import run_usage
from webapp.live.shape import training

LONGEST = 200  # characters of a value: a schedule has many thousands


@dataclass(frozen=True, slots=True, kw_only=True)
class Figure:
    """A figure of one run; None where it is not known."""

    measured: float | None
    predicted: float | None = None

    @property
    def off_percent(self) -> float | None:
        """By how much more than predicted was measured, in %."""
        if self.measured is None or not self.predicted:
            return None
        return 100 * (self.measured / self.predicted - 1)


@dataclass(frozen=True, slots=True, kw_only=True)
class Line:
    """One figure of all compared runs, in their order."""

    label: str
    unit: str
    decimals: int
    figures: Sequence[Figure]

    @property
    def cells(self) -> list[tuple[str, str, float | None]]:
        """(measured, predicted, off by %) of each run, as people read them."""
        return [(self._text(f.measured), self._text(f.predicted), f.off_percent) for f in self.figures]

    def _text(self, value: float | None) -> str:
        return DASH if value is None else f"{value:,.{self.decimals}f}"


def tokens_of_iteration(run: Run) -> int:
    """Tokens of the global batch."""
    job = parse(TrainJob, run.job.document)
    return job.cell.global_batch * job.model.seq


def lines(runs: Sequence[Run]) -> list[Line]:
    """Times, rates and shares of `runs` over their last whole iterations, and their losses."""
    times, rates, busy, bubbles = zip(*map(_figures, runs), strict=True)
    rows = [
        Line(label="Iteration time", unit="ms", decimals=1, figures=times),
        Line(label="Throughput", unit="tokens/s", decimals=0, figures=rates),
        Line(label="Utilization", unit="%", decimals=1, figures=busy),
        Line(label="Bubbles", unit="%", decimals=1, figures=bubbles),
    ]
    losses = _losses(runs)
    return [*rows, losses] if losses else rows


def _figures(run: Run) -> tuple[Figure, Figure, Figure, Figure]:
    """Iteration time (ms), tokens/s, utilization (%) and bubbles (%)."""
    planned_ms, planned_busy = (run.predicted.get(name) for name in ("iteration_ms", "utilization"))
    run_use = run_usage(run, shape_of(run.job.document), planned_busy)
    took_ms = run_use["iteration_ms"] if run_use else None
    shares = run_use["run"] if run_use else {}
    tokens = tokens_of_iteration(run)
    return (
        Figure(measured=took_ms, predicted=planned_ms),
        Figure(measured=_rate(tokens, took_ms), predicted=_rate(tokens, planned_ms)),
        Figure(measured=_percent(shares.get("utilization")), predicted=_percent(planned_busy)),
        Figure(measured=_percent(shares.get("bubbles")), predicted=_percent(predicted_bubbles(run))),
    )


def _rate(tokens: int, took_ms: float | None) -> float | None:
    return tokens / took_ms * 1e3 if took_ms else None


def _percent(share: float | None) -> float | None:
    return None if share is None else 100 * share


def predicted_bubbles(run: Run) -> float | None:
    """The share of GPU time without an op, all-reduce or optimizer step, as `usage` counts measured ones."""
    if not run.predicted.get("spans"):
        return None
    ranks = training(shape_of(run.job.document), run, run.predicted_since)
    used = [
        usage.of_batch(codes, ranks[rank])[:2] for rank, *codes in run.predicted["spans"] if rank in ranks
    ]
    seconds = len(ranks) * run.predicted["iteration_ms"] / 1e3
    return max(0.0, 1 - sum(map(sum, used)) / seconds) if seconds else None


def _losses(runs: Sequence[Run]) -> Line | None:
    """The loss of each run after the last iteration that all of them have."""
    stats = IterationStat.objects.filter(loss__isnull=False).order_by("-iteration")
    common = stats.filter(run=runs[0])
    for other in runs[1:]:
        common = common.filter(iteration__in=stats.filter(run=other).order_by().values("iteration"))
    last = common.values_list("iteration", flat=True).first()
    if last is None:
        return None
    losses = dict(stats.filter(run__in=runs, iteration=last).order_by().values_list("run", "loss"))
    figures = [Figure(measured=losses[run.pk]) for run in runs]
    return Line(label=f"Loss after iteration {last + 1:,}", unit="", decimals=4, figures=figures)


@dataclass(frozen=True, slots=True, kw_only=True)
class Section:
    """A section of the documents of two runs, and those of its fields that are shown."""

    name: str
    fields: Sequence[Difference]


def documents(first: Run, second: Run, *, whole: bool) -> list[Section]:
    """The documents of two runs by section: the fields that differ, or the `whole` of them."""
    fields = [one for one in differences(first.document, second.document) if whole or one.changed]
    rows = sorted(fields, key=lambda one: one.path.partition(".")[0])  # stable: in a section as they stand
    return [
        Section(
            name=name,
            fields=[replace(one, before=_short(one.before), after=_short(one.after)) for one in part],
        )
        for name, part in groupby(rows, key=lambda one: one.path.partition(".")[0])
    ]


def _short(text: str | None) -> str | None:
    if text is None or len(text) <= LONGEST:
        return text
    return f"{text[:LONGEST]}… ({len(text):,} characters)"
