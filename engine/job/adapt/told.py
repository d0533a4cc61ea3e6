"""The text of an `adapted` event, in sentences."""

from typing import Any

from engine.schedule.registry import name_of

_OPS = {"F": "forward", "R": "recompute", "B": "backward", "W": "weight gradient"}
MOST_NAMED = 3


def described(event: dict[str, Any]) -> str:
    """Sentences for people, who count iterations and stages from 1.

    Raises KeyError, TypeError or ValueError.
    """
    named = deviating(event)
    before, after = _ms(event["before_s"]), _ms(event["after_s"])
    if event["replanned"]:
        return (
            f"Re-planned with {name_of(event['policy'])} from iteration {int(event['iteration']) + 1:,} on: "
            f"{named}. An iteration should now take {after} instead of {before}."
        )
    return (
        f"The plan stays because {name_of(event['policy'])} found no better one: {named}. "
        f"An iteration should now take {before}; {_ms(event['planned_s'])} were planned."
    )


def deviating(event: dict[str, Any]) -> str:
    """The ops and transfers that differ from the plan. Raises as `described` does."""
    deviations = event["deviations"]
    named = [_deviation(each) for each in deviations[:MOST_NAMED]]
    if len(deviations) > MOST_NAMED:
        named.append(f"{len(deviations) - MOST_NAMED} more")
    return ", ".join(named)


def _deviation(each: dict[str, Any]) -> str:
    at = [f"S{int(stage) + 1}" for stage in each["at"]]
    took = f"{float(each['measured_ms']):.1f} ms instead of {float(each['planned_ms']):.1f}"
    if each["what"] == "link":
        return f"a message between {at[0]} and {at[1]} holds its link for {took}"
    return f"{_OPS[each['what']]} on {at[0]} takes {took}"


def _ms(seconds: Any) -> str:
    return f"{float(seconds) * 1e3:,.0f} ms"
