"""Strategy `swap` (ATOM): every worker trains the whole model on one GPU that cannot hold it.

The idea in one place: a worker keeps the model on its host and passes it through its device sub-model by
sub-model, as `engine.plan.swap` cut it, loading the next while the current one computes (`rounds`, `device`,
`memory`). Workers share nothing within a global batch but a list of mini-batches, which a tracker next to the
host process hands out (`ledger`, `tracker`); when the list is done, those that are there all-reduce (`group`)
and step. So a worker may come and go between any two mini-batches: what it had not brought in is handed out
again. `settings` is the part of the job's document, `planned` the job as the planner sees it.
"""
