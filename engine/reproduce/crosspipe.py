"""The CrossPipe slides (USENIX ATC 2025): data against pipeline parallelism over the WAN; tables M8, M70."""

import csv
import math
from dataclasses import replace
from importlib.resources import files

import numpy as np

from engine.errors import Infeasible
from engine.model.presets import PRESETS
from engine.plan.cross_dc import Boundary, Choice, CrossDcJob, data_parallel, pipeline_parallel
from engine.reproduce import Experiment, Explained, Outcome, Plot, Refuted, Row, Series, Untested
from engine.reproduce.contention import makespan_of
from engine.schedule.scenario import Link, Scenario, Times
from engine.simulate import simulate

# Llama-3 405B as its report trains it: 16 M tokens a step in sequences of 8,192 over 64 pipelines.
TOKENS_PER_STEP = 16 * 2**20
STAGES, REPLICAS, FORWARD_S = 16, 64, 0.109
BF16 = 2
LATENCIES_S = (0.001, 0.01, 0.1)
SHOWN_LATENCY_S = 0.01
# The two boundaries of the slides' plots (c) and (d), in units of T_F.
PLOTTED = (Link(latency=1.0, transfer=0.25), Link(latency=0.125, transfer=2.0))

# Traffic decides at both bandwidths, so the speed-up at the one bounds that at the other.
REFUTED_GB_S, BY_GB_S = "4", "16"
MICROBATCHES = (8, 16, 32, 64)

STATIC = ("1f1b", "zb-h1", "zb-v")
DYNAMIC = ("crosspipe-udsub", "crosspipe-ud", "crosspipe-wave")
# T_F is stated for M70 alone, in seconds; the number of microbatches is not.
TABLE_STAGES, TABLE_MICROBATCHES, TABLE_FORWARD_S = 8, 24, 0.036
# Of the latency, what a dynamic schedule's send holds its GPU for in the second run, beside the whole
# transfer: the one constant that brings every dynamic row within 10 %.
HELD = 0.6
FITTED = "24 microbatches, times fitted to the row without delay; case 1 is 1F1B's memory"
STATIC_ASSUMES = (
    f"{FITTED}; a send over the boundary holds the sender's GPU for latency and transfer, which the slides "
    "do not say"
)
DYNAMIC_ASSUMES = (
    f"{FITTED}; receives are posted ahead of sends, so no GPU is held and latency overlaps; 1F1B's sends "
    "hold theirs"
)
EXPECTED = {
    "M70 lat 0.25 bw 2 crosspipe-udsub": -0.184,
    "M70 lat 0.25 bw 2 crosspipe-ud": -0.188,
    "M70 lat 0.25 bw 2 crosspipe-wave": -0.315,
    "M70 lat 2 bw 0.25 crosspipe-udsub": -0.124,
    "M70 lat 2 bw 0.25 crosspipe-ud": -0.111,
    "M70 lat 2 bw 0.25 crosspipe-wave": -0.225,
    "M70 lat 2 bw 2 crosspipe-udsub": -0.263,
    "M70 lat 2 bw 2 crosspipe-ud": -0.271,
    "M70 lat 2 bw 2 crosspipe-wave": -0.381,
}


def _job(dcs: int = 2, memory: float = 1.0) -> CrossDcJob:
    model = PRESETS["llama-3-405b"]
    return CrossDcJob(
        stages=STAGES,
        replicas=REPLICAS,
        dcs=dcs,
        times=Times(forward=FORWARD_S, backward=FORWARD_S, weight=FORWARD_S),
        microbatches=TOKENS_PER_STEP // model.seq // REPLICAS,
        gradient_bytes=model.parameters * BF16,
        activation_bytes=model.activation_bytes(1, BF16),
        memory=round(memory * STAGES),
    )


def _speedup(job: CrossDcJob, wan: Boundary) -> tuple[float, str]:
    """Cross-DC PP over cross-DC DP, and the better traversal."""
    data, pipeline = _chosen(data_parallel(job, wan)), _chosen(pipeline_parallel(job, wan))
    return data.seconds / pipeline.seconds, pipeline.policy.removeprefix("crosspipe-")


def _chosen(choice: Choice | Infeasible) -> Choice:
    """1F1B's memory is enough for ZB-V, and a greedy policy fits any memory of one microbatch and more."""
    assert isinstance(choice, Choice)
    return choice


