"""The Atlas paper (§3, 4, 6.2–6.4): single-cell schedules, TCP, and clusters of data centres."""

from engine.cluster import tcp
from engine.reproduce import Experiment, Outcome, Plot, Row, Series
from engine.reproduce.atlas_clusters import cross_dc_gpus, dc_balance
from engine.reproduce.atlas_testbed import multiple_tcp, single_tcp
from engine.reproduce.atlas_wan import (
    bandwidth_by_distance,
    dp_slow_down,
    iteration_by_latency,
    iteration_by_microbatches,
    jitter,
    pp_slow_down,
)
from engine.reproduce.contention import makespan_of, simulate_under, under_all
from engine.schedule.scenario import Link, Scenario, Times
from engine.simulate import simulate

FIG6 = {
    "varuna": "R(m) may start once B(m) has started on the next stage; the last stage skips R before its B",
    "atlas": "contention by rank; R runs when no F can; the last stage skips R before its B",
}


def fig6() -> Outcome:
    """Fig. 6: two pipelines of six stages in three data centres, M = 4; F = R = 1, B = 2, C = 2."""
    scenario = Scenario(
        stages=6,
        dc_of_stage=[0, 0, 1, 1, 2, 2],
        pipelines=2,
        microbatches=4,
        times=Times(forward=1, recompute=1, backward=2),
        wan=Link(transfer=2),
        policy="varuna",
    )
    atlas = under_all(lambda order: makespan_of(simulate_under(scenario, order)))
    varuna = Row(
        name="fig6 varuna",
        paper=38,
        ours=makespan_of(simulate(scenario)),
        unit="slots",
        tolerance=0,
        assumes=FIG6["varuna"],
    )
    shared = Row(
        name="fig6 atlas",
        paper=36,
        ours=atlas["rank"],
        unit="slots",
        tolerance=0,
        by_order=atlas,
        assumes=FIG6["atlas"],
    )
    return Outcome(rows=(varuna, shared))


def table1() -> Outcome:
    """Table 1: bandwidth of one TCP connection by latency."""
    measured = tcp.measured_single_connection()
    rates = tuple(
        Row(
            name=f"table1 {latency * 1e3:.0f} ms",
            paper=rate * 8e-6,
            ours=tcp.single_connection(latency) * 8e-6,
            unit="Mbps",
            tolerance=0.021,
            assumes="one window of 23.9 Mbit a round trip, fitted to these four figures",
        )
        for latency, rate in measured.items()
    )
    milliseconds = tuple(latency * 1e3 for latency in measured)
    plot = Plot(
        name="table1",
        title="One TCP connection by latency",
        x_label="one-way latency, ms",
        y_label="Mbps",
        series=(
            Series(label="paper", x=milliseconds, y=tuple(rate * 8e-6 for rate in measured.values())),
            Series(label="ours", x=milliseconds, y=tuple(tcp.single_connection(s) * 8e-6 for s in measured)),
        ),
    )
    return Outcome(rows=rates, plots=(plot,))


EXPERIMENTS = (
    Experiment(name="atlas-fig2", title="Fig. 2: DP over the WAN, by latency", run=dp_slow_down),
    Experiment(name="atlas-fig3", title="Fig. 3: PP over the WAN, by latency", run=pp_slow_down),
    Experiment(
        name="atlas-fig5", title="Fig. 5: one and many connections, by distance", run=bandwidth_by_distance
    ),
    Experiment(name="atlas-fig6", title="Fig. 6: Varuna and Atlas on one DP-cell", run=fig6),
    Experiment(name="atlas-table1", title="Table 1: one TCP connection over the WAN", run=table1),
    Experiment(name="atlas-fig7", title="Fig. 7: variation of WAN bandwidth", run=jitter),
    Experiment(name="atlas-fig9", title="Fig. 9: iteration time by latency", run=iteration_by_latency),
    Experiment(
        name="atlas-fig10", title="Fig. 10: iteration time by microbatches", run=iteration_by_microbatches
    ),
    Experiment(name="atlas-single-tcp", title="§6.2: gain over baselines on one connection", run=single_tcp),
    Experiment(
        name="atlas-multi-tcp", title="§6.2: gain over baselines on many connections", run=multiple_tcp
    ),
    Experiment(
        name="atlas-fig11", title="§6.3, Fig. 11: throughput with more data centres", run=cross_dc_gpus
    ),
    Experiment(name="atlas-fig12", title="§6.4, Fig. 12: balancing two data centres", run=dc_balance),
)
