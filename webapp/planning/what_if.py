"""What if: a plan's document with other GPUs, links, budget or C, as the address of its page names them.

`gpus-2=24` is of the third data centre, `latency-0` and `bandwidth-0` of the first link; `budget`, `c`.
"""

import copy
import json
import re
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from django.utils.text import capfirst

from engine.errors import InputError
from engine.inputs import parse
from engine.plan.answer import WHAT_IF_S, plan
from engine.plan.request import PlanRequest
from engine.plan.what_if import follow, follows_links
from webapp.common.queries import whole
from webapp.planning.models import Plan

LEAST_GPUS, LEAST_MS, LEAST_GBPS = 16, 50.0, 10.0  # where a slider ends at least
MOST_SLIDERS = 60  # more data centres or links than this have no sliders each


@dataclass(frozen=True, slots=True, kw_only=True)
class Slider:
    """One thing to change: its parameter, value, and where it begins and ends.

    price, price_name : $/GPU h of a data centre whose GPUs these are, and the parameter that changes it.
    """

    name: str
    label: str
    unit: str
    value: float
    planned: float
    least: float
    most: float
    step: float
    price: float | None = None
    price_name: str = ""

    @property
    def is_changed(self) -> bool:
        return self.value != self.planned


def sliders(request: dict[str, Any], changed: dict[str, Any]) -> dict[str, list[Any]]:
    """{"gpus", "job"} sliders and "links" [(pair, sliders)] of a plan's document and of the changed one."""
    dcs = list(zip(request["datacenters"], changed["datacenters"], strict=True))
    links = _links(request, changed)
    if len(dcs) > MOST_SLIDERS or len(links) > MOST_SLIDERS:
        return {"gpus": [], "links": [], "job": []}
    return {
        "gpus": [
            Slider(
                name=f"gpus-{i}",
                label=was["name"],
                unit="GPUs",
                planned=was["gpus"],
                value=now["gpus"],
                least=0,
                most=max(2 * was["gpus"], now["gpus"], LEAST_GPUS),
                step=1,
                price=now["price_per_gpu_hour"],
                price_name=f"price-{i}",
            )
            for i, (was, now) in enumerate(dcs)
        ],
        "links": [(_between(pair[0]), list(_of_link(i, *pair))) for i, pair in enumerate(links)],
        "job": list(_of_job(request, changed)),
    }


def _links(request: dict[str, Any], changed: dict[str, Any]) -> list[tuple[dict[str, Any], dict[str, Any]]]:
    """Each link of a plan, and what it is after the changes; that of a lost data centre is as it was."""
    after = {tuple(link["between"]): link for link in changed.get("links", [])}
    return [(link, after.get(tuple(link["between"]), link)) for link in request.get("links", [])]


def _between(link: dict[str, Any]) -> str:
    return " – ".join(link["between"])


def _of_link(i: int, was: dict[str, Any], now: dict[str, Any]) -> Iterator[Slider]:
    yield Slider(
        name=f"latency-{i}",
        label="latency",
        unit="ms",
        planned=was["latency_ms"],
        value=now["latency_ms"],
        least=0,
        step=0.5,
        most=max(2 * was["latency_ms"], now["latency_ms"], LEAST_MS),
    )
    yield Slider(
        name=f"bandwidth-{i}",
        label="bandwidth",
        unit="Gbit/s",
        planned=was["bandwidth_gbps"],
        value=now["bandwidth_gbps"],
        least=0.1,
        most=max(2 * was["bandwidth_gbps"], now["bandwidth_gbps"], LEAST_GBPS),
        step=0.1,
    )


def _of_job(request: dict[str, Any], changed: dict[str, Any]) -> Iterator[Slider]:
    was, now = request["job"].get("comm_to_compute"), changed["job"].get("comm_to_compute")
    if was is not None and not follows_links(request):
        yield Slider(
            name="c",
            label="Transfer time / forward time, C",
            unit="",
            planned=was,
            value=now,
            least=0,
            most=max(2 * was, now, 4.0),
            step=0.01,
        )


def changed(request: dict[str, Any], query: Mapping[str, str]) -> tuple[dict[str, Any], dict[str, str]]:
    """The document as `query` changes it, and the parameters that change anything.

    Where C followed from the message and the slowest link (explicit times), it follows the changed links.

    Raises InputError where a parameter is no number, or the engine refuses the document.
    """
    document = copy.deepcopy(request)
    used: dict[str, str] = {}

    def put(holder: dict[str, Any], key: str, name: str, value: float | None) -> None:
        if holder.get(key) != value:
            holder[key] = value
            used[name] = query[name]

    for name in query:
        kind, _, index = name.partition("-")
        at = whole(index)
        if at is None:
            continue
        if kind == "gpus" and at < len(document["datacenters"]):
            put(document["datacenters"][at], "gpus", name, _whole(name, query[name]))
        elif kind == "price" and at < len(document["datacenters"]):
            put(document["datacenters"][at], "price_per_gpu_hour", name, _number(name, query[name]))
        elif kind in FIGURES and at < len(document.get("links", [])):
            put(document["links"][at], FIGURES[kind], name, _number(name, query[name]))
    if used:
        parse(PlanRequest, document)  # a link that the engine refuses has no time for a message
    follow(request, document)
    if not follows_links(request) and "c" in query and request["job"].get("comm_to_compute") is not None:
        put(document["job"], "comm_to_compute", "c", _number("c", query["c"]))
    if "budget" in query:
        limit = _number("budget", query["budget"]) if query["budget"] else None
        put(document, "budget_per_iteration", "budget", limit)
    if used:
        parse(PlanRequest, document)
    return document, used


