"""An independent check of `meridian simulate`: its output against the rules of contracts.md.

Takes the documents alone (the scenario as the user wrote it, the answer as printed) and shares no code with
the engine. `check` raises AssertionError at the first broken rule.
"""

from collections import defaultdict
from itertools import pairwise
from typing import Any

Doc = dict[str, Any]
CLOSE = 1e-6
OWN_SHARING = {"atlas": "temporal"}
OWN_RULE = {"gpipe": "late", "1f1b": "late", "varuna": "jit", "atlas": "idle"}


def check(scenario: Doc, output: Doc) -> None:
    """Assert every rule that applies to the answer `output` for `scenario`."""
    if not output["feasible"]:
        assert output["reason"], "infeasible without a reason"
        assert not output.get("spans"), "infeasible, but with spans"
        return
    facts = _Facts(scenario, output)
    check_ops(facts)
    check_transfers(facts)
    check_links(facts)
    check_limits(facts)
    check_recompute_rule(facts)
    check_figures(facts)


class _Facts:
    """The scenario's numbers and the spans, looked up by what they are."""

    def __init__(self, scenario: Doc, output: Doc) -> None:
        self.scenario, self.output = scenario, output
        self.stages, self.micro = scenario["stages"], scenario["microbatches"]
        self.pipes = scenario.get("pipelines", 1)
        dcs = scenario.get("dc_of_stage") or [0] * self.stages
        self.wan_hops = [s for s in range(self.stages - 1) if dcs[s] != dcs[s + 1]]
        policy = scenario["policy"]
        self.sharing = scenario.get("sharing") or OWN_SHARING.get(policy, "spatial")
        self.rule = scenario.get("recompute_rule") or OWN_RULE[policy]
        self.gpu: dict[tuple[int, int], list[Doc]] = defaultdict(list)
        self.op: dict[tuple[int, int, str, int], Doc] = {}
        self.crossing: dict[tuple[int, int, int, int], Doc] = {}
        for span in output["spans"]:
            self._add(span)
        for spans in self.gpu.values():
            spans.sort(key=lambda span: (span["start"], span["end"]))

    def _add(self, span: Doc) -> None:
        if span["track"] == "gpu":
            key = (span["pipeline"], span["stage"], span["op"], span["microbatch"])
            assert key not in self.op, f"twice: {key}"
            self.op[key] = span
            self.gpu[key[:2]].append(span)
            return
        where = (span["pipeline"], span["from_stage"], span["to_stage"], span["microbatch"])
        assert where not in self.crossing, f"sent twice: {where}"
        self.crossing[where] = span

    def time(self, kind: str, stage: int) -> float:
        value = self.scenario["times"].get(kind, 0)
        return value[stage] if isinstance(value, list) else value

    def duration(self, op: str, stage: int) -> float:
        if op == "B":
            return self.time("backward", stage) + self.time("weight", stage)
        return self.time({"F": "forward", "R": "recompute"}[op], stage)

    def link(self, hop: int) -> tuple[float, float]:
        """(transfer, latency) of one transfer over a hop."""
        link = self.scenario.get("lan", {})
        share = 1
        if hop in self.wan_hops:
            link = self.scenario.get("wan", {})
            if isinstance(link, list):
                link = link[self.wan_hops.index(hop)]
            share = self.pipes if self.sharing == "temporal" else 1
        return link.get("transfer", 0) / share, link.get("latency", 0)

    @property
    def tolerance(self) -> float:
        return CLOSE * max(1.0, self.output["makespan"])


def check_ops(facts: _Facts) -> None:
    """One op at a time; every F and B once; R where it must be; the right durations."""
    eps = facts.tolerance
    assert set(facts.gpu) == {(p, s) for p in range(facts.pipes) for s in range(facts.stages)}
    for (pipe, stage), spans in facts.gpu.items():
        for span in spans:
            assert span["start"] >= -eps, f"before 0: {span}"
            assert abs(span["end"] - span["start"] - facts.duration(span["op"], stage)) <= eps, (
                f"length: {span}"
            )
            assert span["op"] in ("F", "R", "B"), f"unexpected op: {span}"
            assert 0 <= span["microbatch"] < facts.micro, f"no such microbatch: {span}"
        for before, after in pairwise(spans):
            assert after["start"] >= before["end"] - eps, f"overlap: {before} {after}"
        for m in range(facts.micro):
            _check_microbatch(facts, pipe, stage, m, spans)


