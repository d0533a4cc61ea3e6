"""§3, §4.1, §4.3 and Figs. 9 and 10 of the Atlas paper: effects of WAN latency and bandwidth on training.

GPT-A's layer computes as in `atlas_testbed` (C = 3 at 5 Gbps); GPT-B's at the same utilization, by its FLOPs.
All rows here are informative: the paper prints curves, and neither batch sizes nor compute times.
"""

from dataclasses import replace

from engine.cluster import tcp
from engine.cluster.collectives import ring_all_reduce_s
from engine.cluster.regions import paths
from engine.model.presets import preset
from engine.model.transformer import Transformer
from engine.reproduce import Outcome, Plot, Row, Series
from engine.reproduce.atlas_testbed import ATLAS, BASELINES, FIVE_GBPS, FORWARD_S, Baseline
from engine.schedule.scenario import Link, Scenario, Times
from engine.simulate import simulate

INSIDE = 100e9 / 8  # bytes/s between two nodes of a data centre (§6.1)
RING = 6  # nodes of §3, two in each data centre
# Sequences an iteration at which GPT-A's share of communication is the 93 % of §3.1; GPT-B's follows.
RING_SEQUENCES = 39
PP_MICROBATCHES = 4
JITTERS = ((0.008, "US-East to Southeast Asia"), (0.023, "US-East to US-West"))
COUNTS = (4, 8, 16, 32)


def _model(name: str) -> Transformer:
    return preset(name, stages=1)


def forward_s(name: str) -> float:
    """Forward seconds of one layer for one sequence."""
    flops = _model(name).layer_forward_flops(1)
    return FORWARD_S * flops / _model("gpt-a").layer_forward_flops(1)


def dp_slow_down() -> Outcome:
    """Fig. 2: all six nodes in one ring, gradients averaged over single TCP connections."""
    rows, lines = [], []
    for name, printed in (("gpt-a", 93), ("gpt-b", 95)):
        inside = _ring_s(name, INSIDE)
        compute_s = 4 * forward_s(name) * RING_SEQUENCES  # F, R and twice F for B
        shares, slowed = [], []
        for rate in tcp.measured_single_connection().values():
            reduce_s = _ring_s(name, rate)
            shares.append(100 * reduce_s / (reduce_s + compute_s))
            slowed.append((reduce_s + compute_s) / (inside + compute_s))
        lines.append(Series(label=name, x=_latencies_ms(), y=tuple(slowed)))
        rows += [
            Row(
                name=f"DP {name} at 40 ms: communication",
                paper=printed,
                ours=shares[-1],
                unit="%",
                note=f"{RING_SEQUENCES} sequences an iteration, for GPT-A's printed share",
            ),
            Row(
                name=f"DP {name} at 40 ms: slow-down",
                paper=15 if name == "gpt-a" else None,
                ours=slowed[-1],
                unit="x",
                note="printed: more than 15; a share of 93 % allows at most 14.3",
            ),
        ]
    return Outcome(rows=tuple(rows), plots=(_by_latency("fig2", "DP over the WAN (as Fig. 2)", lines),))


def _ring_s(name: str, bytes_per_s: float) -> float:
    return ring_all_reduce_s(_model(name).layer_parameters, RING, bytes_per_s)


def pp_slow_down() -> Outcome:
    """Fig. 3: Varuna's pipeline over six nodes in three data centres, one TCP connection a hop."""
    rows, lines = [], []
    for name, printed in (("gpt-a", 89.8), ("gpt-b", 91.0)):
        here = _pipeline(name, INSIDE)
        results = [_pipeline(name, rate) for rate in tcp.measured_single_connection().values()]
        lines.append(Series(label=name, x=_latencies_ms(), y=tuple(s / here[0] for s, _ in results)))
        rows += [
            Row(
                name=f"PP {name} at 40 ms: not computing",
                paper=printed,
                ours=100 * (1 - results[-1][1]),
                unit="%",
                note=f"Varuna, M = {PP_MICROBATCHES} of one sequence; mean over all GPUs",
            ),
            Row(name=f"PP {name} at 40 ms: slow-down", paper=None, ours=results[-1][0] / here[0], unit="x"),
        ]
    return Outcome(rows=tuple(rows), plots=(_by_latency("fig3", "PP over the WAN (as Fig. 3)", lines),))


def _pipeline(name: str, bytes_per_s: float) -> tuple[float, float]:
    """Iteration seconds and utilization of Varuna on six nodes."""
    one = forward_s(name)
    result = simulate(
        Scenario(
            stages=RING,
            dc_of_stage=[0, 0, 1, 1, 2, 2],
            microbatches=PP_MICROBATCHES,
            policy="varuna",
            times=Times(forward=one, recompute=one, backward=2 * one),
            wan=Link(transfer=_model(name).activation_bytes(1, 2) / bytes_per_s),
            spans=False,
        )
    )
    assert result.timeline is not None  # no limits: always feasible
    return result.timeline.makespan, result.timeline.utilization()


