"""An independent check of `meridian simulate`: its output against the rules of docs/dev/contracts.md.

Takes the documents alone (the scenario as the user wrote it, the answer as printed) and shares no code with
the engine. `check` raises AssertionError at the first broken rule.

A *place* is a (stage, chunk) of the printed traversal; crossing v joins places v and v + 1.
"""

from collections import defaultdict
from itertools import pairwise
from typing import Any

Doc = dict[str, Any]
CLOSE = 1e-6
OWN_SHARING = {"atlas": "temporal"}
OWN_RULE = {"gpipe": "late", "1f1b": "late", "varuna": "jit", "atlas": "idle"}
OWN_CHUNKS = {"interleaved": 2, "zb-v": 2, "crosspipe-loop": 2, "crosspipe-wave": 2, "crosspipe-udsub": 2}
OWN_TRAVERSAL = {"interleaved": "loop", "crosspipe-loop": "loop", "zb-v": "wave", "crosspipe-wave": "wave"}
NEVER_SPLIT = ("gpipe", "1f1b", "varuna", "atlas", "interleaved")
FREE = ("auto", "optimal")  # policies that choose traversal, chunks, sharing and rules themselves


def check(scenario: Doc, output: Doc) -> None:
    """Assert every rule that applies to the answer `output` for `scenario`."""
    assert output["policy"] == scenario["policy"], "policy"
    if not output["feasible"]:
        assert output["reason"], "infeasible without a reason"
        assert not output.get("spans"), "infeasible, but with spans"
        return
    facts = _Facts(scenario, output)
    check_choice(facts)
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
        self.dcs = scenario.get("dc_of_stage") or [0] * self.stages
        self.wan_hops = [s for s in range(self.stages - 1) if self.dcs[s] != self.dcs[s + 1]]
        self.chosen = output["chosen"]
        self.sharing = self.chosen["sharing"]
        self.places = [tuple(place) for place in output["traversal"]]
        self.place_at = {place: v for v, place in enumerate(self.places)}
        self.chunks = len(self.places) // self.stages
        self.gpu: dict[tuple[int, int], list[Doc]] = defaultdict(list)
        self.op: dict[tuple[int, int, str, int], Doc] = {}  # pipeline, place, kind, microbatch
        self.crossing: dict[tuple[int, str, int, int], Doc] = {}  # pipeline, payload, v, microbatch
        for span in output["spans"]:
            self._add(span)
        for spans in self.gpu.values():
            spans.sort(key=lambda span: (span["start"], span["end"]))
        self.split = any(span["op"] == "W" for spans in self.gpu.values() for span in spans)

    def _add(self, span: Doc) -> None:
        if span["track"] == "gpu":
            place = self.place_at.get((span["stage"], span["chunk"]))
            assert place is not None, f"no such place: {span}"
            key = (span["pipeline"], place, span["op"], span["microbatch"])
            assert key not in self.op, f"twice: {key}"
            self.op[key] = span
            self.gpu[span["pipeline"], span["stage"]].append(span)
            return
        place = self.place_at.get((span["from_stage"], span["chunk"]))
        assert place is not None, f"sent from no such place: {span}"
        v = place if span["payload"] == "activation" else place - 1
        assert 0 <= v < len(self.places) - 1, f"crosses nothing: {span}"
        other = self.places[v + 1 if span["payload"] == "activation" else v]
        assert span["to_stage"] == other[0], f"sent to the wrong stage: {span}"
        where = (span["pipeline"], span["payload"], v, span["microbatch"])
        assert where not in self.crossing, f"sent twice: {where}"
        self.crossing[where] = span

    def time(self, kind: str, stage: int) -> float:
        value = self.scenario["times"].get(kind, 0)
        return value[stage] if isinstance(value, list) else value

    def duration(self, op: str, stage: int) -> float:
        if op == "B" and not self.split:
            return (self.time("backward", stage) + self.time("weight", stage)) / self.chunks
        name = {"F": "forward", "R": "recompute", "B": "backward", "W": "weight"}[op]
        return self.time(name, stage) / self.chunks

    def hop(self, v: int) -> int | None:
        """The hop of crossing v: s between s and s + 1, P - 1 between the last stage and the first."""
        here, there = self.places[v][0], self.places[v + 1][0]
        if here == there:
            return None
        if self.chosen["traversal"] == "loop" and there < here:
            return self.stages - 1
        return min(here, there)

    def is_wan(self, hop: int) -> bool:
        return self.dcs[hop] != self.dcs[(hop + 1) % self.stages]

    def lan(self, stage: int) -> tuple[float, float]:
        """(transfer, latency) inside the DC of a stage."""
        link = self.scenario.get("lan", {})
        link = link[self.dcs[stage]] if isinstance(link, list) else link
        return link.get("transfer", 0), link.get("latency", 0)

    def link(self, hop: int) -> tuple[float, float]:
        """(transfer, latency) of one transfer over a hop; the latency has scatter and gather in it."""
        if not self.is_wan(hop):
            return self.lan(hop)
        link = self.scenario.get("wan", {})
        if isinstance(link, list):
            link = link[-1 if hop == self.stages - 1 else self.wan_hops.index(hop)]
        transfer, latency = link.get("transfer", 0), link.get("latency", 0)
        if self.sharing == "spatial" or self.pipes == 1:
            return transfer, latency
        away = 1 - 1 / self.pipes  # share of a message that other pipelines carry
        ends = [self.lan(hop), self.lan((hop + 1) % self.stages)]
        paces = [transfer, *(away * lan_transfer for lan_transfer, _ in ends)]
        return max(paces) / self.pipes, latency + sum(away * moves + waits for moves, waits in ends)

    def lasting(self, pipe: int, place: int, m: int) -> Doc:
        """The op whose end frees the activations of a microbatch."""
        return self.op[pipe, place, "W" if self.split else "B", m]

    @property
    def tolerance(self) -> float:
        return CLOSE * max(1.0, self.output["makespan"])


