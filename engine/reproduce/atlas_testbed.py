"""§6.2 of the Atlas paper: 12 GPUs in three data centres, three pipelines of four stages, GPT-A.

The paper does not state the compute time of a stage. C = 3 is inside its "3–4 × compute" (§6.3), fits a layer
of 412 M parameters at 65 % of an A100's peak, and makes three pipelines one DP-cell. Stages are placed on the
data centres as (2, 1, 1), which needs 6, 3 and 3 GPUs: with four GPUs in each, the ring of one stage crosses
the WAN. Propagation is not added, as the paper's own arithmetic leaves it out; rows of their own add it.
"""

import math
from dataclasses import dataclass
from functools import cache
from typing import Literal

from engine.cluster import tcp
from engine.errors import Infeasible
from engine.model.presets import preset
from engine.reproduce import Explained, Outcome, Refuted, Row
from engine.schedule import Search
from engine.schedule.auto import Auto
from engine.schedule.contention import RULES, contention_name
from engine.schedule.scenario import Contention, Link, RecomputeRule, Scenario, Times
from engine.schedule.timing import time_ops
from engine.simulate import SimulationResult, simulate

PIPELINES = 3
C = 3
SHAPE = preset("gpt-a", stages=4)
ACTIVATION_BYTES = SHAPE.activation_bytes(1, 2)
FIVE_GBPS = 5e9 / 8
FORWARD_S = ACTIVATION_BYTES / FIVE_GBPS / C
MICROBATCHES = (4, 16)
LAYOUT = (0, 0, 1, 2)
LATENCY_S = 0.040
SETTING = (
    "GPT-A, M = 4, C = 3, Atlas by rank; stages on data centres as (2, 1, 1), which 4 × 3 GPUs do not hold; "
    "40 ms set the rate of a connection (Table 1), and no message takes longer for them"
)
WITH_PROPAGATION = SETTING.replace(
    "and no message takes longer for them", "and every message over the WAN takes them"
)
# The printed utilization of Atlas, and the range of C that the paper gives ("3–4 ×", §6.3).
UTILIZATION, RATIOS = 45, (3, 4)
# Ends the search for a better schedule on every machine alike; it proves its result with less.
EFFORT = 1_000_000
Order = Literal["by rank", "in turns", "auto"]
ORDERS: tuple[Order, ...] = ("by rank", "in turns", "auto")  # of which there are rows
RULE_OF = {contention_name(rule): rule for rule in RULES}


@dataclass(frozen=True, slots=True, kw_only=True)
class Baseline:
    """A baseline, and the factor by which the paper says it is slower than Atlas."""

    label: str
    policy: str
    rule: RecomputeRule | None = None
    single: float
    multiple: float


BASELINES = (
    Baseline(label="GPipe", policy="gpipe", single=17, multiple=1.82),
    Baseline(label="Megatron", policy="1f1b", single=13, multiple=1.72),
    Baseline(label="Varuna", policy="varuna", single=12, multiple=1.52),
    Baseline(label="Varuna (blocking)", policy="varuna", rule="blocking", single=12, multiple=1.52),
)
ATLAS = Baseline(label="Atlas", policy="atlas", single=1, multiple=1)


def cell(
    what: Baseline,
    microbatches: int,
    bytes_per_s: float,
    *,
    layout: tuple[int, ...] = LAYOUT,
    latency_s: float = 0.0,
    contention: Contention | None = None,
) -> SimulationResult:
    """One DP-cell of the testbed with `bytes_per_s` between the two nodes of each pipeline."""
    scenario = Scenario(
        stages=4,
        dc_of_stage=list(layout),
        pipelines=PIPELINES,
        microbatches=microbatches,
        times=Times(forward=FORWARD_S, recompute=FORWARD_S, backward=2 * FORWARD_S),
        wan=Link(latency=latency_s, transfer=ACTIVATION_BYTES / bytes_per_s),
        policy=what.policy,
        recompute_rule=what.rule,
        contention=contention,
        spans=False,
    )
    return simulate(scenario)


def _under_rules(layout: tuple[int, ...] = LAYOUT, latency_s: float = 0.0) -> str:
    """What Atlas takes on 5 Gbps under every rule of contention."""
    slots = {
        name: _seconds(cell(ATLAS, 4, FIVE_GBPS, layout=layout, latency_s=latency_s, contention=rule))
        / FORWARD_S
        for name, rule in RULE_OF.items()
    }
    return "Atlas in slots of F: " + ", ".join(f"{name} {value:.1f}" for name, value in slots.items())


def gain(
    over: Baseline,
    microbatches: int,
    bytes_per_s: float,
    *,
    layout: tuple[int, ...] = LAYOUT,
    latency_s: float = 0.0,
) -> float:
    """Iteration time of a baseline at `bytes_per_s` over that of Atlas on 5 Gbps."""
    baseline = cell(over, microbatches, bytes_per_s, layout=layout, latency_s=latency_s)
    return _seconds(baseline) / _seconds(
        cell(ATLAS, microbatches, FIVE_GBPS, layout=layout, latency_s=latency_s)
    )


