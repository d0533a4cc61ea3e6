"""The matrix of links: data centre by data centre, latency or bandwidth, shaded by size."""

from collections import Counter
from dataclasses import dataclass
from typing import Any

from django.urls import reverse

from webapp.inventory.models import DataCenter, WanLink

MOST_SHOWN = 40  # data centres: 1,600 cells
LEVELS = 5  # tokens of the heat ramp


@dataclass(frozen=True, slots=True, kw_only=True)
class Measure:
    """What the cells show. `better` says which end of the scale is the good one."""

    name: str
    label: str
    unit: str
    field: str
    decimals: int
    better: str


MEASURES = {
    "latency": Measure(
        name="latency", label="Latency, one way", unit="ms", field="latency_ms", decimals=1, better="lower"
    ),
    "bandwidth": Measure(
        name="bandwidth",
        label="Bandwidth per node pair",
        unit="Gbit/s",
        field="bandwidth_gbps",
        decimals=2,
        better="higher",
    ),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Cell:
    """One pair of data centres: `text` is its figure, empty without a link; `level` the shade, 0 to 4."""

    text: str
    level: int | None
    url: str
    title: str
    same: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Matrix:
    """Rows and columns are the same data centres in the same order."""

    measure: Measure
    dcs: list[DataCenter]
    rows: list[tuple[DataCenter, list[Cell]]]
    least: float | None
    most: float | None
    links: int
    pairs: int
    of: int  # data centres in all


def most_linked(user: Any, dcs: Any, most: int) -> tuple[list[DataCenter], int]:
    """All of `dcs`, or the `most` of them that have the most links, these first; and how many there are.

    It costs the same queries whether some are left out or not.
    """
    names = list(dcs.values_list("pk", "name"))
    ends = WanLink.objects.visible_to(user).values_list("a_id", "b_id")
    links = Counter(end for pair in ends for end in pair)
    chosen = names
    if len(names) > most:
        chosen = sorted(names, key=lambda dc: (-links[dc[0]], dc[1]))[:most]
    by_pk = {dc.pk: dc for dc in dcs.filter(pk__in=[pk for pk, _ in chosen])}
    return [by_pk[pk] for pk, _ in chosen if pk in by_pk], len(names)


def link_matrix(user: Any, measure: Measure, dcs: Any, *, may_add: bool) -> Matrix:
    """The matrix of the MOST_SHOWN most linked of `dcs`, a queryset of data centres that `user` may see."""
    shown, of = most_linked(user, dcs, MOST_SHOWN)
    ids = [dc.pk for dc in shown]
    links_between = WanLink.objects.visible_to(user).filter(a__in=ids, b__in=ids)
    links = {frozenset((link.a_id, link.b_id)): link for link in links_between}
    values = [getattr(link, measure.field) for link in links.values()]
    most = max(values, default=None)
    rows = [(row, [_cell(measure, links, row, column, most, may_add) for column in shown]) for row in shown]
    return Matrix(
        measure=measure,
        dcs=shown,
        rows=rows,
        least=min(values, default=None),
        most=most,
        links=len(links),
        pairs=len(shown) * (len(shown) - 1) // 2,
        of=of,
    )


def _cell(
    measure: Measure,
    links: dict[frozenset[int], WanLink],
    row: DataCenter,
    column: DataCenter,
    most: float | None,
    may_add: bool,
) -> Cell:
    pair = f"{row.name} – {column.name}"
    if row.pk == column.pk:
        return Cell(text="", level=None, url="", title=row.name, same=True)
    link = links.get(frozenset((row.pk, column.pk)))
    if link is None:
        new = f"{reverse('inventory:link-create')}?a={row.pk}&b={column.pk}"
        return Cell(text="", level=None, url=new if may_add else "", title=f"{pair}: no link")
    value = getattr(link, measure.field)
    text = f"{value:,.{measure.decimals}f}"
    return Cell(
        text=text,
        level=_level(value, most or 0.0),
        url=reverse("inventory:link-detail", args=[link.pk]),
        title=f"{pair}: {text} {measure.unit}",
    )


def _level(value: float, most: float) -> int:
    """The shade of `value` on a ramp from 0 to `most`: more is stronger."""
    return min(LEVELS - 1, int(value / most * LEVELS)) if most > 0 else 0
