"""Several policies on one scenario, and one parameter of it swept over values."""

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Annotated, Any

from pydantic import Field, field_validator

from engine.errors import InputError
from engine.inputs import Document, Number, nearest, parse, whole
from engine.schedule import Search
from engine.schedule.scenario import POLICIES, Scenario
from engine.simulate.result import SimulationResult, simulate

MOST_POINTS = 1_000
_STEP = re.compile(r"([a-z_]+)((?:\[\d+\])*)")


@dataclass(frozen=True, slots=True, kw_only=True)
class Compared:
    """One policy in a comparison: its result, or why it does not accept this scenario."""

    policy: str
    result: SimulationResult | None
    reason: str | None

    def as_dict(self) -> dict[str, Any]:
        """The answer of `meridian simulate` for this policy; `feasible` is false if it was refused."""
        if self.result is not None:
            return self.result.as_dict()
        return {"feasible": False, "reason": self.reason, "policy": self.policy, "makespan": None}


def known_policies(names: Sequence[str], field: str) -> tuple[str, ...]:
    """The policies `names` without repetition, in their order. Raises InputError for an unknown one."""
    for name in names:
        if name not in POLICIES:
            raise InputError(field, name, "unknown policy, " + nearest(name, POLICIES))
    if not names:
        raise InputError(field, list(names), "at least one policy; allowed: " + ", ".join(POLICIES))
    return tuple(dict.fromkeys(names))


def compare(
    document: dict[str, Any], policies: Sequence[str], search: Callable[[Scenario], Search] | None = None
) -> Iterator[Compared]:
    """Simulate one scenario under each policy, one after another.

    document : the scenario as written; its own `policy` may be missing.
    search : limits and callbacks of each policy's search; by default the scenario's own.

    Raises
    ------
    InputError
        The scenario is wrong whatever the policy, or a policy is unknown.
    """
    names = known_policies(policies, "compare")
    parse(Scenario, {**document, "policy": names[0]})  # a fault for every policy is the user's error
    for name in names:
        scenario = parse(Scenario, {**document, "policy": name})
        try:
            result = simulate(scenario, search(scenario) if search else None)
        except InputError as refused:
            yield Compared(policy=name, result=None, reason=str(refused))
        else:
            yield Compared(policy=name, result=result, reason=result.reason)


class SweepDocument(Document):
    """The document of `meridian sweep`: `parameter` of `scenario` takes each of `values`."""

    scenario: dict[str, Any]
    parameter: str
    values: Annotated[list[Number | list[Number] | str | None], Field(min_length=1, max_length=MOST_POINTS)]
    policies: Annotated[list[str], Field(min_length=1)]

    @field_validator("policies")
    @classmethod
    def _known(cls, policies: list[str]) -> list[str]:
        return list(known_policies(policies, ""))  # the path names the field


@dataclass(frozen=True, slots=True, kw_only=True)
class SweepRow:
    """One policy at one value."""

    value: Any
    policy: str
    makespan: float | None
    lower_bound: float | None
    utilization: float | None
    feasible: bool
    reason: str | None

    def as_dict(self) -> dict[str, Any]:
        """As docs/dev/contracts.md names the fields, and `reason`."""
        return {name: getattr(self, name) for name in self.__slots__}


def sweep(document: SweepDocument, search: Callable[[Scenario], Search] | None = None) -> Iterator[SweepRow]:
    """Every policy at every value, in the order given, without spans.

    Raises
    ------
    InputError
        The parameter is no field of a scenario, or one of the values is not allowed there.
    """
    for index, value in enumerate(document.values):
        scenario = with_value(document.scenario, document.parameter, whole(value))
        try:
            rows = list(compare({**scenario, "spans": False}, document.policies, search))
        except InputError as error:
            raise InputError(f"values[{index}]", value, f"{error.field}: {error.allowed}") from None
        for row in rows:
            yield _row(value, row)


def _row(value: Any, compared: Compared) -> SweepRow:
    result = compared.result
    timeline = result.timeline if result else None
    return SweepRow(
        value=value,
        policy=compared.policy,
        makespan=timeline.makespan if timeline else None,
        lower_bound=result.lower_bound if result else None,
        utilization=timeline.utilization() if timeline else None,
        feasible=timeline is not None,
        reason=compared.reason,
    )


def with_value(document: dict[str, Any], parameter: str, value: Any) -> dict[str, Any]:
    """The document with one field set, ``wan.latency`` or ``times.forward[2]``; in a list, every entry.

    Raises InputError if the path cannot be read or leads nowhere.
    """
    steps: list[str | int] = []
    for part in parameter.split("."):
        match = _STEP.fullmatch(part)
        if not match:
            raise InputError("parameter", parameter, "a path of fields such as wan.latency, times.forward[2]")
        steps.append(match[1])
        steps.extend(int(number) for number in re.findall(r"\d+", match[2]))
    if steps[0] not in Scenario.model_fields:
        close = nearest(str(steps[0]), Scenario.model_fields)
        raise InputError("parameter", parameter, "unknown field, " + close)
    return _set(document, steps, value, parameter)


def _set(node: Any, steps: list[str | int], value: Any, parameter: str) -> Any:
    if not steps:
        return value
    step, rest = steps[0], steps[1:]
    if isinstance(step, int):
        if not isinstance(node, list) or step >= len(node):
            raise InputError("parameter", parameter, f"[{step}]: the scenario has no such entry")
        return [_set(item, rest, value, parameter) if i == step else item for i, item in enumerate(node)]
    if isinstance(node, list):  # wan.latency where wan is a list: every hop
        return [_set(item, steps, value, parameter) for item in node]
    if node is not None and not isinstance(node, dict):
        raise InputError("parameter", parameter, f"{step}: the scenario has {node!r} at this path")
    return {**(node or {}), step: _set((node or {}).get(step), rest, value, parameter)}