def single_tcp() -> Outcome:
    """Atlas on 5 Gbps against baselines that use PyTorch's one connection."""
    rate = tcp.measured_single_connection()[LATENCY_S]
    ratios = [
        Row(
            name=f"single TCP: Atlas over {over.label}",
            paper=over.single,
            ours=gain(over, 4, rate),
            unit="x",
            tolerance=0.1,
            assumes=SETTING,
            note=_under_rules(),
        )
        for over in BASELINES
    ]
    busy = [
        Row(
            name=f"utilization, {over.label} on one connection",
            paper=5,
            relation="at most",
            ours=100 * _busy(cell(over, 4, rate)),
            unit="%",
            tolerance=0,
            assumes=SETTING,
        )
        for over in BASELINES
    ]
    rows = (*ratios, _atlas_busy(), *busy, _at_10_ms(), *_with_propagation(), _rings(), *_other_layouts())
    return Outcome(rows=rows)


def _atlas_busy() -> Row:
    ours = 100 * _busy(cell(ATLAS, 4, FIVE_GBPS))
    return Row(
        name="utilization, Atlas",
        paper=UTILIZATION,
        ours=ours,
        unit="%",
        tolerance=0.02,
        assumes=SETTING,
        note=_under_rules(),
    )


def _at_10_ms() -> Row:
    rates = tcp.measured_single_connection()
    slower = rates[0.010] / rates[LATENCY_S]
    return Row(
        name="single TCP at 10 ms: largest gain",
        paper=2.68,
        ours=max(gain(over, 4, rates[0.010]) for over in BASELINES),
        unit="x",
        expected_deviation=0.56,
        answer=Refuted(
            allows="at least",
            bound=BASELINES[0].single / slower,
            by=f"17 x is printed at 40 ms, and a connection is only {slower:.2f} times faster here (Table 1)",
        ),
        assumes=SETTING,
    )


def _with_propagation() -> list[Row]:
    """The same with 40 ms added to every message over the WAN, Atlas's too."""
    rate = tcp.measured_single_connection()[LATENCY_S]
    cause = "propagation of 40 ms a message"
    expected = {"GPipe": -0.248, "Megatron": -0.168, "Varuna": -0.247, "Varuna (blocking)": -0.124}
    rows = [
        Row(
            name=f"with propagation: Atlas over {over.label}",
            paper=over.single,
            ours=gain(over, 4, rate, latency_s=LATENCY_S),
            unit="x",
            tolerance=0.1,
            expected_deviation=expected[over.label],
            answer=Explained(cause=cause, without_cause=gain(over, 4, rate)),
            assumes=WITH_PROPAGATION,
            note=_under_rules(latency_s=LATENCY_S),
        )
        for over in BASELINES
    ]
    busy = Row(
        name="with propagation: utilization, Atlas",
        paper=UTILIZATION,
        ours=100 * _busy(cell(ATLAS, 4, FIVE_GBPS, latency_s=LATENCY_S)),
        unit="%",
        tolerance=0.02,
        expected_deviation=-0.205,
        answer=Explained(cause=cause, without_cause=100 * _busy(cell(ATLAS, 4, FIVE_GBPS))),
        assumes=WITH_PROPAGATION,
    )
    return [*rows, busy]


