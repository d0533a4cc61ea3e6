"""The DT-FM paper (§4, App. B): gains of placement in its five cases, in cost and in iteration time."""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from engine.plan.placement import baselines, scenarios
from engine.plan.placement.problem import Problem, data_cost_s, hop_cost_s
from engine.reproduce import Experiment, Explained, Outcome, Plot, Refuted, Row, Series, Untested
from engine.reproduce.dtfm_times import (
    JOBS,
    Ints,
    case_problem,
    layouts,
    megatron_mean_s,
    placed,
    timed,
)

# The last case is 'worldwide', for which figures are printed alone.
NEAR = tuple(name for name in scenarios.names() if name != "worldwide")
MICROBATCHES = (1, 2, 4, 8)
ASSUMES = "a V100 at 50 % of its peak, as §1 has it; GPipe for ours; microbatches of one sequence"
OVERLAP = "overlap of transfers and computing for Megatron; §3.5 has it for DT-FM alone"


def costs() -> Outcome:
    """Fig. 5: communication cost by the model, ours against others. The paper prints no figure of it."""
    names = scenarios.names()
    plots = [
        _over_time(number, name, case_problem(scenarios.case(name), JOBS[0]))
        for number, name in enumerate(names, start=1)
    ]
    others = {name: multiples_of_ours(name) for name in names}
    labels = list(dict.fromkeys(label for each in others.values() for label in each))
    bars = Plot(
        name="dtfm-costs",
        title="Estimated cost over ours: other starts and searches",
        x_label="case",
        y_label="x ours",
        series=tuple(_of_cases(label, [others[name].get(label) for name in names]) for label in labels),
        kind="bars",
    )
    return Outcome(rows=(), plots=(bars, *plots))


def _of_cases(label: str, values: Sequence[float | None]) -> Series:
    """A group of bars over the numbers of the cases; where it has no value there is no bar."""
    points = [(float(number), value) for number, value in enumerate(values, start=1) if value is not None]
    return Series(label=label, x=tuple(x for x, _ in points), y=tuple(y for _, y in points))


def multiples_of_ours(name: str) -> dict[str, float]:
    """The cost of other placements of a case over that of ours, by their names.

    All are matched and ordered as ours is, except the last, which is how the authors score a random layout.
    """
    task, ours = case_problem(scenarios.case(name), JOBS[0]), placed(name, JOBS[0])
    raw = float(np.mean([_raw_s(task, layout) for layout in layouts()]))
    starts = {
        ("machine-aware" if start.name.startswith("machine-aware") else start.name): start.cost_s
        for start in (*ours.starts, *baselines.all_of(task, 0))
    }
    return {label: cost / ours.cost_s for label, cost in {**starts, "random as it stands": raw}.items()}


def _raw_s(task: Problem, layout: Ints) -> float:
    """The cost of a layout as it stands: stage by stage, without matching or ordering."""
    groups = layout.reshape(task.stages, task.replicas)
    return float(data_cost_s(task, groups).max() + hop_cost_s(task, groups.T).sum())


def _over_time(number: int, name: str, task: Problem) -> Plot:
    lines = {"ours": placed(name, JOBS[0]).history}
    for label, search in (
        ("plain genetic", baselines.plain_genetic(task, 0)),
        ("the paper's search", baselines.published_search(task, 0)),
    ):
        book, entries = search.book, int(search.book.entries[0])
        lines[label] = tuple(zip(book.at[:entries].tolist(), book.fell_to[:entries].tolist(), strict=True))
    series = []
    for label, falls in lines.items():
        last = baselines.GENERATIONS
        points = [*(fall for fall in falls if fall[0] <= last), (last, falls[-1][1])]
        series.append(
            Series(label=label, x=tuple(float(x) for x, _ in points), y=tuple(y for _, y in points))
        )
    return Plot(
        name=f"dtfm-fig5-{number}",
        title=f"Case {number}: estimated cost over evaluations (as Fig. 5)",
        x_label="evaluations",
        y_label="s",
        series=tuple(series),
    )


def iterations() -> Outcome:
    """Figs. 4 and 6: simulated iteration times in the five cases."""
    return Outcome(rows=(*_over_megatron(), *_price()), plots=(_bars(), _by_scheduler()))


