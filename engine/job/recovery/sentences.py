"""The text of a `recovery` event about a layout on fewer nodes."""

from engine.job.events.incidents import Cut, NewLayout


def smaller_layout(layout: NewLayout) -> str:
    """A sentence: with how many GPUs the run goes on, how it is cut now, what an iteration should take."""
    before = layout.before
    return (
        f"It continues with {layout.gpus} of {before.gpus} GPUs, as {layout.why}: {_cut(layout)} "
        "with "
        f"{layout.microbatches} microbatches each, before {_cut(before)} with {before.microbatches}; "
        f"an iteration should take {layout.iteration_s:.2f} s instead of {before.iteration_s:.2f} s."
    )


def _cut(cut: Cut) -> str:
    pipelines, stages = cut.pipelines, cut.stages
    return f"{pipelines} pipeline{'s' * (pipelines != 1)} of {stages} stage{'s' * (stages != 1)}"
