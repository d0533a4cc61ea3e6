"""Keeps the memory of a rank constant.

Returns freed C heap to the system, and keeps pages shared with its host.
"""

import ctypes
import gc
import sys

from torch.distributed import AllreduceOptions

ITERATIONS_BETWEEN = 16
INSTANCES = 40_000  # at once, for a table of 85,229 buckets


def give_back(iteration: int) -> None:
    """Every 16th iteration, return the C heap's free pages to the system (about 1 ms); glibc alone needs it.

    Every iteration frees its messages and tensors in another order than the last; glibc keeps the holes,
    and a rank was measured to grow by some 80 kB a minute through nothing else.
    """
    if iteration % ITERATIONS_BETWEEN == ITERATIONS_BETWEEN - 1:
        _trim()


def share() -> None:
    """Before ranks are forked: make what they will have in common such that they do not write to it.

    A collector that walks over it would write to every page: it leaves alone what is there by now.
    pybind11 links its instances, after torch's import 8,000 all over the heap, into one hash table. torch
    makes one for every sum and step, and where its bucket is taken it is written into its neighbour there,
    whose page is the rank's own from then on: a rank took 1.4 MB of the heap so in ten minutes, and 0.3 MB
    with ten buckets to an instance.
    """
    _ = [AllreduceOptions() for _ in range(INSTANCES)]  # a table never shrinks
    del _
    gc.collect()
    gc.freeze()
    _trim()


def _trim() -> None:
    if _libc is not None:
        _libc.malloc_trim(0)


def _glibc() -> ctypes.CDLL | None:
    library = ctypes.CDLL(None) if sys.platform == "linux" else None
    return library if hasattr(library, "malloc_trim") else None


_libc = _glibc()
