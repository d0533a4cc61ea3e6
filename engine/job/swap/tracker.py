"""How many machines keep what the tracker of a swap run decides."""

TRACKER_MACHINES = 3  # any one may be lost; where a run has fewer machines, its first one alone keeps it
