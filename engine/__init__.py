"""Meridian's engine: models, schedules, simulation, planning and the training runtime.

Rooms, in the order in which data walks through them; a room may import those above it only:
``cluster``, ``model``, ``schedule``, ``simulate``, ``plan``, ``prefill``, ``runtime``.
"""

__version__ = "0.1.0"
