"""What the pages of replays show: key figures, a table of loads and orders, charts over the load."""

from collections.abc import Callable
from typing import Any

from django.db.models.fields.json import KT

from engine.prefill.replay import REASONS
from webapp.common.figures import Column, Fact, Figures
from webapp.computations.models import Computation
from webapp.prefill.reasons import WHY
from webapp.prefill.replays.pages import pages
from webapp.prefill.replays.sources import UPLOAD

ORDER = {"fifo": "First come", "longest_fit": "Longest fit"}
REFUSED = {
    "no_bubble": "No bubble",
    "too_long": "Too long",
    "queue_full": "Queue full",
    "kv_space": "No KV space",
    "ttft": "Objective",
}


def listed(user: Any) -> Any:
    """The replays that `user` may see, as lists show them."""
    rows = pages.rows().visible_to(user).select_related("created_by").defer("request", "answer")
    return rows.annotate(trace_named=KT("request__trace_name"), bubbles_named=KT("request__bubbles"))


def first_values(user: Any, key: str) -> dict[str, Any]:
    """The form's values of an earlier replay, for a copy. Raises Http404."""
    computation = pages.named(user, key)
    values: dict[str, Any] = computation.request["values"]
    trace = f"of:{computation.pk}" if values["trace"] == UPLOAD else values["trace"]
    return {**values, "trace": trace, "name": f"{computation.name} again"[:80]}


def result_context(computation: Computation) -> dict[str, Any]:
    """Everything that the page of a replay shows of its answer."""
    answer = computation.answer or {}
    results: list[dict[str, Any]] = answer.get("results", [])
    return {
        "computation": computation,
        "asked": computation.request,
        "facts": facts(answer) if results else [],
        "tables": tables(results),
        "charts": {"lines": charts(results)} if results else None,
        "why": [(REFUSED[reason], WHY[reason]) for reason in REASONS if _refuses(results, reason)],
    }


def _refuses(results: list[dict[str, Any]], reason: str) -> bool:
    return any(result["refused"][reason] for result in results)


def facts(answer: dict[str, Any]) -> list[Fact]:
    """The key figures, of the load and order that fill the bubbles best."""
    best, trace = max(answer["results"], key=lambda result: result["utilization_after"]), answer["trace"]
    where = f"at {best['load']:g} ×, {ORDER[best['order']].lower()}"
    ttft_ms = best["ttft_ms"]["p95"]
    return [
        Fact(
            label="Utilization before",
            value=_percent(best["utilization_before"]),
            unit="%",
            beside=f"{best['gpus']:,} GPUs, iterations of {best['iteration_ms']:,.1f} ms",
        ),
        Fact(label="With prefill", value=_percent(best["utilization_after"]), unit="%", beside=where),
        Fact(
            label="Accepted there",
            value=_percent(best["accepted"] / best["requests"]),
            unit="%",
            beside=f"{best['accepted']:,} of {best['requests']:,} requests",
        ),
        Fact(
            label="TTFT there, p95",
            value="–" if ttft_ms is None else f"{ttft_ms:,.0f}",
            unit="ms",
            beside="from arrival to the KV cache",
        ),
        Fact(
            label="Training slowdown",
            value=f"{100 * max(r['training_slowdown'] for r in answer['results']):.2f}",
            unit="%",
            beside="training that prefill overlapped",
        ),
        Fact(
            label="Trace",
            value=f"{trace['requests']:,}",
            unit="requests",
            beside=f"{trace['span_ms'] / 60_000:,.1f} min, median {trace['tokens_p50']:,.0f} tokens",
        ),
    ]


def _percent(share: float) -> str:
    return f"{100 * share:.1f}"


def tables(results: list[dict[str, Any]]) -> list[Figures]:
    """What would be sold, with refusals by the reasons that occur, and how long requests take."""
    if not results:
        return []
    rows = [
        {**result, "named": ORDER[result["order"]], "accepted_share": result["accepted"] / result["requests"]}
        for result in results
    ]
    refused = [
        Column(label=REFUSED[reason], key=f"refused.{reason}", unit="refused", decimals=0, wide=True)
        for reason in REASONS
        if _refuses(results, reason)
    ]
    which = [
        Column(label="Order", key="named"),
        Column(label="Load", key="load", unit="× the trace", decimals=1),
    ]
    return [
        Figures(
            name="sold",
            title="What would be sold",
            note="Offered: prefill time that is asked for, over the bubbles' time",
            rows=rows,
            columns=[
                *which,
                Column(label="Offered", key="offered_share", unit="%", decimals=0, scale=100, wide=True),
                Column(
                    label="Before", key="utilization_before", unit="% busy", decimals=1, scale=100, wide=True
                ),
                Column(label="With", key="utilization_after", unit="% busy", decimals=1, scale=100),
                Column(label="Accepted", key="accepted_share", unit="%", decimals=1, scale=100),
                *refused,
            ],
        ),
        Figures(
            name="times",
            title="How long it takes",
            note="Of accepted requests. TTFT: from arrival until the decode GPU has the KV cache",
            rows=rows,
            columns=[*which, *_quantiles("TTFT", "ttft_ms"), *_quantiles("Queue", "queue_ms")],
        ),
    ]


def _quantiles(label: str, key: str) -> list[Column]:
    return [
        Column(label=f"{label} {name}", key=f"{key}.{name}", unit="ms", decimals=0, wide=name != "p95")
        for name in ("p50", "p95", "p99")
    ]


def charts(results: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Curves over the load for design.js, one of each order."""
    utilization = _lines(results, lambda result: 100 * result["utilization_after"])
    before = {result["load"]: 100 * result["utilization_before"] for result in results}
    utilization.append({"name": "no prefill", "points": sorted(before.items())})
    accepted = _lines(results, lambda result: 100 * result["accepted"] / result["requests"])
    ttft = _lines(results, lambda result: result["ttft_ms"]["p95"])
    queue = _lines(results, lambda result: result["queue_ms"]["p95"])
    return [
        _chart("Utilization of the GPUs", "%", utilization),
        _chart("Accepted requests", "%", accepted),
        _chart("Time to first token, p95", "ms", ttft),
        _chart("Wait in the queue, p95", "ms", queue),
    ]


def _lines(
    results: list[dict[str, Any]], value: Callable[[dict[str, Any]], float | None]
) -> list[dict[str, Any]]:
    """One line of each order: [load, value] where there is one."""
    lines = []
    for order in dict.fromkeys(result["order"] for result in results):
        points = [[r["load"], value(r)] for r in results if r["order"] == order and value(r) is not None]
        if points:
            lines.append({"name": ORDER[order].lower(), "points": points})
    return lines


def _chart(title: str, measure: str, lines: list[dict[str, Any]]) -> dict[str, Any]:
    return {"title": f"{title}, {measure}", "unit": "load, × the trace", "measure": measure, "lines": lines}
