"""ZB-H1: 1F1B with the backward split; weight gradients fill what would be bubbles, at 1F1B's memory.

Source: Qi et al., "Zero Bubble Pipeline Parallelism" (ICLR 2024), §2.1 and Fig. 3: the warm-up of 1F1B;
stage s puts each W off by s turns, so every stage holds P microbatches. It was published without
recomputation; here R goes right before its B and may start as soon as its GPU is free (``idle``: no F can
run, as the order is fixed), which is the fastest rule. Where `times.weight` is 0 nothing is split: 1F1B.

Limits: `memory_limit` L shortens the warm-up as that of 1F1B and puts W off by at most what is left of L,
`full_limit` K (counted to the end of W) by at most K − 1.
"""

import numpy as np

from engine.schedule.ir import OpKind
from engine.schedule.one_f_one_b import warm_up
from engine.schedule.scenario import Scenario
from engine.schedule.static import Codes, Static, sorted_by_turn
from engine.schedule.traversal import Traversal


def orders(scenario: Scenario, traversal: Traversal) -> Codes:
    """ZB-H1's order of each stage."""
    microbatches = np.arange(scenario.microbatches, dtype=np.int32) * 4
    before = warm_up(scenario)
    put_off = None
    if np.any(scenario.per_stage("weight") > 0):
        put_off = np.minimum(
            np.arange(scenario.stages), (scenario.memory_limit or scenario.stages) - 1 - before
        )
        if scenario.full_limit is not None:
            most = np.where(scenario.per_stage("recompute") > 0, scenario.full_limit - 1, scenario.stages)
            put_off = np.minimum(put_off, most)
    return sorted_by_turn(microbatches + OpKind.F, microbatches + OpKind.B, before, put_off)


policy = Static(orders=orders, recompute="idle")