def _check_microbatch(facts: _Facts, pipe: int, stage: int, m: int, spans: list[Doc]) -> None:
    eps = facts.tolerance
    forward, backward = facts.op.get((pipe, stage, "F", m)), facts.op.get((pipe, stage, "B", m))
    again = facts.op.get((pipe, stage, "R", m))
    assert forward, f"F{m} missing at {pipe}, {stage}"
    assert backward, f"B{m} missing at {pipe}, {stage}"
    assert backward["start"] >= forward["end"] - eps, f"B{m} before F{m} at {pipe}, {stage}"
    if facts.time("recompute", stage) == 0:
        assert again is None, f"R{m} without recompute at {pipe}, {stage}"
    elif again is None:
        assert spans[spans.index(forward) + 1] is backward, f"R{m} missing at {pipe}, {stage}"
    else:
        assert again["start"] >= forward["end"] - eps, f"R{m} before F{m} at {pipe}, {stage}"
        assert again["end"] <= backward["start"] + eps, f"R{m} after B{m} at {pipe}, {stage}"


def check_transfers(facts: _Facts) -> None:
    """Exactly one transfer per crossing, after its op and in time for the op that needs it."""
    eps = facts.tolerance
    lan = facts.scenario.get("lan", {})
    lan_free = not lan.get("transfer", 0) and not lan.get("latency", 0)
    expected = set()
    for pipe in range(facts.pipes):
        for hop in range(facts.stages - 1):
            for m in range(facts.micro):
                for here, there, op in ((hop, hop + 1, "F"), (hop + 1, hop, "B")):
                    key = (pipe, here, there, m)
                    expected.add(key)
                    made, needed = facts.op[pipe, here, op, m], facts.op[pipe, there, op, m]
                    span = facts.crossing.get(key)
                    if span is None:
                        assert hop not in facts.wan_hops, f"transfer missing: {key}"
                        assert lan_free, f"transfer missing: {key}"
                        assert needed["start"] >= made["end"] - eps, f"too early: {needed}"
                        continue
                    _check_transfer(facts, hop, op, span, made, needed)
    assert set(facts.crossing) <= expected, "a transfer that crosses no hop"


def _check_transfer(facts: _Facts, hop: int, op: str, span: Doc, made: Doc, needed: Doc) -> None:
    eps = facts.tolerance
    transfer, latency = facts.link(hop)
    assert span["track"] == ("wan" if hop in facts.wan_hops else "lan"), f"track: {span}"
    assert span["payload"] == ("activation" if op == "F" else "gradient"), f"payload: {span}"
    assert abs(span["end"] - span["start"] - transfer) <= eps, f"length: {span}"
    assert abs(span["arrives"] - span["end"] - latency) <= eps, f"latency: {span}"
    assert span["start"] >= made["end"] - eps, f"sent before it was made: {span} {made}"
    assert needed["start"] >= span["arrives"] - eps, f"too early: {needed} {span}"


def check_links(facts: _Facts) -> None:
    """One transfer at a time per link; temporal: per WAN hop and direction of the whole cell."""
    links = defaultdict(list)
    for (pipe, here, there, _), span in facts.crossing.items():
        shared = facts.sharing == "temporal" and min(here, there) in facts.wan_hops
        links[0 if shared else pipe, here, there].append(span)
    for spans in links.values():
        spans.sort(key=lambda span: (span["start"], span["end"]))
        for before, after in pairwise(spans):
            assert after["start"] >= before["end"] - facts.tolerance, f"link carries two: {before} {after}"


def _most(intervals: list[tuple[float, float]], eps: float) -> int:
    """Most intervals that are open at once; one that starts as another ends does not meet it."""
    edges = sorted([(start + eps, 1) for start, _ in intervals] + [(end - eps, -1) for _, end in intervals])
    most = now = 0
    for _, step in edges:
        now += step
        most = max(most, now)
    return most


def _held(facts: _Facts, pipe: int, stage: int) -> list[tuple[float, float]]:
    op = facts.op
    return [(op[pipe, stage, "F", m]["start"], op[pipe, stage, "B", m]["end"]) for m in range(facts.micro)]


