"""1F1B as in Megatron: warm-up, one forward and one backward in turn, cool-down; a static order.

Source: Narayanan et al., "Efficient Large-Scale Language Model Training on GPU Clusters" (SC 2021), §2.2:
stage s runs P − s − 1 forwards before its first turn, so it holds at most P − s microbatches. Under delay the
order stays: a stage waits for the next op of its list though a later one could run. Recomputes when the
gradient has arrived (``late``), as Megatron does within its backward.

Megatron has no `memory_limit` below P. Here a lower L lets stage s hold ⌈(P − s) L / P⌉, as evenly as
possible: stages that hold the same number wait for each other in every turn.
"""

import numpy as np

from engine.schedule.ir import OpKind
from engine.schedule.scenario import Scenario
from engine.schedule.static import Codes, Ints, Static, sorted_by_turn
from engine.schedule.traversal import Traversal


def warm_up(scenario: Scenario) -> Ints:
    """Forwards before the first turn, shape (stages,): one less than the stage holds."""
    most = min(scenario.memory_limit or scenario.stages, scenario.stages)
    return -(-np.arange(scenario.stages, 0, -1) * most // scenario.stages) - 1


def orders(scenario: Scenario, traversal: Traversal) -> Codes:
    """1F1B's order of each stage."""
    microbatches = np.arange(scenario.microbatches, dtype=np.int32) * 4
    return sorted_by_turn(microbatches + OpKind.F, microbatches + OpKind.B, warm_up(scenario), None)


policy = Static(orders=orders)