def way_of(name: str, stages: int, chunks: int) -> list[tuple[int, int]]:
    """The forward order of (stage, chunk) as docs/dev/contracts.md has it."""
    if name == "straight":
        return [(s, c) for s in range(stages) for c in range(chunks)]
    back = name == "wave"
    return [(stages - 1 - s if back and c % 2 else s, c) for c in range(chunks) for s in range(stages)]


def check_choice(facts: _Facts) -> None:
    """What was chosen is what was asked for, or the policy's own."""
    chosen, scenario, policy = facts.chosen, facts.scenario, facts.scenario["policy"]
    assert facts.places == way_of(chosen["traversal"], facts.stages, chosen["chunks"]), "traversal"
    for field in ("sharing", "chunks", "traversal"):
        choice = scenario.get(field)
        assert choice is None or chosen[field] == choice, f"{field}: {chosen[field]}, asked {choice}"
    assert not facts.split or max(facts.time("weight", s) for s in range(facts.stages)) > 0, "split"
    if policy in FREE:
        return
    assert chosen["sharing"] == (scenario.get("sharing") or OWN_SHARING.get(policy, "spatial")), "sharing"
    assert chosen["chunks"] == (scenario.get("chunks") or OWN_CHUNKS.get(policy, 1)), "chunks"
    assert chosen["traversal"] == OWN_TRAVERSAL.get(policy, "straight"), "traversal of the policy"
    rule = scenario.get("recompute_rule") or OWN_RULE.get(policy) or chosen["recompute_rule"]
    assert chosen["recompute_rule"] == rule, "recompute_rule"
    assert not (facts.split and policy in NEVER_SPLIT), f"{policy} splits"


def check_ops(facts: _Facts) -> None:
    """One op at a time; every F, B (and W) once; R where it must be; the right durations."""
    eps = facts.tolerance
    assert set(facts.gpu) == {(p, s) for p in range(facts.pipes) for s in range(facts.stages)}
    for (_, stage), spans in facts.gpu.items():
        for span in spans:
            assert span["start"] >= -eps, f"before 0: {span}"
            length = span["end"] - span["start"]
            assert span["op"] in ("F", "R", "B", "W"), f"unexpected op: {span}"
            assert abs(length - facts.duration(span["op"], stage)) <= eps, f"length: {span}"
            assert 0 <= span["microbatch"] < facts.micro, f"no such microbatch: {span}"
        for before, after in pairwise(spans):
            assert after["start"] >= before["end"] - eps, f"overlap: {before} {after}"
    for pipe in range(facts.pipes):
        for place in range(len(facts.places)):
            for m in range(facts.micro):
                _check_microbatch(facts, pipe, place, m)


def _check_microbatch(facts: _Facts, pipe: int, place: int, m: int) -> None:
    eps, stage = facts.tolerance, facts.places[place][0]
    forward, again, backward, weight = (facts.op.get((pipe, place, kind, m)) for kind in "FRBW")
    where = f"{m} at pipeline {pipe}, place {facts.places[place]}"
    assert forward, f"missing: F{where}"
    assert backward, f"missing: B{where}"
    assert backward["start"] >= forward["end"] - eps, f"before its F: B{where}"
    assert facts.split == (weight is not None), f"not all B are split: W{where}"
    assert weight is None or weight["start"] >= backward["end"] - eps, f"before its B: W{where}"
    if facts.time("recompute", stage) == 0:
        assert again is None, f"without recompute: R{where}"
    elif again is None:
        order = facts.gpu[pipe, stage]
        assert order[order.index(forward) + 1] is backward, f"missing: R{where}"
    else:
        assert again["start"] >= forward["end"] - eps, f"before its F: R{where}"
        assert again["end"] <= backward["start"] + eps, f"after its B: R{where}"


