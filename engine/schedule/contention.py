"""Contention: whose message goes first where the pipelines of a cell share a link, and which rule is best.

On the testbed of the Atlas paper (§6.1, C = 3, M = 16) Atlas takes 102 slots by rank, 81 in turns and 86
first come first served. With two pipelines, stages (1, 2, 1), C = 2 and M = 8 these are 51, 45 and 44.
"""

from dataclasses import replace
from math import inf

from engine.errors import Infeasible
from engine.schedule.ir import Schedule
from engine.schedule.registry import SEARCHING, name_of
from engine.schedule.scenario import BEST, Contention, Scenario
from engine.schedule.search import Built, Policy, Search

RULES: tuple[Contention, ...] = ("rank", "round-robin", "fifo")
CONTENTION_NAMES: dict[Contention, str] = {
    "rank": "by rank",
    "round-robin": "in turns",
    "fifo": "first come first served",
    BEST: "the best rule",
}


def contention_name(rule: Contention) -> str:
    """The display name of a rule; one that is unknown is returned as it is."""
    return CONTENTION_NAMES.get(rule, rule)


def schedule_name(policy: str, contention: Contention | None) -> str:
    """The display name of a policy, and how its pipelines share links: "Atlas, links in turns"."""
    return name_of(policy) + (f", links {CONTENTION_NAMES[contention]}" if contention else "")


def shares_links(schedule: Schedule) -> bool:
    """Whether several pipelines send over one link."""
    return schedule.sharing == "temporal" and len(schedule.ops) > 1 and bool(schedule.link_order)


def build_best(policy: Policy, scenario: Scenario, search: Search) -> Built | Infeasible:
    """The schedule of the rule that is fastest on `scenario`, of equals the first of RULES.

    A policy that searches tries the rules itself. Without a shared link there is nothing to choose, and
    `chosen` names no rule.
    """
    if scenario.policy in SEARCHING:
        return policy.build(scenario.model_copy(update={"contention": None}), search)
    first = _under(RULES[0], policy, scenario, search)
    if isinstance(first, Infeasible):
        return first
    if not shares_links(first.schedule):
        return _named(first, None)
    from engine.schedule.timing import time_ops  # compiled kernels: the policy has loaded them

    best: Built | None = None
    least = inf
    for rule in RULES:
        other = first if rule == RULES[0] else _under(rule, policy, scenario, search)
        if isinstance(other, Infeasible):
            continue
        timing = time_ops(scenario, other.schedule)
        if best is None or timing.makespan < least:
            best, least = replace(_named(other, rule), timing=timing), timing.makespan
    assert best is not None
    return best


def _named(built: Built, rule: Contention | None) -> Built:
    return replace(built, chosen=replace(built.chosen, contention=rule))


def _under(rule: Contention, policy: Policy, scenario: Scenario, search: Search) -> Built | Infeasible:
    return policy.build(scenario.model_copy(update={"contention": rule}), search)
