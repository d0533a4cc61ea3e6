"""1F1B as in Megatron: stage s holds at most stages − s microbatches, and backward goes first.

Source: Narayanan et al., "Efficient Large-Scale Language Model Training on GPU Clusters" (SC 2021). Order is
decided as inputs arrive: without delay it is the static one-forward-one-backward order. Recomputes when
the gradient has arrived (``late``).
"""

from engine.schedule.rules import Rules, in_flight_limits
from engine.schedule.scenario import Scenario


def rules(scenario: Scenario) -> Rules:
    """1F1B's rules; `memory_limit` lowers the number in flight further."""
    warm_up = tuple(scenario.stages - s for s in range(scenario.stages))
    return Rules(
        recompute=scenario.recompute_rule or "late",
        sharing=scenario.sharing or "spatial",
        contention=scenario.contention or "rank",
        in_flight=in_flight_limits(scenario, warm_up),
    )
