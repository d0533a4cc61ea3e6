"""CrossPipe-UDSub: as UD, each op cut into sub-blocks between which other work may run."""

from engine.schedule.crosspipe import UDSUB

policy = UDSUB
