"""Every policy of the registry under every rule that the scenario leaves open."""

import importlib
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from itertools import product
from typing import Any

from engine.errors import Infeasible, InputError
from engine.schedule.contention import RULES
from engine.schedule.registry import MODULES, SEARCHING
from engine.schedule.scenario import Contention, RecomputeRule, Scenario
from engine.schedule.search import Built, Chosen, Frame, Policy, Search
from engine.schedule.searching.incumbent import Incumbent

# In larger cells (pipelines × stages × microbatches) policies that search take a second per variant, so
# few of these are tried.
MOST_CELLS_FOR_VARIANTS = 4_000


def policies(scenario: Scenario) -> Iterator[tuple[Scenario, Policy]]:
    """The policies that fit the scenario's chunks and traversal, each with the scenario under its name."""
    for name, module in MODULES.items():
        if name in SEARCHING:
            continue
        variant = scenario.model_copy(update={"policy": name})
        policy: Policy = importlib.import_module(f"engine.schedule.{module}").policy
        try:
            frames = policy.frames(variant)
        except InputError:
            continue
        if any(fits(scenario, frame) for frame in frames):
            yield variant, policy


def fits(scenario: Scenario, frame: Frame) -> bool:
    """Whether a schedule in this frame is one that the scenario allows."""
    return (
        scenario.sharing in (None, frame.sharing)
        and scenario.chunks in (None, frame.traversal.chunks)
        and scenario.traversal in (None, frame.traversal.name)
    )


def variants(scenario: Scenario, own: Chosen, *, small: bool) -> Iterator[dict[str, Any]]:
    """Rules that the scenario leaves open and the policy uses, other than its `own`."""
    shares = scenario.pipelines > 1 and bool(scenario.hop_is_wan.any())
    sharing = ("temporal", "spatial") if shares and not scenario.sharing else (own.sharing,)
    rules: tuple[RecomputeRule | None, ...] = (own.recompute_rule,)
    ties: tuple[Contention | None, ...] = (own.contention,)
    if small and own.recompute_rule and not scenario.recompute_rule:
        rules = ("jit", "idle", "late")
    if own.contention and not scenario.contention:
        ties = RULES
    for share, rule, tie in product(sharing, rules, ties):
        if (share != "spatial" or tie == ties[0]) and (share, rule, tie) != _rules(own):
            yield {"sharing": share, "recompute_rule": rule, "contention": tie}


def _rules(chosen: Chosen) -> tuple[Any, ...]:
    return chosen.sharing, chosen.recompute_rule, chosen.contention


@dataclass(slots=True, kw_only=True)
class Portfolio:
    """The policies tried on one scenario, and their variants not tried yet.

    reason : why the last infeasible policy could not hold the limits.
    """

    best: Incumbent
    waiting: list[tuple[Scenario, Policy, dict[str, Any]]] = field(default_factory=list)
    reason: str | None = None

    def try_own(self) -> None:
        """Offers the schedule of every policy by its own rules."""
        scenario = self.best.scenario
        small = scenario.pipelines * scenario.stages * scenario.microbatches <= MOST_CELLS_FOR_VARIANTS
        for variant, policy in policies(scenario):
            built = _try(self.best, variant, policy)
            if isinstance(built, Built):
                rules = variants(scenario, built.chosen, small=small or built.chosen.contention is not None)
                self.waiting += [(variant, policy, each) for each in rules]
            elif isinstance(built, Infeasible):
                self.reason = built.reason

    def try_variants(self) -> None:
        """Offers the schedules of the variants."""
        for variant, policy, rules in self.waiting:
            _try(self.best, variant.model_copy(update=rules), policy)
        self.waiting.clear()


def _try(best: Incumbent, variant: Scenario, policy: Policy) -> Built | Infeasible | None:
    """Lets one policy build, unless the search is over and has a schedule."""
    if best.schedule is not None and best.over():
        return None
    search = best.search
    part = Search(seconds=search.left_s, seed=search.seed, bound=search.bound, cancelled=search.cancelled)
    built = policy.build(variant, part)
    if isinstance(built, Built):
        schedule, chosen = built.schedule, replace(built.chosen, idea=_idea(built.chosen))
        if fits(best.scenario, Frame(traversal=schedule.traversal, sharing=schedule.sharing)):
            best.offer_seed(schedule, chosen)
    return built


def _idea(chosen: Chosen) -> str:
    rules = [str(rule) for rule in (chosen.recompute_rule, chosen.contention) if rule]
    return f"policy {chosen.policy}" + (f" ({', '.join(rules)})" if rules else "")
