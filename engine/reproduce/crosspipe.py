"""The CrossPipe slides (USENIX ATC 2025): data against pipeline parallelism over the WAN; tables M8, M70."""

import csv
from importlib.resources import files

import numpy as np

from engine.errors import Infeasible
from engine.model.presets import PRESETS
from engine.plan.cross_dc import Boundary, CrossDcJob, data_parallel, pipeline_parallel
from engine.reproduce import Experiment, Outcome, Plot, Row, Series
from engine.schedule import build
from engine.schedule.ir import NO_OP, OpKind
from engine.schedule.scenario import Link, Scenario, Times
from engine.schedule.timing import Jitter, durations, time_ops
from engine.schedule.traversal import WITHIN_STAGE
from engine.simulate import simulate

# Llama-3 405B as its report trains it: 16 M tokens a step in sequences of 8,192 over 64 pipelines.
TOKENS_PER_STEP = 16 * 2**20
STAGES, REPLICAS, FORWARD_S = 16, 64, 0.109
BF16 = 2
LATENCIES_S = (0.001, 0.01, 0.1)
SHOWN_LATENCY_S = 0.01

# 3.05 × at 4 GB/s does not agree with the other four: traffic decides there, and PP's is two thirds of DP's.
# Gradients of 4 bytes would give 2.87 there, but 2.87, 2.59 and 1.42 in the next three rows; a step of 8 M
# tokens 2.74, but 2.61, 2.29 and 1.43.
OUT_OF_REACH = (4.0,)
FIRST_ROW = (
    "; 4-byte gradients (2.9 ×) or 8 M tokens a step (2.7 ×) would come near, "
    "but put the next three off by 16–72 %"
)

STATIC = ("1f1b", "zb-h1", "zb-v")
DYNAMIC = ("crosspipe-udsub", "crosspipe-ud", "crosspipe-wave")
# T_F is stated for M70 alone, in seconds; the number of microbatches is not.
TABLE_STAGES, TABLE_MICROBATCHES, TABLE_FORWARD_S = 8, 24, 0.036
# Tried by hand on 2026-11-22: 8, 12 and 9 % on the mean.
READINGS = (
    "other readings are more than twice as far off on the mean: the GPU free while the link is held, "
    "latency overlapping, one link for both directions"
)


def _job(dcs: int = 2, memory: float = 1.0) -> CrossDcJob:
    model = PRESETS["llama-3-405b"]
    return CrossDcJob(
        stages=STAGES,
        replicas=REPLICAS,
        dcs=dcs,
        forward_s=FORWARD_S,
        microbatches=TOKENS_PER_STEP // model.seq // REPLICAS,
        gradient_bytes=model.parameters * BF16,
        activation_bytes=model.activation_bytes(1, BF16),
        memory=round(memory * STAGES),
    )


def _speedup(job: CrossDcJob, wan: Boundary) -> tuple[float, str]:
    """Cross-DC PP over cross-DC DP, and the better traversal."""
    data, pipeline = data_parallel(job, wan), pipeline_parallel(job, wan)
    assert data is not None, "1F1B's memory is enough for ZB-V"
    assert pipeline is not None, "a greedy policy fits any memory of one microbatch and more"
    return data.seconds / pipeline.seconds, pipeline.policy.removeprefix("crosspipe-")


def dp_against_pp() -> Outcome:
    """Speed-up of cross-DC PP over cross-DC DP by bandwidth and latency, 2 and 4 data centres."""
    printed = _read("speedups.csv")
    rows = []
    for row in printed:
        bandwidth = float(row["bandwidth_gb_s"])
        wan = Boundary(bytes_per_s=bandwidth * 1e9, latency_s=SHOWN_LATENCY_S)
        ours, traversal = _speedup(_job(), wan)
        rows.append(
            Row(
                name=f"PP over DP at {bandwidth:g} GB/s",
                paper=float(row["speedup"]),
                ours=ours,
                unit="×",
                tolerance=None if bandwidth in OUT_OF_REACH else 0.1,
                note=f"ours {traversal}, the slides' {row['traversal']}; {_bound_by(bandwidth)}"
                + (FIRST_ROW if bandwidth in OUT_OF_REACH else ""),
            )
        )
    return Outcome(rows=tuple(rows), plots=(_plot(2), _plot(4)))


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
    """Tables M8 and M70, case 1, as ratios to 1F1B of the same row; case 1 is read as 1F1B's memory."""
    rows = []
    for printed in _read("tables.csv"):
        times = table_times(printed["model"])
        latency, bandwidth = float(printed["latency"]), float(printed["bandwidth"])
        ours = {policy: blocking_span(policy, times, latency + bandwidth) for policy in STATIC}
        link = Link(latency=latency, transfer=bandwidth)
        dynamic = [policy for policy in DYNAMIC if printed[policy]]
        ours |= {policy: _span(policy, times, _halves(2), link, TABLE_STAGES) for policy in dynamic}
        for policy in (*STATIC[1:], *DYNAMIC):
            if not printed[policy]:
                continue
            rows.append(
                Row(
                    name=f"{printed['model']} lat {latency:g} bw {bandwidth:g} {policy}",
                    paper=float(printed[policy]) / float(printed["1f1b"]),
                    ours=ours[policy] / ours["1f1b"],
                    unit="of 1F1B",
                    tolerance=0.1 if policy in STATIC else None,
                )
            )
    return Outcome(rows=(*_mean_errors(rows), *rows))


