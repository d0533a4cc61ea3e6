"""Template tags that every page has without loading them: times that the browser puts in the reader's zone,
and the trail of pages above this one."""

from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Any

from django import template
from django.urls import Resolver404, resolve
from django.utils import timezone
from django.utils.html import format_html, format_html_join
from django.utils.safestring import SafeString

from engine.schedule.contention import contention_name, schedule_name
from engine.schedule.registry import name_of
from webapp.common.additions import templates_at
from webapp.common.money import dollars, exact_dollars

register = template.Library()
register.filter("dollars", dollars)
register.filter("exact_dollars", exact_dollars)
register.filter("policy_name", name_of)
register.filter("contention_name", contention_name)
DASH = "–"
# How a time is written; static/js/lib/times.js writes the same in the reader's zone.
STYLES = {"second": "%Y-%m-%d %H:%M:%S", "minute": "%Y-%m-%d %H:%M", "day": "%Y-%m-%d", "clock": "%H:%M:%S"}


@register.filter
def strategy_name(strategy: dict[str, Any]) -> str:
    """Policy and rule of contention, where it has one, of the strategy of a job's document; else swap."""
    if "policy" not in strategy:
        return "swap"
    return schedule_name(strategy["policy"], strategy.get("contention"))


@register.filter
def when(value: datetime | None, style: str = "second") -> str | SafeString:
    """`value` as a time element: in UTC with the zone's name, which the browser changes to the reader's zone.

    `style` is second, minute, day or clock; with "cell" behind it ("minute cell") the zone is left to the
    head of the column. "ago" says how long ago it was. Absent is a dash.
    """
    if value is None:
        return DASH
    moment = value.astimezone(UTC)
    name, _, rest = style.partition(" ")
    if name == "ago":
        text = ago(moment)
    else:
        text = moment.strftime(STYLES[name]) + ("" if rest == "cell" or name == "day" else " UTC")
    # Digits, signs and words of ours: nothing to escape, and lists have hundreds of times.
    machine, title = moment.isoformat(timespec="milliseconds"), moment.strftime(STYLES["second"])
    return SafeString(f'<time datetime="{machine}" data-when="{style}" title="{title} UTC">{text}</time>')


def ago(moment: datetime) -> str:
    """How long ago `moment` was, in one unit: 41 s ago, 52 min ago, 3 h ago, 6 d ago."""
    seconds = round((timezone.now() - moment).total_seconds())
    for size, unit in ((86_400, "d"), (3600, "h"), (60, "min")):
        if abs(seconds) >= size:
            amount = f"{abs(seconds) // size} {unit}"
            break
    else:
        amount = f"{abs(seconds)} s"
    return f"in {amount}" if seconds < 0 else f"{amount} ago"


@register.simple_tag
def bar(whole: float | None, *parts: str | float | None) -> str | SafeString:
    """A bar whose length is `whole`, with parts given as class, value, class, value …; the rest is pale.

    Widths are numbers of the drawing: a style attribute would be refused by the page's own policy.
    """
    if not whole:
        return SafeString('<svg class="bar" viewBox="0 0 100 6" aria-hidden="true"></svg>')
    left, drawn = 0.0, []
    for name, value in zip(parts[::2], parts[1::2], strict=True):
        width = 100 * min(1.0, max(0.0, float(value or 0) / whole))
        width = min(width, 100 - left)
        if width > 0:
            drawn.append((f"{left:.2f}", f"{width:.2f}", name))
        left += width
    drawn.append((f"{left:.2f}", f"{100 - left:.2f}", "rest"))
    rects = format_html_join("", '<rect x="{}" y="0" width="{}" height="6" class="{}"/>', drawn)
    return format_html(
        '<svg class="bar" viewBox="0 0 100 6" preserveAspectRatio="none" aria-hidden="true">{}</svg>', rects
    )


@register.filter
def share(part: float | None, whole: float | None) -> float | None:
    """`part` of `whole` in %; None where either is unknown."""
    return None if part is None or not whole else 100 * part / whole


@register.filter
def as_bytes(size: float) -> str:
    """Bytes with their decimal unit: 5 MB is 5,000,000 bytes."""
    for unit_size, unit in ((1e12, "TB"), (1e9, "GB"), (1e6, "MB"), (1e3, "kB")):
        if size >= unit_size:
            count = size / unit_size
            return f"{count:,.3g} {unit}" if count < 999.5 else f"{count:,.0f} {unit}"
    return f"{size:,.0f} B"


@register.filter
def plain(value: object) -> str:
    """A number, or several, as people write them: 2.0 is 2."""
    if isinstance(value, list | tuple):
        return ", ".join(plain(item) for item in value)
    return f"{value:g}" if isinstance(value, float) else str(value)


@register.simple_tag(takes_context=True)
def additions(context: template.Context, place: str) -> SafeString:
    """What later apps add to a page at `place` (webapp/common/additions.py), with the page's context."""
    assert context.template is not None, "a context is bound to its page while that is drawn"
    engine = context.template.engine
    return SafeString("".join(engine.get_template(path).render(context) for path in templates_at(place)))


@register.simple_tag(takes_context=True)
def trail(context: template.Context) -> list[tuple[str, str]]:
    """[(label, url)] of the pages above this one, the farthest first.

    A view names them itself in `crumbs`; else they are the pages whose addresses begin this one's: lists by
    their name in the navigation, things by the object that the view put into the context under its kind.
    """
    crumbs = context.get("crumbs")
    if crumbs is not None:
        return list(crumbs)
    request = context.get("request")
    if request is None or request.path == "/":
        return []
    return list(_above(context, request.path)) or [("Overview", "/")]


def _above(context: template.Context, path: str) -> Iterator[tuple[str, str]]:
    site = context.get("site") or {}
    names = {item["url"]: item["label"] for item in site.get("nav", ())}
    parts = path.strip("/").split("/")
    for depth in range(1, len(parts)):
        url = f"/{'/'.join(parts[:depth])}/"
        label = names.get(url) or _label(context, url)
        if label:
            yield label, url


def _label(context: template.Context, url: str) -> str:
    try:
        match = resolve(url)
    except Resolver404:
        return ""
    kind, _, page = (match.url_name or "").rpartition("-")
    if page == "detail":
        form = context.get("form")
        thing = context.get(kind) or context.get("object") or getattr(form, "instance", None)
        return str(thing or "")
    return url.strip("/").rsplit("/", 1)[-1].replace("-", " ").capitalize() if page == "list" else ""


@register.filter
def thousands(value: float | None) -> str:
    """A number in thousands, three digits at least: 90.0, 4,698; two of what would be nothing: 0.045."""
    if value is None:
        return DASH
    kilo = float(value) / 1e3
    if 0 < abs(kilo) < 0.1:
        return f"{kilo:.2g}"
    return f"{kilo:,.0f}" if abs(kilo) >= 100 else f"{kilo:,.1f}"


@register.filter
def signed(value: float | None, decimals: int) -> str:
    """A difference with its sign: +1.20, −3.41, 0.00."""
    if value is None:
        return DASH
    text = f"{abs(value):,.{decimals}f}"
    zero = not float(text.replace(",", ""))
    return text if zero else f"{'+' if value > 0 else '−'}{text}"


@register.filter
def percent(share: float | None) -> str:
    """A share of 1 in %, with one decimal."""
    return DASH if share is None else f"{100 * share:.1f}"
