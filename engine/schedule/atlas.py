"""Atlas: temporal sharing of the cell's WAN links, and compute that waits for its transfer.

Atlas §4.4, rule 1: pipelines of a cell share each WAN hop in time, by LocalDPRank.
Atlas §4.4, rule 2: a forward runs only within the memory limit.
Atlas §4.4, rule 3: an op starts only when its transfer can follow at once without overlapping another of the
cell.
Atlas §4.4, rule 4: backward first.
Recomputes when no forward can run (``idle``).
"""

from engine.schedule.greedy import Greedy
from engine.schedule.rules import Rules
from engine.schedule.scenario import Scenario


def rules(scenario: Scenario) -> Rules:
    """Atlas's rules."""
    return Rules(
        recompute=scenario.recompute_rule or "idle",
        sharing=scenario.sharing or "temporal",
        contention=scenario.contention or "rank",
        in_flight=scenario.limits("memory_limit"),
        hold_for_link=True,
    )


policy = Greedy(rules)
