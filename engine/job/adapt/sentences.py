"""The text of an `adapted` event, in sentences."""

from engine.job.events.incidents import Adapted, Deviation, TimedWork
from engine.schedule.registry import name_of

_OPS = {
    TimedWork.FORWARD: "forward",
    TimedWork.RECOMPUTE: "recompute",
    TimedWork.BACKWARD: "backward",
    TimedWork.WEIGHT: "weight gradient",
}
MOST_NAMED = 3


def described(event: Adapted) -> str:
    """Sentences for people, who count iterations and stages from 1."""
    named = deviating(event)
    before, after = _ms(event.before_s), _ms(event.after_s)
    if event.replanned:
        return (
            f"Re-planned with {name_of(event.policy)} from iteration {event.iteration + 1:,} on: "
            f"{named}. An iteration should now take {after} instead of {before}."
        )
    return (
        f"The plan stays because {name_of(event.policy)} found no better one: {named}. "
        f"An iteration should now take {before}; {_ms(event.planned_s)} were planned."
    )


def deviating(event: Adapted) -> str:
    """The ops and transfers that differ from the plan."""
    deviations = event.deviations
    named = [_deviation(each) for each in deviations[:MOST_NAMED]]
    if len(deviations) > MOST_NAMED:
        named.append(f"{len(deviations) - MOST_NAMED} more")
    return ", ".join(named)


def _deviation(each: Deviation) -> str:
    at = [f"S{stage + 1}" for stage in each.at]
    took = f"{each.measured_ms:.1f} ms instead of {each.planned_ms:.1f}"
    if each.what is TimedWork.LINK:
        return f"a message between {at[0]} and {at[1]} holds its link for {took}"
    if each.what is TimedWork.LATENCY:
        return f"the latency between {at[0]} and {at[1]} is {took}"
    return f"{_OPS[each.what]} on {at[0]} takes {took}"


def _ms(seconds: float) -> str:
    return f"{seconds * 1e3:,.0f} ms"
