"""GPipe: every forward of a stage, then every backward, both in microbatch order.

Source: Huang et al., "GPipe" (NeurIPS 2019). Recomputes when the gradient has arrived (``late``).
"""

from engine.schedule.rules import Rules, in_flight_limits
from engine.schedule.scenario import Scenario


def rules(scenario: Scenario) -> Rules:
    """GPipe's rules; a `memory_limit` below the number of microbatches makes it infeasible."""
    return Rules(
        recompute=scenario.recompute_rule or "late",
        sharing=scenario.sharing or "spatial",
        contention=scenario.contention or "rank",
        in_flight=in_flight_limits(scenario),
        forwards_first=True,
    )
