"""CrossPipe-Wave: the greedy of `crosspipe`, out and back through the stages, one model chunk each way."""

from engine.schedule.crosspipe import WAVE

policy = WAVE
