"""Varuna: backward first, forwards as early as memory allows, recompute just in time.

Source: Athlur et al., "Varuna" (EuroSys 2022), as the Atlas paper runs it (§4.3, Fig. 6a): pipelines do not
coordinate, each has its own share of the WAN, and R(m) may start once B(m) has started on the next stage.
"""

from engine.schedule.greedy import Greedy
from engine.schedule.rules import Rules
from engine.schedule.scenario import Scenario


def rules(scenario: Scenario) -> Rules:
    """Varuna's rules; it has no limit of its own on microbatches in flight."""
    return Rules(
        recompute=scenario.recompute_rule or "jit",
        sharing=scenario.sharing or "spatial",
        contention=scenario.contention or "rank",
        in_flight=scenario.limits("memory_limit"),
    )


policy = Greedy(rules)