def _rings() -> Row:
    """§4.2: every all-reduce ring in one data centre; §6.1: four GPUs in each of three."""
    whole = 3 * (4 // PIPELINES)
    return Row(
        name="stages whose replicas are in one data centre",
        paper=4,
        ours=whole,
        unit="of 4",
        expected_deviation=-0.25,
        answer=Refuted(
            allows="at most",
            bound=whole,
            by="three replicas of a stage fill a data centre of four GPUs but for one, and there are three",
        ),
        assumes="three pipelines of four stages on 4 × 3 GPUs, as §6.1 prints",
        note="the other rows keep every ring in one data centre, with 6, 3 and 3 GPUs",
    )


def _other_layouts() -> list[Row]:
    """The gains with the two stages of one data centre elsewhere."""
    rate = tcp.measured_single_connection()[LATENCY_S]
    rows = []
    for shown, layout in (("(1, 2, 1)", (0, 1, 1, 2)), ("(1, 1, 2)", (0, 1, 2, 2))):
        for over in BASELINES:
            far = (shown, over.label) == ("(1, 2, 1)", "Megatron")
            rows.append(
                Row(
                    name=f"stages as {shown}: Atlas over {over.label}",
                    paper=over.single,
                    ours=gain(over, 4, rate, layout=layout),
                    unit="x",
                    tolerance=0.1,
                    expected_deviation=-0.113 if far else None,
                    answer=Explained(cause="this layout: on (2, 1, 1)", without_cause=gain(over, 4, rate))
                    if far
                    else None,
                    assumes=SETTING.replace("(2, 1, 1)", shown),
                    note=_under_rules(layout),
                )
            )
    return rows


def multiple_tcp() -> Outcome:
    """Atlas against baselines that also fill the 5 Gbps: the gain of temporal sharing alone."""
    rows = [
        _alike(over, microbatches, order)
        for over in BASELINES
        for microbatches in MICROBATCHES
        for order in ORDERS
    ]
    return Outcome(rows=tuple(rows))


@cache
def slots(microbatches: int, order: str) -> float:
    """Makespan of the cell at 5 Gbps in units of F, by the name of a rule; ``auto`` is the best schedule that
    is known."""
    scenario = Scenario(
        stages=4,
        dc_of_stage=list(LAYOUT),
        pipelines=PIPELINES,
        microbatches=microbatches,
        times=Times(forward=1, recompute=1, backward=2),
        wan=Link(transfer=C),
        policy="atlas",
        contention=RULE_OF.get(order),
        sharing="temporal",
        spans=False,
    )
    result = simulate(scenario)
    if order != "auto":
        return _seconds(result)
    assert result.lower_bound is not None
    free = scenario.model_copy(update={"policy": "auto", "contention": None})
    # All times are whole numbers, and so is every makespan.
    built = Auto(effort=EFFORT).build(free, Search(seconds=math.inf, bound=math.ceil(result.lower_bound)))
    assert not isinstance(built, Infeasible)  # no limits
    return time_ops(free, built.schedule).makespan


# Which rows of M = 4 differ, and by how much. Those of M = 16 only have to stay below the printed best.
_DIFFER = {
    ("GPipe", "by rank"): -0.251,
    ("GPipe", "in turns"): -0.176,
    ("GPipe", "auto"): -0.117,
    ("Megatron", "by rank"): -0.119,
    ("Varuna", "by rank"): -0.342,
    ("Varuna", "in turns"): -0.276,
    ("Varuna", "auto"): -0.225,
    ("Varuna (blocking)", "by rank"): -0.163,
    ("Varuna (blocking)", "in turns"): -0.079,
}


def _alike(over: Baseline, microbatches: int, order: Order) -> Row:
    baseline = _seconds(cell(over, microbatches, FIVE_GBPS)) / FORWARD_S
    expected = _DIFFER.get((over.label, order)) if microbatches == 4 else None
    return Row(
        name=f"multiple TCP, M = {microbatches}: Atlas {order} over {over.label}",
        paper=over.multiple,
        relation="equal" if microbatches == 4 else "at most",
        ours=baseline / slots(microbatches, order),
        unit="x",
        tolerance=None
        if expected is not None and over.policy == "gpipe"
        else 0.05
        if microbatches == 4
        else 0.1,
        expected_deviation=expected,
        answer=None if expected is None else _why(over, order),
        assumes="GPT-A, C = 3, stages as (2, 1, 1), no propagation; printed as “up to”: M = 4 must reach it, "
        "and M = 16 not pass it",
        note=f"slots of F: {_of_all_rules(microbatches)}; the baseline {baseline:.0f}",
    )


def _of_all_rules(microbatches: int) -> str:
    """The slots of Atlas under every rule, and of the best schedule that is known."""
    return ", ".join(f"{order} {slots(microbatches, order):.0f}" for order in (*RULE_OF, "auto"))


def _why(over: Baseline, order: Order) -> Explained | Refuted:
    if over.policy == "gpipe":
        return Refuted(
            allows="at most",
            bound=_most_over_gpipe(),
            by="Atlas is busy “near 45 %” of the time, and GPipe is no slower at any C of 3 to 4",
        )
    blocking = BASELINES[-1] if over.policy == "varuna" else over
    causes = (
        [] if order == "auto" else [f"contention {order} (auto's schedule: {slots(4, 'auto'):.0f} slots)"]
    )
    if over.label == "Varuna":
        causes.insert(0, "F between R and B in Varuna")
    without = _seconds(cell(blocking, 4, FIVE_GBPS)) / FORWARD_S / slots(4, "auto")
    return Explained(cause=" and ".join(causes), without_cause=without)


def _most_over_gpipe() -> float:
    """GPipe's iteration over Atlas's, by Atlas's printed utilization, where GPipe is slowest."""
    atlas = cell(ATLAS, 4, FIVE_GBPS)
    work_s = _busy(atlas) * _seconds(atlas) / 4  # of one microbatch, mean over the GPUs
    return max(
        _seconds(cell(BASELINES[0], microbatches, C / ratio * FIVE_GBPS))
        / (microbatches * work_s / (UTILIZATION / 100))
        for ratio in RATIOS
        for microbatches in MICROBATCHES
    )


def _seconds(result: SimulationResult) -> float:
    assert result.makespan is not None  # no limits: always feasible
    return result.makespan


def _busy(result: SimulationResult) -> float:
    assert result.timeline is not None
    return result.timeline.utilization()
