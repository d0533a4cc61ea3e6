"""Time of collective operations."""


def ring_all_reduce_s(parameters: float, ranks: int, bytes_per_s: float) -> float:
    """Seconds of a ring all-reduce of fp16 gradients: 4·p·(N−1) / (N·BW).

    Each of the N ranks sends and receives 2·(N−1)/N of the p gradients, two bytes each
    (Atlas §3.1, footnote 1).

    Parameters
    ----------
    parameters : p, those of one pipeline stage.
    ranks : N, size of the ring.
    bytes_per_s : BW, per direction and rank, of the slowest place in the ring.
    """
    return 4 * parameters * (ranks - 1) / (ranks * bytes_per_s)
