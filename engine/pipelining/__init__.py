"""Meridian's schedules in torch.distributed.pipelining: its runtime runs the order that a policy built."""

from engine.pipelining.runtime import positions_of, runtime_of

__all__ = ["positions_of", "runtime_of"]
