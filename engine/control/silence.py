"""For how long others may be silent before they count as lost."""

# Who says nothing for so long is lost: a peer, a host, a rank to its host.
SILENT_S = 4.5
# How late this thread is woken at worst, forgotten by half in 12 s; so many times that, up to a limit, the
# peers may be silent for longer.
LAG_KEPT = 0.97  # per tick
LAG_TIMES = 5
MOST_LATE_S = 15.0

# Of a peer that is alive but says nothing, and of a rendezvous.
WAIT_S = 1800.0