def _over_megatron() -> tuple[Row, ...]:
    near = {name: gains(name) for name in NEAR}
    far = gains("worldwide")
    each = ", ".join(f"{min(all_):.2f} to {max(all_):.2f}" for all_ in near.values())
    waiting = min(min(gains(name, overlapped=False)) for name in NEAR)
    best = gains("worldwide", MICROBATCHES)
    rows = (
        Row(
            name="over Megatron, cases 1 to 4, least",
            paper=1.2,
            ours=min(min(all_) for all_ in near.values()),
            unit="x",
            tolerance=0.1,
            expected_deviation=-0.1022,
            answer=Explained(cause=OVERLAP, without_cause=waiting),
            note=f"case by case {each}",
        ),
        Row(
            name="over Megatron, cases 1 to 4, most",
            paper=2.5,
            ours=max(max(all_) for all_ in near.values()),
            unit="x",
            answer=Untested(
                why="case 3 sets it, and whether its pairs of GPUs share the 1.12 Gbps is not printed"
            ),
        ),
        Row(
            name="over Megatron, case 5, least",
            paper=3.8,
            ours=min(far),
            unit="x",
            tolerance=0.1,
            note=f"{min(best):.2f} with Megatron's best microbatch",
        ),
        Row(
            name="over Megatron, case 5, most",
            paper=4.8,
            ours=max(far),
            unit="x",
            tolerance=0.1,
            expected_deviation=0.4518,
            answer=Explained(
                cause="microbatches of one sequence for Megatron; here its best of 1, 2, 4 and 8",
                without_cause=max(best),
            ),
        ),
        Row(
            name="by the scheduler, most of all cases",
            paper=2.7,
            ours=max(max(by_scheduler(name)) for name in scenarios.names()),
            unit="x",
            answer=Untested(
                why="the random layouts are not printed, and the slowest of their links sets the figure"
            ),
            note=f"{min(by_scheduler('worldwide')):.2f} to {max(by_scheduler('worldwide')):.2f} in case 5",
        ),
    )
    return tuple(replace(row, assumes=ASSUMES) for row in rows)


def gains(name: str, microbatches: tuple[int, ...] = (1,), *, overlapped: bool = True) -> list[float]:
    """Megatron's time over ours in a case, for each of `JOBS`."""
    return [
        megatron_mean_s(name, job, microbatches, overlapped=overlapped) / timed(name, job).ours
        for job in JOBS
    ]


def by_scheduler(name: str) -> list[float]:
    """Our time on random layouts over that on ours, for each of `JOBS`."""
    return [timed(name, job).random / timed(name, job).ours for job in JOBS]


def _price() -> tuple[Row, ...]:
    """Ours world-wide against Megatron in one data centre."""
    slower = [timed("worldwide", job).ours / timed("on-demand", job).megatron for job in JOBS]
    waiting = [
        timed("worldwide", job).ours / megatron_mean_s("on-demand", job, (1,), overlapped=False)
        for job in JOBS
    ]
    rows = (
        Row(name="price of decentralization, least", paper=1.7, ours=min(slower), unit="x", tolerance=0.1),
        Row(
            name="price of decentralization, most",
            paper=3.5,
            ours=max(slower),
            unit="x",
            tolerance=0.1,
            expected_deviation=0.1048,
            answer=Explained(cause=OVERLAP, without_cause=max(waiting)),
        ),
        Row(
            name="price of decentralization, most (§4)",
            paper=2.3,
            ours=max(slower),
            unit="x",
            expected_deviation=0.6813,
            answer=Refuted(allows="at least", bound=3.5, by="§1 and §4.1, which print 1.7 to 3.5"),
        ),
    )
    return tuple(replace(row, assumes=ASSUMES) for row in rows)


def _bars() -> Plot:
    results = [timed(name, JOBS[0]) for name in scenarios.names()]
    series = {
        "ours": [one.ours for one in results],
        "ours, random layout": [one.random for one in results],
        "Megatron, best grid": [one.megatron for one in results],
    }
    return Plot(
        name="dtfm-fig6",
        title=f"Iteration time, {JOBS[0].layers} layers, batch {JOBS[0].batch} (as Fig. 6)",
        x_label="case",
        y_label="s",
        series=tuple(_of_cases(label, y) for label, y in series.items()),
        kind="bars",
    )


def _by_scheduler() -> Plot:
    names = scenarios.names()
    series = {
        "random layout": [max(by_scheduler(name)) for name in names],
        "random groups, matched and ordered": [
            max(timed(name, job).random_solved / timed(name, job).ours for job in JOBS) for name in names
        ],
    }
    return Plot(
        name="dtfm-scheduler",
        title="Iteration time without the scheduler, most of all settings",
        x_label="case",
        y_label="x ours",
        series=tuple(_of_cases(label, y) for label, y in series.items()),
        kind="bars",
    )


EXPERIMENTS = (
    Experiment(name="dtfm-cost", title="Fig. 5: communication cost of placements", run=costs),
    Experiment(
        name="dtfm-iteration", title="Figs. 4, 6: simulated iteration time in five cases", run=iterations
    ),
)
