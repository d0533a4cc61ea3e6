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
from engine.schedule.scenario import LIMITS, LimitName, Scenario
from engine.schedule.static import Codes, Ints, Static, sorted_by_turn
from engine.schedule.traversal import Traversal


def orders(scenario: Scenario, traversal: Traversal) -> Codes:
    """ZB-H1's order of each stage."""
    microbatches = np.arange(scenario.microbatches, dtype=np.int32) * 4
    before = warm_up(scenario)
    put_off = None
    if np.any(scenario.per_stage("weight") > 0):
        limits, full = (_turns(scenario, name) for name in LIMITS)
        full = np.where(scenario.per_stage("recompute") > 0, full, scenario.stages)
        put_off = np.minimum.reduce([np.arange(scenario.stages), limits - before, full])
    return sorted_by_turn(microbatches + OpKind.F, microbatches + OpKind.B, before, put_off)


def _turns(scenario: Scenario, name: LimitName) -> Ints:
    """One less than each stage may hold, shape (stages,); as many as there are stages without a limit."""
    limits = scenario.limits(name)
    return np.where(limits < scenario.microbatches, limits - 1, scenario.stages)


policy = Static(orders=orders, recompute="idle")
