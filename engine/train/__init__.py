"""Training: the executor and what it needs, checkpoints, recovery, re-planning, swap."""
