"""What prefill in a training run takes beyond the model's own time. Coordinators count on it, and so do
forecasts of what they will sell: both would say something else otherwise."""

from engine.prefill.latency import Hop, LatencyModel

# A chunk's begin, and the end of an emulated one, come later than asked for: threads wake within this.
WAKING_MS = 0.5
LAN_BYTES_PER_S = 12.5e9  # of a link inside a data centre: 100 Gbit/s
# From the end of a chunk on one stage until the next one's rank has its hidden states, beside their transfer.
HOP_MS = 1.0


def with_waking(latency: LatencyModel, pp_degree: int) -> LatencyModel:
    """`latency` with the time in which the thread of each stage wakes, for each chunk."""
    # Each stage takes a part of what is said of all.
    return LatencyModel(a_ms=latency.a_ms + WAKING_MS * pp_degree, b_ms=latency.b_ms, c_ms=latency.c_ms)


def hand_over(token_bytes: float) -> Hop:
    """The time in which a stage hands a chunk on; `token_bytes`: of the hidden states of one token."""
    return Hop(fixed_ms=HOP_MS, token_ms=token_bytes / LAN_BYTES_PER_S * 1e3)
