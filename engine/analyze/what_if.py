"""What-ifs of a measured run: its durations in the replay, or in the simulator's schedules.

``equal-workers``: replicas of a stage take the same time. ``stages=1,1,0.8``: factors of the stages' times.
``policy=gpipe``: another order. ``link=LATENCY,TRANSFER``: seconds of every hop between stages.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np

from engine.analyze import trace as ops
from engine.analyze.formats import Loaded
from engine.analyze.idle import idle_of
from engine.analyze.replay import Replay
from engine.analyze.trace import COMPUTE, KINDS, Floats, Trace
from engine.errors import InputError
from engine.inputs import parse
from engine.schedule import OpKind, Schedule, Traversal
from engine.schedule.ir import NO_OP
from engine.schedule.scenario import POLICIES, Scenario
from engine.simulate import SimulationResult, simulate, simulate_schedule

EQUAL_WORKERS, STAGES, POLICY, LINK = "equal-workers", "stages", "policy", "link"
ALLOWED = "equal-workers, stages=1,1,0.8 (a factor for each stage), policy=NAME, or link=LATENCY,TRANSFER"
SEARCH_S = 10.0

_OPS = {
    ops.FORWARD: OpKind.F,
    ops.RECOMPUTE: OpKind.R,
    ops.BACKWARD: OpKind.B,
    ops.WEIGHT: OpKind.W,
}
_TIMES = {ops.FORWARD: "forward", ops.RECOMPUTE: "recompute", ops.BACKWARD: "backward", ops.WEIGHT: "weight"}
# Both ends of a transfer record it; one is enough. By the step from the op's own stage to the hop's first.
_TRANSFERS = {ops.FORWARD_SEND: 0, ops.BACKWARD_SEND: -1, ops.FORWARD_LINK: 0, ops.BACKWARD_LINK: -1}
_LATENCIES = {ops.FORWARD_LATENCY: 0, ops.BACKWARD_LATENCY: -1}


@dataclass(frozen=True, slots=True, kw_only=True)
class WhatIf:
    """The answer to one question.

    step_s : None if there is no such schedule, for `reason`.
    base_s : what `step_s` compares with: the replay without delays, or the pipeline of one replica simulated
        in its measured order.
    """

    question: str
    base_s: float
    step_s: float | None
    utilization: float | None
    reason: str | None = None

    def as_dict(self) -> dict[str, Any]:
        """As docs/dev/contracts.md names the fields."""
        return {
            "what_if": self.question,
            "base_s": self.base_s,
            "step_s": self.step_s,
            "speedup": self.base_s / self.step_s if self.step_s else None,
            "utilization": self.utilization,
            "bubble_fraction": None if self.utilization is None else 1 - self.utilization,
            "reason": self.reason,
        }


def what_if(loaded: Loaded, question: str) -> WhatIf:
    """Answer a question of the forms that the module names.

    Raises
    ------
    InputError
        The question has another form, or the trace does not tell what it needs.
    """
    if loaded.graph is None:
        raise InputError("--what-if", question, "the trace does not tell forwards from backwards")
    name, _, value = question.partition("=")
    if question == EQUAL_WORKERS:
        return _equal_workers(loaded)
    document = _document(loaded)
    base = simulate_schedule(parse(Scenario, document), _measured_order(loaded))
    if base.makespan is None:
        allowed = f"the measured order cannot be simulated ({(base.reason or '').partition(chr(10))[0]})"
        raise InputError("--what-if", question, allowed)
    if name == POLICY:
        if value not in POLICIES:
            raise InputError("--what-if", question, "policy must be one of " + ", ".join(POLICIES))
        return _answer(question, base, simulate(parse(Scenario, document | {"policy": value})))
    if name == STAGES:
        factors = np.array(_numbers(question, value, loaded.trace.layout.stages))
        times = {kind: (np.array(of) * factors).tolist() for kind, of in document["times"].items()}
        changed = document | {"times": times}
    elif name == LINK:
        latency, transfer = _numbers(question, value, 2)
        link = {"latency": latency, "transfer": transfer}
        changed = document | {"wan": [link] * len(document["wan"])}
    else:
        raise InputError("--what-if", question, f"must be {ALLOWED}")
    return _answer(question, base, simulate_schedule(parse(Scenario, changed), _measured_order(loaded)))


def _answer(question: str, base: SimulationResult, result: SimulationResult) -> WhatIf:
    return WhatIf(
        question=question,
        base_s=base.makespan or 0.0,
        step_s=result.makespan,
        utilization=result.timeline.utilization() if result.timeline else None,
        reason=result.reason,
    )


def _numbers(question: str, text: str, count: int) -> list[float]:
    try:
        values = [float(part) for part in text.split(",")]
    except ValueError:
        values = []
    if len(values) != count or not all(0 <= value < 1e9 for value in values):
        raise InputError("--what-if", question, f"needs {count} numbers of 0 or more, with commas between")
    return values


def _equal_workers(loaded: Loaded) -> WhatIf:
    """Every compute op takes the mean of its kind and stage over replicas and steps."""
    assert loaded.graph is not None
    replay = Replay(loaded.graph)
    everything = np.ones(len(loaded.graph.rows), dtype=np.bool_)
    base_s = float(replay.step_times(everything).mean())
    kind, stage = loaded.graph.kind, loaded.graph.stage
    for number in np.unique(kind).tolist():
        for of_stage in np.unique(stage).tolist() if KINDS[number] in COMPUTE else ():
            nodes = (kind == number) & (stage == of_stage)
            replay.durations[nodes] = replay.durations[nodes].mean() if nodes.any() else 0.0
    step_s = float(replay.step_times(everything).mean())
    idle = idle_of(loaded.trace)
    utilization = float(idle.busy_s.sum() / (len(idle.steps) * idle.busy_s.size * step_s))
    return WhatIf(question=EQUAL_WORKERS, base_s=base_s, step_s=step_s, utilization=utilization)


def _document(loaded: Loaded) -> dict[str, Any]:
    """A scenario of one replica's pipeline, with the mean durations of each stage and the median hops.

    Each stage is a data centre of its own, so that each hop can have times of its own.
    """
    trace = loaded.trace
    stages = trace.layout.stages
    times = {_TIMES[name]: _means(trace, name) for name in _OPS if trace.is_kind(name).any()}
    if any(not all(times.get(kind, ())) for kind in ("forward", "backward")):
        raise InputError("--what-if", trace.format, "every stage needs forwards and backwards that take time")
    durations = loaded.graph.durations() if loaded.graph else np.zeros((0, 0))
    latency, transfer = (_hops(loaded, durations, kinds) for kinds in (_LATENCIES, _TRANSFERS))
    hops = [{"latency": one, "transfer": other} for one, other in zip(latency, transfer, strict=True)]
    return {
        "stages": stages,
        "dc_of_stage": list(range(stages)),
        "microbatches": int(trace.microbatch.max()) + 1,
        "times": times,
        "wan": hops,
        "policy": "1f1b",
        "time_limit_s": SEARCH_S,
        "spans": False,
    }


def _means(trace: Trace, name: str) -> list[float]:
    """Mean time of one microbatch in all chunks of each stage."""
    chosen = trace.is_kind(name)
    stages = trace.layout.stages
    sums = np.bincount(trace.stage[chosen], weights=trace.duration[chosen], minlength=stages)
    counts = np.bincount(trace.stage[chosen], minlength=stages)
    means: list[float] = (sums / np.maximum(counts, 1) * trace.layout.chunks).tolist()
    return means


def _hops(loaded: Loaded, durations: Floats, kinds: dict[str, int]) -> list[float]:
    """Median time of the transfers over each hop s → s+1; 0 where the trace has none."""
    graph, hops = loaded.graph, loaded.trace.layout.stages - 1
    assert graph is not None
    parts_of: list[list[Floats]] = [[] for _ in range(hops)]
    for name, shift in kinds.items():
        of_kind = graph.kind == ops.KIND_OF[name]
        for hop in range(hops):
            parts_of[hop].append(durations[of_kind & (graph.stage + shift == hop)].ravel())
    joined = [np.concatenate(parts) for parts in parts_of]
    return [max(float(np.median(values)), 0.0) if len(values) else 0.0 for values in joined]


def _measured_order(loaded: Loaded) -> Schedule:
    """The order in which the stages of replica 0 ran their ops in the first step."""
    trace, graph = loaded.trace, loaded.graph
    assert graph is not None
    rows = graph.rows[:, 0]
    rows = rows[trace.is_kind(*_OPS)[rows] & (trace.replica[rows] == 0) & (trace.microbatch[rows] >= 0)]
    microbatches = int(trace.microbatch.max()) + 1
    orders = []
    for stage in range(trace.layout.stages):
        mine = rows[trace.stage[rows] == stage]
        mine = mine[np.lexsort((trace.end[mine], trace.start[mine]))]
        kinds = np.array([int(_OPS[KINDS[kind]]) for kind in trace.kind[mine]], dtype=np.int64)
        orders.append((trace.chunk[mine] * microbatches + trace.microbatch[mine]) * 4 + kinds)
    table = np.full((1, len(orders), max(map(len, orders))), NO_OP, dtype=np.int32)
    for stage, codes in enumerate(orders):
        table[0, stage, : len(codes)] = codes
    return Schedule(
        microbatches=microbatches,
        traversal=_traversal(trace),
        ops=table,
        sharing="spatial",
        link_order={},
        recompute_gate="none",
    )


def _traversal(trace: Trace) -> Traversal:
    stages, chunks = trace.layout.stages, trace.layout.chunks
    if chunks == 1:
        return Traversal(name="straight", stages=stages, chunks=1)
    placed = trace.position >= 0
    stage, chunk, position = trace.stage[placed], trace.chunk[placed], trace.position[placed]
    if np.array_equal(position, chunk * stages + stage):
        return Traversal(name="loop", stages=stages, chunks=chunks)
    back_and_forth = chunk * stages + np.where(chunk % 2 == 0, stage, stages - 1 - stage)
    if np.array_equal(position, back_and_forth):
        return Traversal(name="wave", stages=stages, chunks=chunks)
    if np.array_equal(position, stage * chunks + chunk):
        return Traversal(name="straight", stages=stages, chunks=chunks)
    raise InputError("--what-if", f"{chunks} chunks a stage", "are in no order that can be simulated")