def check_limits(facts: _Facts) -> None:
    """memory_limit, full_limit, and the reported peak of microbatches in flight."""
    eps = facts.tolerance
    for pipe, stage in facts.gpu:
        peak = _most(_held(facts, pipe, stage), eps)
        assert facts.output["peak_in_flight"][pipe][stage] == peak, (
            f"peak_in_flight at {pipe}, {stage}: {peak}"
        )
        limit = facts.scenario.get("memory_limit")
        assert limit is None or peak <= limit, f"memory_limit {limit}: {peak} at {pipe}, {stage}"
        limit = facts.scenario.get("full_limit")
        if limit is None or facts.time("recompute", stage) == 0:
            continue
        full = []
        for m in range(facts.micro):
            begin = facts.op.get((pipe, stage, "R", m)) or facts.op[pipe, stage, "F", m]
            full.append((begin["start"], facts.op[pipe, stage, "B", m]["end"]))
        assert _most(full, eps) <= limit, f"full_limit {limit} at {pipe}, {stage}"


def check_recompute_rule(facts: _Facts) -> None:
    """When each R may start, and what follows it under ``blocking``."""
    eps = facts.tolerance
    for (pipe, stage, kind, m), span in facts.op.items():
        if kind != "R":
            continue
        if facts.rule in ("jit", "blocking") and stage + 1 < facts.stages:
            opened = facts.op[pipe, stage + 1, "B", m]["start"]
            assert span["start"] >= opened - eps, f"{facts.rule}: R before B downstream: {span}"
        if facts.rule == "late" and stage + 1 < facts.stages:
            sent = facts.crossing.get((pipe, stage + 1, stage, m))
            there = sent["arrives"] if sent else facts.op[pipe, stage + 1, "B", m]["end"]
            assert span["start"] >= there - eps, f"late: R before its gradient: {span}"
        if facts.rule == "blocking":
            order = facts.gpu[pipe, stage]
            after = order[order.index(span) + 1]
            assert (after["op"], after["microbatch"]) == ("B", m), f"blocking: {span} then {after}"


def check_figures(facts: _Facts) -> None:
    """Makespan, bound, utilization, bubbles and largest span, from the spans alone."""
    out, eps = facts.output, facts.tolerance
    ends = [span["end"] for span in out["spans"] if span["track"] == "gpu"]
    makespan = max(ends)
    assert abs(out["makespan"] - makespan) <= eps, f"makespan {out['makespan']}: {makespan}"
    assert out["lower_bound"] <= makespan, f"lower_bound {out['lower_bound']} above {makespan}"
    assert out["lower_bound"] > 0
    assert abs(out["gap"] - (makespan / out["lower_bound"] - 1)) <= CLOSE
    assert not out["optimal"] or out["gap"] <= CLOSE
    busy = sum(s["end"] - s["start"] for s in out["spans"] if s["track"] == "gpu")
    gpus = facts.pipes * facts.stages
    assert abs(out["utilization"] - busy / (makespan * gpus)) <= CLOSE, "utilization"
    assert abs(out["utilization"] + out["bubble_fraction"] - 1) <= CLOSE, "bubble_fraction"
    longest = max(spans[-1]["end"] - spans[0]["start"] for spans in facts.gpu.values())
    assert abs(out["largest_stage_span"] - longest) <= eps, "largest_stage_span"
    for (pipe, stage), spans in facts.gpu.items():
        _check_bubbles(out["bubbles"][pipe][stage], spans, makespan)


def _check_bubbles(bubbles: Doc, spans: list[Doc], makespan: float) -> None:
    edges = [0.0, *[edge for span in spans for edge in (span["start"], span["end"])], makespan]
    gaps = [b - a for a, b in zip(edges[::2], edges[1::2], strict=True) if b - a > 1e-9 * makespan]
    assert bubbles["count"] == len(gaps), f"bubbles: {bubbles}, {gaps}"
    mean = sum(gaps) / len(gaps) if gaps else 0.0
    assert abs(bubbles["mean"] - mean) <= CLOSE * max(1.0, makespan), f"bubbles: {bubbles}, {gaps}"
