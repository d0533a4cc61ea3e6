"""CrossPipe-Wave: the greedy of `crosspipe`, out and back through the stages, with two model chunks."""

from engine.schedule.crosspipe import WAVE

policy = WAVE
