"""CrossPipe-Loop: the greedy of `crosspipe`, through all stages once for each model chunk."""

from engine.schedule.crosspipe import LOOP

policy = LOOP