def check_transfers(facts: _Facts) -> None:
    """Exactly one transfer per crossing, after its op and in time for the op that needs it."""
    expected = set()
    for pipe in range(facts.pipes):
        for v in range(len(facts.places) - 1):
            for m in range(facts.micro):
                for payload, kind, here, there in (
                    ("activation", "F", v, v + 1),
                    ("gradient", "B", v + 1, v),
                ):
                    producer, needed = facts.op[pipe, here, kind, m], facts.op[pipe, there, kind, m]
                    expected.add((pipe, payload, v, m))
                    _check_crossing(facts, v, facts.crossing.get((pipe, payload, v, m)), producer, needed)
    assert set(facts.crossing) <= expected, "a transfer that crosses nothing"


def _check_crossing(facts: _Facts, v: int, span: Doc | None, producer: Doc, needed: Doc) -> None:
    eps, hop = facts.tolerance, facts.hop(v)
    if hop is None:
        assert span is None, f"sent within a stage: {span}"
    if span is None:
        if hop is not None:
            assert not facts.is_wan(hop), f"transfer missing: {producer} {needed}"
            assert facts.link(hop) == (0, 0), f"transfer missing: {producer} {needed}"
        assert needed["start"] >= producer["end"] - eps, f"too early: {needed}"
        return
    assert hop is not None
    transfer, latency = facts.link(hop)
    assert span["track"] == ("wan" if facts.is_wan(hop) else "lan"), f"track: {span}"
    assert abs(span["end"] - span["start"] - transfer) <= eps, f"length: {span}"
    assert abs(span["arrives"] - span["end"] - latency) <= eps, f"latency: {span}"
    assert span["start"] >= producer["end"] - eps, f"sent before it was made: {span} {producer}"
    assert needed["start"] >= span["arrives"] - eps, f"too early: {needed} {span}"


def check_links(facts: _Facts) -> None:
    """One transfer at a time per link and direction; temporal: per WAN hop of the whole cell.

    Between two stages everything that goes one way shares a link; a loop's hop from last to first is another.
    """
    links = defaultdict(list)
    for (pipe, payload, v, _), span in facts.crossing.items():
        hop = facts.hop(v)
        assert hop is not None
        shared = facts.sharing == "temporal" and facts.is_wan(hop)
        upwards = (facts.places[v][0] < facts.places[v + 1][0]) == (payload == "activation")
        links[0 if shared else pipe, hop, upwards].append(span)
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


def check_limits(facts: _Facts) -> None:
    """memory_limit, full_limit, and the reported peak of microbatches in flight; a chunk counts 1/chunks.

    A limit is one number, or one per stage.
    """
    eps = facts.tolerance
    limits = {name: facts.scenario.get(name) for name in ("memory_limit", "full_limit")}
    for pipe, stage in facts.gpu:
        held_limit, full_limit = (
            limit[stage] if isinstance(limit, list) else limit for limit in limits.values()
        )
        held, full = [], []
        for place, (at, _) in enumerate(facts.places):
            for m in range(facts.micro) if at == stage else ():
                end = facts.lasting(pipe, place, m)["end"]
                begin = facts.op[pipe, place, "F", m]
                held.append((begin["start"], end))
                full.append((facts.op.get((pipe, place, "R", m), begin)["start"], end))
        peak = _most(held, eps) / facts.chunks
        reported = facts.output["peak_in_flight"][pipe][stage]
        assert abs(reported - peak) <= CLOSE, f"peak_in_flight {reported} at {pipe}, {stage}: {peak}"
        within = held_limit is None or peak <= held_limit + CLOSE
        assert within, f"memory_limit {held_limit}: {peak} at {pipe}, {stage}"
        if full_limit is not None and facts.time("recompute", stage) > 0:
            peak = _most(full, eps) / facts.chunks
            assert peak <= full_limit + CLOSE, f"full_limit {full_limit}: {peak} at {pipe}, {stage}"


def check_recompute_rule(facts: _Facts) -> None:
    """When each R may start, and what follows it under ``blocking``."""
    eps, rule = facts.tolerance, facts.chosen["recompute_rule"]
    for (pipe, place, kind, m), span in facts.op.items():
        if kind != "R":
            continue
        if rule == "blocking":
            order = facts.gpu[pipe, facts.places[place][0]]
            after = order[order.index(span) + 1]
            assert after is facts.op[pipe, place, "B", m], f"blocking: {span} then {after}"
        if place + 1 == len(facts.places):
            continue
        downstream = facts.op[pipe, place + 1, "B", m]
        if rule in ("jit", "blocking"):
            assert span["start"] >= downstream["start"] - eps, f"{rule}: R before B downstream: {span}"
        if rule == "late":
            sent = facts.crossing.get((pipe, "gradient", place, m))
            there = sent["arrives"] if sent else downstream["end"]
            assert span["start"] >= there - eps, f"late: R before its gradient: {span}"


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
