"""The case that is measured: GPT-A on three pipelines of four stages in three data centres, rates a tenth.

Atlas's figures (§6): a forward pass of a stage takes 17.9 ms, recomputation as long, a backward pass twice
that; a message is a sequence of 4,096 tokens of hidden size 4,096 in two bytes; a pair of nodes has 5 Gbit/s,
one connection 293 Mbit/s at 40 ms. Here rates are ÷ 10 and op times × 10, and 40 ms are kept.
"""

from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Literal

from benchmarks.wan_testbed.tun import address_of
from engine.inputs import parse
from engine.job.job import TrainJob
from engine.job.launch import RankAssignment, single_machine
from engine.schedule.scenario import Link, Scenario, Times

SCALE = 10
STAGES, PIPELINES, MICROBATCHES = 4, 3, 4
DC_OF_STAGE = (0, 0, 1, 2)
NODES = tuple(DC_OF_STAGE.count(dc) * PIPELINES for dc in range(3))
DELAY_S = 0.04
PAPER_MBPS = {10: 1220, 20: 600, 30: 396, 40: 293}  # one connection by one-way ms, Table 1
PAIR_BYTES_PER_S = 5e9 / 8 / SCALE
FORWARD_MS = 17.9 * SCALE
SEQ, HIDDEN, BYTES_PER_NUMBER = 4096, 4096, 2
MESSAGE_BYTES = SEQ * HIDDEN * BYTES_PER_NUMBER
CONNECTIONS = 24  # a third more than fill 5 Gbit/s at 40 ms with Table 1's rate: no window is always full

Sharing = Literal["spatial", "temporal"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """The whole case, or with `part` > 1 one of shorter messages and ops over the same WAN."""

    part: int = 1

    @property
    def seq(self) -> int:
        """Tokens of a message."""
        return SEQ // self.part

    @property
    def message_bytes(self) -> int:
        """Bytes of an activation, and of its gradient."""
        return MESSAGE_BYTES // self.part

    @property
    def times(self) -> Times:
        """Op times in milliseconds."""
        forward = FORWARD_MS / self.part
        return Times(forward=forward, recompute=forward, backward=2 * forward)

    def scenario(self, policy: str, sharing: Sharing, bytes_per_s: float, lan_bytes_per_s: float) -> Scenario:
        """What the simulator is asked, in milliseconds, where a node pair carries so much over WAN and LAN.

        Where pipelines share, the scenario lets a message pass the LAN before the WAN and behind it.
        """
        transfer_ms, lan_ms = (self.message_bytes / rate * 1e3 for rate in (bytes_per_s, lan_bytes_per_s))
        return Scenario(
            stages=STAGES,
            dc_of_stage=list(DC_OF_STAGE),
            pipelines=PIPELINES,
            microbatches=MICROBATCHES,
            times=self.times,
            wan=Link(latency=DELAY_S * 1e3, transfer=transfer_ms),
            lan=Link(transfer=lan_ms),
            policy=policy,
            sharing=sharing,
            chunks=1,
            time_limit_s=10,
            spans=False,
        )

    def job(self, policy: str, connections: int) -> TrainJob:
        """The same as a job of the runtime; the model is there for the shape of its messages only."""
        names = ["dc-0", "dc-1", "dc-2"]
        links = [
            {"between": [a, b], "latency_ms": DELAY_S * 1e3, "bandwidth_gbps": PAIR_BYTES_PER_S * 8e-9}
            for a, b in pairwise(names)
        ]
        document = {
            "datacenters": [{"name": name, "gpus": gpus} for name, gpus in zip(names, NODES, strict=True)],
            "links": links,
            "stages": STAGES,
            "dc_of_stage": list(DC_OF_STAGE),
            "pipelines": PIPELINES,
            "microbatches": MICROBATCHES,
            "policy": policy,
            "connections": connections,
            "device": "emulated",
            "times_ms": self.times.model_dump(),
            "dtype": "bf16",
            "steps": 1,
            "chunks": 1,
            "model": {"layers": STAGES, "hidden": HIDDEN, "heads": 32, "seq": self.seq},
        }
        return parse(TrainJob, document)


def ranks() -> tuple[RankAssignment, ...]:
    """Who runs what and in which data centre; a rank's `gpu` is its node there."""
    placed = single_machine(Case().job("1f1b", 1), run="testbed", log_dir="").ranks
    return tuple(replace(one, host=address_of(one.dc, one.gpu)) for one in placed)