FIGURES = {"latency": "latency_ms", "bandwidth": "bandwidth_gbps"}
PARAMETERS = {"gpus": "gpus", "price_per_gpu_hour": "price"} | {v: name for name, v in FIGURES.items()}


def _number(name: str, text: str) -> float:
    try:
        return float(text)
    except ValueError:
        raise InputError(name, text, "must be a number") from None


def _whole(name: str, text: str) -> int:
    gpus = whole(text)
    if gpus is None:
        raise InputError(name, text, "must be a whole number of GPUs from 0")
    return gpus


def differences(request: dict[str, Any], changed_request: dict[str, Any]) -> list[str]:
    """The differences in words: "us-west 12 → 24 GPUs"."""
    lines = [
        f"{was['name']} {was['gpus']:,} → {now['gpus']:,} GPUs" if now["gpus"] else f"without {was['name']}"
        for was, now in zip(request["datacenters"], changed_request["datacenters"], strict=True)
        if was["gpus"] != now["gpus"]
    ]
    lines += [
        f"{was['name']} ${was['price_per_gpu_hour']:g} → ${now['price_per_gpu_hour']:g}/GPU h"
        for was, now in zip(request["datacenters"], changed_request["datacenters"], strict=True)
        if was["price_per_gpu_hour"] != now["price_per_gpu_hour"]
    ]
    for was, now in _links(request, changed_request):
        pair = _between(was)
        for field, unit in (("latency_ms", "ms"), ("bandwidth_gbps", "Gbit/s")):
            if was[field] != now[field]:
                lines.append(f"{pair} {was[field]:g} → {now[field]:g} {unit}")
    was_c, now_c = (document["job"].get("comm_to_compute") for document in (request, changed_request))
    if was_c != now_c:
        lines.append(f"C {was_c:g} → {now_c:.3g}")
    before, after = (document.get("budget_per_iteration") for document in (request, changed_request))
    if before != after:
        old, new = (f"${value:g}" if value is not None else "none" for value in (before, after))
        lines.append(f"cost limit {old} → {new}")
    return lines


def answer_at_once(document: dict[str, Any]) -> tuple[dict[str, Any], float]:
    """The plan's answer to a document with the best fast policy, and the ms that it took.

    Raises InputError as `engine.plan.answer.plan`.
    """
    text, took_ms = _answered(json.dumps(document, sort_keys=True))
    return json.loads(text), took_ms


@lru_cache(maxsize=64)
def _answered(text: str) -> tuple[str, float]:
    """Kept as text: whoever reads it may change what they get."""
    began = time.perf_counter()
    result = plan(parse(PlanRequest, json.loads(text)), budget_s=WHAT_IF_S).as_dict()
    return json.dumps(result), (time.perf_counter() - began) * 1e3


@dataclass(frozen=True, slots=True, kw_only=True)
class WhatIf:
    """A plan as the address asks for it: its own document, or a changed one.

    used : the parameters that change something;  error : why a change cannot be, else empty.
    at, says : the parameter that the error is about, if it is one's alone, and what may stand there.
    """

    plan: Plan
    document: dict[str, Any]
    used: dict[str, str]
    error: str = ""
    at: str = ""
    says: str = ""

    @property
    def is_changed(self) -> bool:
        return bool(self.used)


def _parameter(field: str) -> str:
    """The parameter that changes `field` of the document; a parameter's own name stays."""
    place = re.fullmatch(r"(?:datacenters|links)\[(\d+)\]\.(\w+)", field)
    if place:
        index, name = place.groups()
        return f"{PARAMETERS[name]}-{index}" if name in PARAMETERS else ""
    return {"budget_per_iteration": "budget", "job.comm_to_compute": "c"}.get(field, field)


def what_if_of(plan: Plan, query: Mapping[str, str]) -> WhatIf:
    """What the address of `plan`'s page asks for."""
    try:
        document, used = changed(plan.request, query)
    except InputError as error:
        says = f"{capfirst(error.allowed)}."
        return WhatIf(
            plan=plan,
            document=plan.request,
            used={},
            error=f"{error}.",
            at=_parameter(error.field),
            says=says,
        )
    return WhatIf(plan=plan, document=document, used=used)