def dp_against_pp() -> Outcome:
    """Speed-up of cross-DC PP over cross-DC DP by bandwidth and latency, 2 and 4 data centres."""
    rows = []
    for row in _read("speedups.csv"):
        bandwidth = row["bandwidth_gb_s"]
        wan = Boundary(bytes_per_s=float(bandwidth) * 1e9, latency_s=SHOWN_LATENCY_S)
        ours, traversal = _speedup(_job(), wan)
        refuted = bandwidth == REFUTED_GB_S
        rows.append(
            Row(
                name=f"PP over DP at {bandwidth} GB/s",
                paper=float(row["speedup"]),
                ours=ours,
                unit="×",
                tolerance=None if refuted else 0.1,
                expected_deviation=-0.517 if refuted else None,
                answer=_slow_boundary() if refuted else None,
                assumes="10 ms, 16 M tokens a step, gradients of 2 bytes, all pipelines share the boundary",
                note=f"ours {traversal}, the slides' {row['traversal']}; {_bound_by(float(bandwidth))}",
            )
        )
    return Outcome(rows=tuple(rows), plots=(_plot(2), _plot(4)))


def _slow_boundary() -> Refuted:
    """The most at 4 GB/s, from what is printed at 16: whatever the batch and the bytes of a gradient.

    DP takes its compute and G / bandwidth. The speed-up at 16 GB/s gives G for each batch, and G that at 4.
    """
    printed = {row["bandwidth_gb_s"]: float(row["speedup"]) for row in _read("speedups.csv")}
    ratio = float(BY_GB_S) / float(REFUTED_GB_S)
    bounds = []
    for microbatches in MICROBATCHES:
        job = replace(_job(), microbatches=microbatches)
        compute = _chosen(data_parallel(job, Boundary(bytes_per_s=math.inf, latency_s=0)))
        slow, fast = (
            _chosen(pipeline_parallel(job, Boundary(bytes_per_s=float(b) * 1e9, latency_s=SHOWN_LATENCY_S)))
            for b in (REFUTED_GB_S, BY_GB_S)
        )
        gradients_s = printed[BY_GB_S] * fast.seconds - compute.seconds
        bounds.append((compute.seconds + ratio * gradients_s) / slow.seconds)
    return Refuted(
        allows="at most",
        bound=max(bounds),
        by=f"{printed[BY_GB_S]:g} is printed at {BY_GB_S} GB/s, and traffic decides at both, with 8 to 64 "
        "microbatches and gradients of any width",
    )


def _bound_by(bandwidth_gb_s: float) -> str:
    """The bound from traffic alone; the slides do not state their global batch."""
    job = _job()
    gradients_s = job.gradient_bytes / (bandwidth_gb_s * 1e9)
    activations_s = job.microbatches * job.replicas * job.activation_bytes / (bandwidth_gb_s * 1e9)
    return f"traffic alone takes DP {gradients_s:.1f} s, PP {activations_s:.1f} s each way"


def _plot(dcs: int) -> Plot:
    bandwidths = (4.0, 16.0, 64.0, 256.0, 1024.0)
    return Plot(
        name=f"crosspipe-{dcs}-dcs",
        title=f"Cross-DC PP over DP, {dcs} data centres, Llama-3 405B",
        x_label="bandwidth between data centres, GB/s",
        y_label="speed-up",
        series=tuple(
            Series(
                label=f"{latency * 1e3:g} ms",
                x=bandwidths,
                y=tuple(
                    _speedup(_job(dcs), Boundary(bytes_per_s=b * 1e9, latency_s=latency))[0]
                    for b in bandwidths
                ),
            )
            for latency in LATENCIES_S
        ),
    )


def tables() -> Outcome:
    """Tables M8 and M70 as ratios to 1F1B of the same row; case 1 is read as 1F1B's memory."""
    rows = []
    for printed in _read("tables.csv"):
        times = table_times(printed["model"])
        latency, bandwidth = float(printed["latency"]), float(printed["bandwidth"])
        base = blocking_span("1f1b", times, latency + bandwidth)
        link = Link(latency=latency, transfer=bandwidth)
        for policy in (*STATIC[1:], *DYNAMIC):
            if not printed[policy]:
                continue
            name = f"{printed['model']} lat {latency:g} bw {bandwidth:g} {policy}"
            static = policy in STATIC
            span = (
                blocking_span(policy, times, latency + bandwidth)
                if static
                else _span(policy, times, _halves(2), link, TABLE_STAGES)
            )
            rows.append(
                Row(
                    name=name,
                    paper=float(printed[policy]) / float(printed["1f1b"]),
                    ours=span / base,
                    unit="of 1F1B",
                    tolerance=0.1,
                    expected_deviation=EXPECTED.get(name),
                    answer=_held(policy, times, link, float(printed["1f1b"])) if name in EXPECTED else None,
                    assumes=STATIC_ASSUMES if static else DYNAMIC_ASSUMES,
                )
            )
    return Outcome(rows=(*rows, _most_saved(rows), *_other_cases()))