def bandwidth_by_distance() -> Outcome:
    """Fig. 5: one and many TCP connections from US-East, by measured round-trip times."""
    measured = sorted(
        (path.latency_ms, other.code, path.bandwidth_gbps)
        for ends, path in paths().items()
        if "azure:eastus" in ends and path.latency_ms is not None and path.bandwidth_gbps is not None
        for other in path.ends
        if other.cloud == "azure" and other.name != "azure:eastus"
    )
    rows = tuple(
        Row(
            name=f"US-East to {code}, {latency:.0f} ms: {label}",
            paper=printed,
            ours=gbps,
            unit="Gbps",
            note=note,
        )
        for latency, code, many in measured
        for label, printed, gbps, note in (
            ("one connection", None, tcp.single_connection(latency / 1e3) * 8e-9, "window formula"),
            ("64 connections", 5.0, many, "measured 2022; no cap of 5 Gbps on Azure then"),
        )
    )
    latencies = tuple(latency for latency, *_ in measured)
    plot = Plot(
        name="fig5",
        title="Bandwidth from US-East (as Fig. 5)",
        x_label="one-way latency, ms",
        y_label="Gbps",
        series=(
            Series(label="one connection", x=latencies, y=tuple(row.ours for row in rows[::2])),
            Series(label="64 connections, measured", x=latencies, y=tuple(row.ours for row in rows[1::2])),
        ),
    )
    return Outcome(rows=rows, plots=(plot,))


def jitter() -> Outcome:
    """Fig. 7: what the measured variation of WAN bandwidth does to Atlas's iteration."""
    rows = []
    for variation, where in JITTERS:
        result = simulate(_testbed(ATLAS, "gpt-a", 4, FIVE_GBPS).model_copy(update={"jitter": variation}))
        assert result.robustness is not None
        assert result.planned_makespan is not None
        rows.append(
            Row(
                name=f"CoV {100 * variation:g} %: 95 % of iterations within",
                paper=None,
                ours=100 * (result.robustness.p95 / result.planned_makespan - 1),
                unit="% of the planned",
                note=f"{where}; every op and transfer by itself, {result.robustness.draws} draws",
            )
        )
    return Outcome(rows=tuple(rows))


def _testbed(what: Baseline, name: str, microbatches: int, bytes_per_s: float) -> Scenario:
    one = forward_s(name)
    return Scenario(
        stages=4,
        dc_of_stage=[0, 0, 1, 2],
        pipelines=3,
        microbatches=microbatches,
        policy=what.policy,
        times=Times(forward=one, recompute=one, backward=2 * one),
        recompute_rule=what.rule,
        wan=Link(transfer=_model(name).activation_bytes(1, 2) / bytes_per_s),
        spans=False,
    )


def _seconds(what: Baseline, name: str, microbatches: int, bytes_per_s: float) -> float:
    makespan = simulate(_testbed(what, name, microbatches, bytes_per_s)).makespan
    assert makespan is not None  # no limits: always feasible
    return makespan


def iteration_by_latency() -> Outcome:
    """Fig. 9: GPT-A and GPT-B, M = 4 and 16, baselines on one connection."""
    rates = tcp.measured_single_connection()
    plots, rows = [], []
    for name in ("gpt-a", "gpt-b"):
        for count in (4, 16):
            atlas = _seconds(ATLAS, name, count, FIVE_GBPS)
            lines = [
                Series(
                    label=over.label,
                    x=_latencies_ms(),
                    y=tuple(_seconds(over, name, count, rate) for rate in rates.values()),
                )
                for over in BASELINES
            ]
            gains = {line.label: line.y[-1] / atlas for line in lines}
            rows.append(
                Row(
                    name=f"{name}, M = {count}, 40 ms: largest gain",
                    paper=None,
                    ours=max(gains.values()),
                    unit="x",
                    note=f"over {max(gains, key=lambda label: gains[label])}"
                    + ("; the paper: smaller than for M = 4" if count == 16 else ""),
                )
            )
            flat = Series(label=ATLAS.label, x=_latencies_ms(), y=(atlas,) * len(rates))
            plots.append(
                _by_latency(f"fig9-{name}-m{count}", f"{name}, M = {count} (as Fig. 9)", [*lines, flat])
            )
    plots = [replace(plot, y_label="s an iteration") for plot in plots]
    return Outcome(rows=tuple(rows), plots=tuple(plots))


def iteration_by_microbatches() -> Outcome:
    """Fig. 10: the same with every policy on 5 Gbps, by the number of microbatches."""
    plots, rows = [], []
    for name in ("gpt-a", "gpt-b"):
        lines = [
            Series(
                label=what.label,
                x=tuple(map(float, COUNTS)),
                y=tuple(_seconds(what, name, count, FIVE_GBPS) for count in COUNTS),
            )
            for what in (*BASELINES, ATLAS)
        ]
        best = {
            line.label: max(y / atlas for y, atlas in zip(line.y, lines[-1].y, strict=True))
            for line in lines[:-1]
        }
        rows += [
            Row(name=f"{name}, many connections: most over {label}", paper=None, ours=gain, unit="x")
            for label, gain in best.items()
        ]
        plots.append(
            Plot(
                name=f"fig10-{name}",
                title=f"{name}, 5 Gbps for all (as Fig. 10)",
                x_label="microbatches",
                y_label="s an iteration",
                series=tuple(lines),
            )
        )
    return Outcome(rows=tuple(rows), plots=tuple(plots))


def _latencies_ms() -> tuple[float, ...]:
    return tuple(latency * 1e3 for latency in tcp.measured_single_connection())


def _by_latency(name: str, title: str, lines: list[Series]) -> Plot:
    return Plot(
        name=name,
        title=title,
        x_label="one-way latency, ms",
        y_label="times the iteration in one DC",
        series=tuple(lines),
    )