def _mean_errors(rows: list[Row]) -> list[Row]:
    def mean(policies: tuple[str, ...]) -> tuple[float, float]:
        errors = [abs(row.deviation or 0.0) for row in rows if row.name.rsplit(" ", 1)[1] in policies]
        return float(np.mean(errors)), max(errors)

    static, worst = mean(STATIC)
    dynamic, worst_dynamic = mean(DYNAMIC)
    return [
        Row(
            name="static policies, mean error",
            paper=0,
            ours=static,
            unit="of the ratio",
            tolerance=0.1,
            note=f"worst {100 * worst:.1f} %; read as an engine whose send over the boundary holds the "
            f"sender's GPU for latency + transfer (inferred, the slides do not say so); {READINGS}",
        ),
        Row(
            name="dynamic policies, mean error",
            paper=0,
            ours=dynamic,
            unit="of the ratio",
            note=f"worst {100 * worst_dynamic:.0f} %; receives are posted ahead of sends: no GPU "
            "is held, latency overlaps",
        ),
    ]


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

    Sending is then the end of the producing op: it is longer by `delay`, and the link takes no time.
    """
    scenario = _table_scenario(policy, times, _halves(2), Link(), None)
    built = build(scenario)
    assert not isinstance(built, Infeasible), f"{policy} has no limit"
    schedule, traversal = built.schedule, built.schedule.traversal
    lengths = durations(scenario, traversal.chunks, split=schedule.has(OpKind.W))
    over_wan = np.append(scenario.hop_is_wan[traversal.hop_of] & (traversal.hop_of != WITHIN_STAGE), False)
    stage = np.arange(scenario.stages)[:, None]
    kind, chunk = schedule.ops[0] & 3, (schedule.ops[0] >> 2) // scenario.microbatches
    position = traversal.position_of[stage, np.maximum(chunk, 0)]
    sends = (kind == OpKind.F) & over_wan[position] | (kind == OpKind.B) & np.roll(over_wan, 1)[position]
    factor = np.where(sends & (schedule.ops[0] != NO_OP), 1 + delay / lengths[kind, stage], 1.0)
    transfers = np.ones((2, len(traversal.hop_of), 1, scenario.microbatches))
    return time_ops(scenario, schedule, Jitter(ops=factor[None], transfers=transfers)).makespan


def memory_and_dcs() -> Outcome:
    """Iteration by memory from 1 to 2 times 1F1B's, on 2 and on 4 data centres, as ratio to 1F1B there."""
    rows, times = [], table_times("M70")
    for dcs in (2, 4):
        dc_of_stage = _halves(dcs)
        for latency, bandwidth in ((1.0, 0.25), (0.125, 2.0)):
            link = Link(latency=latency, transfer=bandwidth)
            base = _span("1f1b", times, dc_of_stage, link, None)
            for memory in (8, 12, 16):
                spans = {policy: _span(policy, times, dc_of_stage, link, memory) for policy in DYNAMIC}
                best = min(spans, key=lambda policy: spans[policy])
                rows.append(
                    Row(
                        name=f"{dcs} DCs, lat {latency:g} bw {bandwidth:g}, memory {memory / 8:g} ×",
                        paper=None,
                        ours=spans[best] / base,
                        unit="of 1F1B",
                        note=best,
                    )
                )
    return Outcome(rows=tuple(rows))


def pp_against_dp_degree() -> Outcome:
    """PP/DP trade on the same GPUs: 8 stages × 1 pipeline against 4 stages × 2, each stage twice as long."""
    rows, times = [], table_times("M70")
    for latency, bandwidth in ((1.0, 0.25), (0.125, 2.0)):
        link = Link(latency=latency, transfer=bandwidth)
        deep = _span("crosspipe-ud", times, _halves(2), link, TABLE_STAGES)
        # Half the microbatches a pipeline, and two pipelines on the boundary: each has half of it.
        shallow = simulate(
            Scenario(
                stages=4,
                dc_of_stage=[0, 0, 1, 1],
                pipelines=2,
                microbatches=12,
                spans=False,
                times=Times(**{kind: 2 * t for kind, t in times.model_dump().items()}),
                policy="crosspipe-ud",
                wan=Link(latency=latency, transfer=2 * bandwidth),
                memory_limit=4,
            )
        ).makespan
        assert shallow is not None
        rows.append(
            Row(
                name=f"PP 4 × DP 2 over PP 8, lat {latency:g} bw {bandwidth:g}",
                paper=None,
                ours=shallow / deep,
                unit="×",
                note="gradients of replicas stay in a DC: not counted",
            )
        )
    return Outcome(rows=tuple(rows))


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
    makespan = simulate(_table_scenario(policy, times, dc_of_stage, link, memory)).makespan
    assert makespan is not None, f"{policy} fits a memory of {memory}"
    return makespan


def _read(name: str) -> list[dict[str, str]]:
    with files("engine").joinpath(f"data/crosspipe/{name}").open(encoding="utf-8") as file:
        return list(csv.DictReader(file))


EXPERIMENTS = (
    Experiment(name="crosspipe-dp-pp", title="Cross-DC PP over DP, Llama-3 405B", run=dp_against_pp),
    Experiment(name="crosspipe-tables", title="Tables M8 and M70, case 1, as ratios to 1F1B", run=tables),
    Experiment(name="crosspipe-memory", title="Memory 1 to 2 ×, 2 and 4 data centres", run=memory_and_dcs),
    Experiment(
        name="crosspipe-pp-dp", title="PP against DP degree on the same GPUs", run=pp_against_dp_degree
    ),
)