def _held(policy: str, times: Times, link: Link, base: float) -> Explained:
    """The row again with a send that holds its GPU for the transfer and a part of the latency.

    Over the printed 1F1B, `base`, read as seconds a microbatch: ours is up to 14 % below it at long delays.
    """
    assert not isinstance(times.forward, list)
    assert not isinstance(times.backward, list)
    hold = link.transfer + HELD * link.latency
    forward, backward = [times.forward] * TABLE_STAGES, [times.backward] * TABLE_STAGES
    left, right = TABLE_STAGES // 2 - 1, TABLE_STAGES // 2
    # Wave: each of the two stages sends in F of the one chunk and in B of the other; a chunk has half of it.
    for stage in (left, right) if policy == "crosspipe-wave" else (left,):
        forward[stage] += hold
    for stage in (left, right) if policy == "crosspipe-wave" else (right,):
        backward[stage] += hold
    longer = Times(forward=forward, backward=backward, weight=times.weight)
    span = _span(policy, longer, _halves(2), Link(latency=(1 - HELD) * link.latency), TABLE_STAGES)
    return Explained(
        cause="free GPUs while sending, over our 1F1B (held for the transfer and 60 % of the latency, over "
        "the printed 1F1B in seconds a microbatch instead)",
        without_cause=span * TABLE_FORWARD_S / TABLE_MICROBATCHES / base,
    )


def _most_saved(rows: list[Row]) -> Row:
    """The slides' "up to 33.6 %", identical memory constraints, on M70."""
    ours = {row.name: row.ours for row in rows}
    places = {name.rsplit(" ", 1)[0] for name in ours if name.startswith("M70")}
    saved = max(
        1
        - min(ours[f"{place} {policy}"] for policy in DYNAMIC)
        / min(1.0, *(ours[f"{place} {policy}"] for policy in STATIC[1:]))
        for place in places
    )
    printed = [row for row in _read("cases.csv") if (row["model"], row["case"]) == ("M70", "2")]
    most = max(
        1
        - min(float(row[policy]) for policy in DYNAMIC if row[policy])
        / min(float(row[policy]) for policy in STATIC)
        for row in printed
    )
    return Row(
        name="M70: most time saved over static schedules",
        paper=33.6,
        ours=100 * saved,
        unit="%",
        expected_deviation=0.288,
        answer=Refuted(
            allows="at least",
            bound=100 * most,
            by="case 2 of the table saves this at latency and bandwidth 2",
        ),
        assumes=f"{DYNAMIC_ASSUMES}; the rows of a case have the same memory",
    )


def _other_cases() -> list[Row]:
    """Cases 2 and 3: the mean of what UD takes."""
    rows = []
    for model, case in (("M8", "2"), ("M8", "3"), ("M70", "2"), ("M70", "3")):
        printed = [row for row in _read("cases.csv") if (row["model"], row["case"]) == (model, case)]
        rows.append(
            Row(
                name=f"{model} case {case}: mean of UD",
                paper=float(np.mean([float(row["crosspipe-ud"]) for row in printed if row["crosspipe-ud"]])),
                ours=math.nan,
                unit="as printed",
                answer=Untested(why=f"the slides' text does not say what case {case} changes, nor the unit"),
            )
        )
    return rows


def table_times(model: str) -> Times:
    """Times of a table's model in units of T_F, from its row without delay.

    1F1B takes (M + P − 1)/M · (F + B + W) seconds a microbatch there, ZB-H1 (M·(F + B + W) + (P − 1)·(F + B −
    W))/M. T_F itself is taken as M70's for both: it only splits F + B.
    """
    row = next(row for row in _read("tables.csv") if row["model"] == model and float(row["latency"]) == 0)
    m, beyond = TABLE_MICROBATCHES, TABLE_STAGES - 1
    work = float(row["1f1b"]) * m / (m + beyond)
    without_weight = (float(row["zb-h1"]) - work) * m / beyond
    weight = (work - without_weight) / 2
    backward = work - weight - TABLE_FORWARD_S
    return Times(forward=1.0, backward=backward / TABLE_FORWARD_S, weight=weight / TABLE_FORWARD_S)


