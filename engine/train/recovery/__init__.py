"""Recovery after a failure: the state kept of every step, and the step from which a run continues.

The one idea: no rank can be more than one step ahead of another, for a step needs something of every rank. So
each rank keeps the state after its last two steps, in memory that its host owns and that outlives the rank.
After a failure all ranks end, and are forked again at the newest step that every stage has: nothing is voted
on, and an optimizer step counts for all ranks or for none.
"""
