"""A lower bound for pipelines that share a link while each GPU may hold one full activation set.

`bounds._one_full_set` bounds one pipeline; this bound sums over all of them. On a shared link the early
arrivals that let one pipeline work ahead are missing in another.
"""

from functools import cache
from math import inf

# The search over who works how far ahead is exponential in pipelines; beyond this the bound is left out.
MOST_PIPELINES = 4
MOST_TRANSFERS = 48


def staggered_one_full_set(
    *,
    pipelines: int,
    microbatches: int,
    head: float,
    tail: float,
    trip: float,
    forward: float,
    again: float,
    backward: float,
    transfer: float,
) -> float:
    """Bound for one stage behind a WAN hop whose shared link is held `transfer` long by each transfer.

    Proof. On its GPU of the stage let pipeline i start k(i) forwards before its first B, at β(i). After β(i)
    it still has all M backwards, M − k(i) forwards and M − 1 recomputes (`again`: R, or the wait for a round
    trip), then the tail. The last gradients of the pipelines cross back one after another, so the tails grow
    by 0, 1, 2 … transfers in some order. Hence n·T ≥ Σ (β(i) − k(i)·F) + n·(M·B + M·F + (M − 1)·again + tail)
    + n(n − 1)/2 transfers.

    The first activations cross one after another too: with ranks r(i), the first F starts at or after
    head + r(i) transfers, and β(i) at least F + trip later, and at least k(i)·F + again later. Take the
    pipelines in the order in which the last of their k(i) forwards cross: by then the link has carried as
    many transfers as all of them so far count, so β(i) ≥ head + (Σ k − 1) transfers + F. The sum is minimised
    over all k, ranks and orders.

    Returns 0 if the search would be too large.
    """
    n, m = pipelines, microbatches
    if n > MOST_PIPELINES or n * m > MOST_TRANSFERS:
        return 0.0

    @cache
    def least(ranks: int, crossed: int) -> float:
        """Least Σ (β − k·F − head) over the pipelines that are left, given the free ranks (a bit mask)."""
        if ranks == 0:
            return 0.0
        best = inf
        for rank in range(n):
            if not ranks >> rank & 1:
                continue
            first = rank * transfer
            for k in range(1, m + 1):
                last = (crossed + k - 1) * transfer
                beta = max(first + forward + trip, last + forward, first + k * forward + again)
                best = min(best, beta - k * forward + least(ranks & ~(1 << rank), crossed + k))
        return best

    each = m * (backward + forward) + (m - 1) * again + tail + head
    return (least((1 << n) - 1, 0) + n * each + transfer * n * (n - 1) / 2) / n