def blocking_span(policy: str, times: Times, delay: float) -> float:
    """Makespan of a static order in which a sender over the boundary waits until its message has arrived.

    Only the sum of latency and transfer counts.
    """
    scenario = _table_scenario(policy, times, _halves(2), Link(latency=delay), None)
    return makespan_of(simulate(scenario.model_copy(update={"sends": "blocking"})))


def memory_and_dcs() -> Outcome:
    """Iteration by memory from 1 to 2 times 1F1B's, on 2 and on 4 data centres, as ratio to 1F1B there.

    The slides plot this, and print no figure.
    """
    times, memories, lines = table_times("M70"), (8, 12, 16), []
    for dcs in (2, 4):
        dc_of_stage = _halves(dcs)
        for link in PLOTTED:
            base = _span("1f1b", times, dc_of_stage, link, None)
            best = tuple(
                min(_span(policy, times, dc_of_stage, link, memory) for policy in DYNAMIC) / base
                for memory in memories
            )
            label = f"{dcs} DCs, lat {link.latency:g} bw {link.transfer:g}"
            lines.append(Series(label=label, x=tuple(memory / TABLE_STAGES for memory in memories), y=best))
    plot = Plot(
        name="crosspipe-memory",
        title="Best dynamic schedule by memory, M70",
        x_label="memory, times 1F1B's",
        y_label="iteration over 1F1B's",
        series=tuple(lines),
    )
    return Outcome(rows=(), plots=(plot,))


def pp_against_dp_degree() -> Outcome:
    """PP/DP trade on the same GPUs: 8 stages × 1 pipeline against 4 stages × 2, each stage twice as long.

    The slides plot this, and print no figure. Gradients of replicas stay in a DC and are not counted.
    """
    times, ratios = table_times("M70"), []
    for link in PLOTTED:
        deep = _span("crosspipe-ud", times, _halves(2), link, TABLE_STAGES)
        # Half the microbatches a pipeline, and two pipelines on the boundary: each has half of it.
        shallow = Scenario(
            stages=4,
            dc_of_stage=[0, 0, 1, 1],
            pipelines=2,
            microbatches=12,
            spans=False,
            times=Times(**{kind: 2 * t for kind, t in times.model_dump().items()}),
            policy="crosspipe-ud",
            wan=Link(latency=link.latency, transfer=2 * link.transfer),
            memory_limit=4,
        )
        ratios.append(makespan_of(simulate(shallow)) / deep)
    plot = Plot(
        name="crosspipe-pp-dp",
        title="PP 4 × DP 2 over PP 8, M70",
        x_label="latency over T_F",
        y_label="iteration over that of PP 8",
        series=(Series(label="UD", x=tuple(link.latency for link in PLOTTED), y=tuple(ratios)),),
        kind="bars",
    )
    return Outcome(rows=(), plots=(plot,))


def _halves(dcs: int) -> list[int]:
    """The tables' stages, spread evenly over `dcs` data centres."""
    return [stage * dcs // TABLE_STAGES for stage in range(TABLE_STAGES)]


def _table_scenario(
    policy: str, times: Times, dc_of_stage: list[int], link: Link, memory: int | None
) -> Scenario:
    return Scenario(
        stages=TABLE_STAGES,
        dc_of_stage=dc_of_stage,
        microbatches=TABLE_MICROBATCHES,
        wan=link,
        times=times,
        policy=policy,
        memory_limit=memory,
        spans=False,
    )


def _span(policy: str, times: Times, dc_of_stage: list[int], link: Link, memory: int | None) -> float:
    return makespan_of(simulate(_table_scenario(policy, times, dc_of_stage, link, memory)))


def _read(name: str) -> list[dict[str, str]]:
    with files("engine").joinpath(f"data/crosspipe/{name}").open(encoding="utf-8") as file:
        return list(csv.DictReader(file))


EXPERIMENTS = (
    Experiment(name="crosspipe-dp-pp", title="Cross-DC PP over DP, Llama-3 405B", run=dp_against_pp),
    Experiment(name="crosspipe-tables", title="Tables M8 and M70, as ratios to 1F1B", run=tables),
    Experiment(name="crosspipe-memory", title="Memory 1 to 2 ×, 2 and 4 data centres", run=memory_and_dcs),
    Experiment(
        name="crosspipe-pp-dp", title="PP against DP degree on the same GPUs", run=pp_against_dp_degree
    ),
)
