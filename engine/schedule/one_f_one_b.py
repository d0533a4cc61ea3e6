"""1F1B as in Megatron: warm-up, one forward and one backward in turn, cool-down; a static order.

Source: Narayanan et al., "Efficient Large-Scale Language Model Training on GPU Clusters" (SC 2021), §2.2:
stage s runs P − s − 1 forwards before its first turn, so it holds at most P − s microbatches. Under delay the
order stays: a stage waits for the next op of its list though a later one could run. Recomputes when the
gradient has arrived (``late``), as Megatron does within its backward.

Megatron has no `memory_limit` below P − s. Here stage s holds ⌈(P − s) r⌉ microbatches. The ratio r is 1, or
the least L / (P − s) of any stage whose limit is L. So the numbers fall as evenly as possible: stages that
hold the same number wait for each other in every turn.
"""

import numpy as np

from engine.schedule.ir import OpKind
from engine.schedule.scenario import Scenario
from engine.schedule.static import Codes, Ints, Static, sorted_by_turn
from engine.schedule.traversal import Traversal


def warm_up(scenario: Scenario) -> Ints:
    """Forwards before the first turn, shape (stages,): one less than the stage holds."""
    held = np.arange(scenario.stages, 0, -1)
    limits = scenario.limits("memory_limit")
    most = np.where(limits < scenario.microbatches, np.minimum(limits, held), held)
    least = int(np.argmin(most / held))
    return -(-held * most[least] // held[least]) - 1


def orders(scenario: Scenario, traversal: Traversal) -> Codes:
    """1F1B's order of each stage."""
    microbatches = np.arange(scenario.microbatches, dtype=np.int32) * 4
    return sorted_by_turn(microbatches + OpKind.F, microbatches + OpKind.B, warm_up(scenario), None)


policy = Static(orders=orders)
