"""The text of `adapted` and `layout_changed` events, and of a `recovery` on fewer nodes, in sentences."""

from itertools import groupby

from engine.job.events.incidents import (
    Adapted,
    Cause,
    Cut,
    Deviation,
    LayoutChanged,
    NewLayout,
    TimedWork,
)
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


def moved(event: LayoutChanged) -> str:
    """Sentences about a run in another layout, for people, who count iterations from 1."""
    layout = event.layout
    before, after, gain = _ms(event.before_s), _ms(event.after_s), _duration(event.gain_s)
    same_cut = (layout.pipelines, layout.stages) == (layout.before.pipelines, layout.before.stages)
    if layout.job is not None and "devices" in layout.job["cell"] and same_cut:
        what, earlier = "placement", ""
    else:
        what, earlier = "layout", f", before {described_layout(layout.before)}"
    return (
        f"Moved to another {what} from iteration {event.iteration + 1:,} on: "
        f"{described_layout(layout)}{_gpus(event)}{earlier}. "
        f"An iteration should now take {after} instead of {before}, which gains {gain} over the iterations "
        f"left. The move took {event.lost_s:.1f} s. Cause: {cause_of(event)}."
    )


def _gpus(event: LayoutChanged) -> str:
    """How many GPUs a new layout has, where they are others, and which were in reserve."""
    now, before = event.layout.gpus, event.layout.before.gpus
    if event.joined:
        return f" on {now} GPUs ({before} before), with {joined(event)} from the reserve"
    return "" if now == before else f" on {now} of {before} GPUs"


def joined(event: LayoutChanged) -> str:
    """The GPUs that a move took from the reserve, by name."""
    named = [f"GPU {one.gpu} of {one.node} in {one.dc}" for one in (event.joined or ())]
    if len(named) > MOST_NAMED:
        named[MOST_NAMED:] = [f"{len(named) - MOST_NAMED} more"]
    return ", ".join(named)


def cause_of(event: LayoutChanged) -> str:
    """Why a run looked for another layout."""
    if event.cause is Cause.RESERVE:
        return "GPUs in reserve had not been considered"
    if event.cause is Cause.FORGOTTEN:
        return "a measurement of a GPU or link that the run does not use became too old (adapt.forget_s)"
    return deviating(event)


def described_layout(cut: Cut) -> str:
    """How many pipelines, stages and microbatches; of a new layout also the way through the data centres."""
    way = ""
    if isinstance(cut, NewLayout) and cut.job is not None:
        way = f" through {_ways(cut, [dc['name'] for dc in cut.job['datacenters']])}"
    return f"{_pipelines(cut)}{way} with {cut.microbatches} microbatches each"


def smaller_layout(layout: NewLayout) -> str:
    """A sentence: with how many GPUs the run goes on, how it is cut now, what an iteration should take."""
    before = layout.before
    return (
        f"It continues with {layout.gpus} of {before.gpus} GPUs, as {layout.why}: {_pipelines(layout)} with "
        f"{layout.microbatches} microbatches each, before {_pipelines(before)} with {before.microbatches}; "
        f"an iteration should take {layout.iteration_s:.2f} s instead of {before.iteration_s:.2f} s."
    )


def _pipelines(cut: Cut) -> str:
    pipelines, stages = cut.pipelines, cut.stages
    return f"{pipelines} pipeline{'s' * (pipelines != 1)} of {stages} stage{'s' * (stages != 1)}"


def _ways(layout: NewLayout, names: list[str]) -> str:
    """The data centres of the pipelines, with how many stages are in each; of many ways only their number."""
    ways = list(dict.fromkeys(layout.dcs_of_rank.values()))
    if len(ways) > MOST_NAMED:
        return f"their data centres in {len(ways)} ways"
    return " and ".join(
        ", ".join(f"{names[dc]} ({len(list(of))})" for dc, of in groupby(way)) for way in ways
    )


def deviating(event: Adapted | LayoutChanged) -> str:
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


def _duration(seconds: float) -> str:
    if seconds < 120:
        return f"{seconds:.1f} s"
    return f"{seconds / 60:.0f} min" if seconds < 7200 else f"{seconds / 3600:.1f} h"


def _ms(seconds: float) -> str:
    return f"{seconds * 1e3:,.0f} ms"
