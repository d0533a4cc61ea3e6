"""GPipe: every forward of a stage in microbatch order, then every backward in reverse order.

Source: Huang et al., "GPipe" (NeurIPS 2019), Fig. 2c: the last microbatch's backward comes first, so that on
the last stage it directly follows its forward and needs no R. Recomputes when the gradient has arrived
(``late``).
"""

import numpy as np

from engine.errors import Infeasible
from engine.schedule.ir import OpKind
from engine.schedule.scenario import Scenario
from engine.schedule.static import Codes, Static, allowed
from engine.schedule.traversal import Traversal


def orders(scenario: Scenario, traversal: Traversal) -> Codes | Infeasible:
    """GPipe's order of each stage; a `memory_limit` below the number of microbatches is infeasible."""
    held, most = scenario.microbatches, scenario.limits("memory_limit")
    if np.any(most < held):
        return Infeasible(
            reason=f"memory_limit: every forward runs before the first backward, so a stage holds all {held} "
            f"microbatches at once; {allowed(most, int(np.argmin(most)))}"
        )
    microbatches = np.arange(held, dtype=np.int32) * 4
    order = np.concatenate([microbatches + OpKind.F, microbatches[::-1] + OpKind.B]).astype(np.int32)
    return np.broadcast_to(order, (scenario.stages, len(order))).copy()


policy = Static(orders=orders)
