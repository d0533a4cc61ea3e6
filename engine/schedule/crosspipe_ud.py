"""CrossPipe-UD: the greedy of `crosspipe` on whole stages, each microbatch straight through."""

from engine.schedule.crosspipe import UD

policy = UD
