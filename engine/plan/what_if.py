"""What-ifs of a plan's document: a data centre lost, a link at half its bandwidth, a price doubled."""

import copy
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any, Literal

from engine.cluster import tcp

DAY_MS = 8.64e7
FIGURES = ("iteration_ms", "throughput", "cost_per_iteration", "cost_per_day", "gpus")


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """One thing of a plan's document that may come otherwise.

    name : of the data centre, or of the link: "east – west".
    values : (list of the document, index, field, new value); of a link that is listed by direction, two.
    """

    kind: Literal["lose", "halve", "double"]
    name: str
    values: tuple[tuple[str, int, str, float], ...]

    def __str__(self) -> str:
        return {
            "lose": f"without {self.name}",
            "halve": f"{self.name} at half the bandwidth",
            "double": f"{self.name} at twice the price",
        }[self.kind]


def changes(document: dict[str, Any]) -> Iterator[Change]:
    """Every data centre lost, every link at half its bandwidth, every price doubled."""
    for i, dc in enumerate(document["datacenters"]):
        if dc["gpus"]:
            yield Change(kind="lose", name=dc["name"], values=(("datacenters", i, "gpus", 0),))
    links: dict[frozenset[str], list[tuple[str, int, str, float]]] = {}
    for i, link in enumerate(document.get("links") or []):
        half = ("links", i, "bandwidth_gbps", link["bandwidth_gbps"] / 2)
        links.setdefault(frozenset(link["between"]), []).append(half)
    for values in links.values():
        first = document["links"][values[0][1]]
        yield Change(kind="halve", name=" – ".join(first["between"]), values=tuple(values))
    for i, dc in enumerate(document["datacenters"]):
        price = dc["price_per_gpu_hour"]
        if dc["gpus"] and price:
            value = ("datacenters", i, "price_per_gpu_hour", 2 * price)
            yield Change(kind="double", name=dc["name"], values=(value,))


def difference(now: float | None, before: float | None) -> float | None:
    """How much `now` is above `before`, in percent."""
    return None if now is None or not before else 100 * (now / before - 1)


def with_change(document: dict[str, Any], change: Change) -> dict[str, Any]:
    """A copy of the document after `change`."""
    changed = copy.deepcopy(document)
    for part, i, field, value in change.values:
        changed[part][i][field] = value
    follow(document, changed)
    return changed


def follow(document: dict[str, Any], changed: dict[str, Any]) -> None:
    """What follows from the changes to `changed`, a copy of `document`.

    The links of a data centre that has lost all its GPUs are gone. Where C was that of the slowest link, it
    is that of the slowest one now.
    """
    names = lost(document, changed)
    if names:
        changed["links"] = [link for link in changed.get("links", []) if names.isdisjoint(link["between"])]
    if follows_links(document):
        changed["job"]["comm_to_compute"] = transfer_to_forward(changed["job"], changed["links"])


def lost(document: dict[str, Any], changed: dict[str, Any]) -> set[str]:
    """Names of the data centres that have GPUs in `document` and none in `changed`."""
    pairs = zip(document["datacenters"], changed["datacenters"], strict=True)
    return {was["name"] for was, now in pairs if was["gpus"] and not now["gpus"]}


def follows_links(document: dict[str, Any]) -> bool:
    """Whether C of a document with explicit times is what the message takes on its slowest link."""
    job, links = document["job"], document.get("links") or []
    given = job.get("comm_to_compute")
    return bool(links) and given is not None and given == transfer_to_forward(job, links)


def transfer_to_forward(job: dict[str, Any], links: Iterable[dict[str, Any]]) -> float:
    """C: time of one message over the slowest link's node pair, per forward; 0 without links."""
    rates = [
        tcp.bandwidth(link["latency_ms"] / 1e3, link["bandwidth_gbps"] * 1e9 / 8, link.get("connections"))
        for link in links
    ]
    times = [(job.get("activation_bytes") or 0) / rate * 1e3 for rate in rates]
    return round(max(times, default=0.0) / job["forward_ms"], 6)


def no_option(names: Iterable[str], answer: dict[str, Any]) -> str:
    """A sentence on an answer without a feasible option, after the data centres `names` were lost."""
    given = " and ".join(sorted(names))
    has_schedule = any(option["iteration_ms"] is not None for option in answer["options"])
    verdict = "no option is within the limits" if has_schedule else "no plan holds the model"
    return f"{f'without {given} ' if given else ''}{verdict}: {answer['reason']}"


def figures(answer: dict[str, Any]) -> dict[str, Any]:
    """Those of an answer's best option, by the names of FIGURES; None each without one.

    throughput in pipelines/s, costs in dollars, gpus: GPUs used.
    """
    if answer["best"] is None:
        return dict.fromkeys(FIGURES)
    best = answer["options"][answer["best"]]
    time_ms, cost = best["iteration_ms"], best["cost_per_iteration"]
    per_day = None if cost is None else cost * DAY_MS / time_ms
    values = (time_ms, best["throughput"], cost, per_day, sum(best["gpus_used"].values()))
    return dict(zip(FIGURES, values, strict=True))
