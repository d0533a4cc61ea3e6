"""What crosses inside a data centre: hops between its stages, and parts of messages that pipelines share."""

from collections import defaultdict
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from engine.inputs import parse
from engine.schedule.scenario import Scenario
from engine.simulate import SimulationResult, simulate


def simulated(**fields: Any) -> SimulationResult:
    times = {"forward": 4, "backward": 8}
    return simulate(parse(Scenario, {"times": times, "policy": "1f1b", "microbatches": 1, **fields}))


def makespan(**fields: Any) -> float:
    timeline = simulated(**fields).timeline
    assert timeline is not None
    return timeline.makespan


@given(
    lans=st.tuples(*[st.tuples(st.integers(0, 9), st.integers(0, 9))] * 2),
    wan=st.tuples(st.integers(0, 9), st.integers(0, 9)),
    pipelines=st.integers(1, 4),
)
def test_one_microbatch_passes_every_network_twice(
    lans: tuple[tuple[int, int], ...], wan: tuple[int, int], pipelines: int
) -> None:
    """Four stages in two data centres; the closed form is a sum along the path of the last pipeline."""
    cell: dict[str, Any] = {
        "stages": 4,
        "dc_of_stage": [0, 0, 1, 1],
        "pipelines": pipelines,
        "lan": [{"latency": latency, "transfer": transfer} for latency, transfer in lans],
        "wan": {"latency": wan[0], "transfer": wan[1]},
    }
    ops = 4 * (4 + 8)
    inside = sum(map(sum, lans))
    assert makespan(**cell) == pytest.approx(ops + 2 * inside + 2 * sum(wan))
    away = 1 - 1 / pipelines
    moved = sum(away * transfer + latency for latency, transfer in lans) if pipelines > 1 else 0.0
    held = max(wan[1], *(away * transfer for _, transfer in lans)) / pipelines
    first = ops + 2 * inside + 2 * (held + wan[0] + moved)
    # The last of the pipelines waits for the others' messages once: they come back in the order of going.
    shared = makespan(**cell, sharing="temporal")
    assert shared == pytest.approx(first + (pipelines - 1) * held)


Message = tuple[int, int]  # pipeline and microbatch


def by_parts(
    order: list[Message], ready: dict[Message, float], *, n: int, lan: float, wan: float, latency: float
) -> dict[Message, float]:
    """When each message of a shared link arrives, by its parts.

    n − 1 of n parts leave the sender's node over its LAN, all cross on pairs of their own, n − 1 come into
    the receiver's node. A node does one message at a time, a pair one part, in the order of the link.
    """
    out: dict[int, float] = defaultdict(float)
    into: dict[int, float] = defaultdict(float)
    pairs, arrives = 0.0, {}
    for message in order:
        node = message[0]
        out[node] = max(out[node], ready[message]) + (1 - 1 / n) * lan
        pairs = max(pairs, out[node]) + wan / n
        into[node] = max(into[node], pairs + latency) + (1 - 1 / n) * lan
        arrives[message] = into[node]
    return arrives


@settings(max_examples=60)
@given(
    pipelines=st.integers(2, 4),
    microbatches=st.integers(1, 6),
    lan=st.floats(0, 4),
    wan=st.floats(0.1, 20),
    policy=st.sampled_from(["atlas", "varuna", "1f1b"]),
)
def test_shared_messages_arrive_as_their_parts_do(
    pipelines: int, microbatches: int, lan: float, wan: float, policy: str
) -> None:
    """A LAN that scatters a message within an op and a turn of the WAN never holds the next one up."""
    lan = min(lan, wan / (pipelines - 1))
    result = simulated(
        stages=2,
        dc_of_stage=[0, 1],
        pipelines=pipelines,
        microbatches=microbatches,
        lan={"transfer": lan},
        wan={"latency": 3, "transfer": wan},
        sharing="temporal",
        policy=policy,
    )
    spans = list(result.spans())
    for payload, kind in (("activation", "F"), ("gradient", "B")):
        sent = sorted((span for span in spans if span.payload == payload), key=lambda span: span.start)
        stage = 0 if kind == "F" else 1
        arrivals = {
            (op.pipeline, op.microbatch): op.end for op in spans if (op.op, op.stage) == (kind, stage)
        }
        order = [(span.pipeline, span.microbatch) for span in sent]
        expected = by_parts(order, arrivals, n=pipelines, lan=lan, wan=wan, latency=3)
        assert {(s.pipeline, s.microbatch): s.arrives for s in sent} == pytest.approx(expected)


def test_a_slow_lan_paces_a_shared_link_and_no_other() -> None:
    """At a fifth of the WAN's rate inside, taking turns is slower than a link of one's own."""
    cell: dict[str, Any] = {"stages": 2, "dc_of_stage": [0, 1], "pipelines": 4, "microbatches": 8}
    networks = {"wan": {"transfer": 4}, "lan": {"transfer": 20}}
    scenario = parse(
        Scenario, {**cell, **networks, "times": {"forward": 1, "backward": 2}, "policy": "atlas"}
    )
    assert scenario.hop_times("temporal")[0] == pytest.approx(15 / 4)
    assert scenario.hop_times("spatial")[0] == 4
    assert makespan(**cell, **networks, policy="atlas") > makespan(**cell, **networks, policy="varuna")
    networks["lan"] = {"transfer": 0.2}
    assert makespan(**cell, **networks, policy="atlas") < makespan(**cell, **networks, policy="varuna")
