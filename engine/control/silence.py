"""For how long others may be silent before they count as lost."""

# Who says nothing for so long is lost: a peer, a host, a rank to its host.
SILENT_S = 4.5
# A thread that listens may itself be woken late. Peers may then be silent for longer: by so many times the
# longest recent delay, up to a limit. The delay is forgotten by half in 12 s.
LAG_KEPT = 0.97  # per tick
LAG_TIMES = 5
MOST_LATE_S = 15.0

# A peer that is alive but sends nothing for so long counts as lost, too.
WAIT_S = 1800.0
