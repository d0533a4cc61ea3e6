"""Random numbers inside kernels: splitmix64 (Steele et al. 2014); its state, shape (1,), is an argument."""

from typing import Any

import numpy as np

from engine.schedule.compiled import compiled


@compiled
def draw(dice: Any, below: int) -> Any:
    """A number from 0 to below − 1."""
    return np.int64(_bits(dice) % np.uint64(below))


@compiled
def _bits(dice: Any) -> Any:
    dice[0] += np.uint64(0x9E3779B97F4A7C15)
    bits = dice[0]
    bits = (bits ^ (bits >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    bits = (bits ^ (bits >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return bits ^ (bits >> np.uint64(31))


@compiled
def exponential(dice: Any) -> float:
    """A draw from the exponential distribution of mean 1."""
    uniform = (float(_bits(dice) >> np.uint64(11)) + 0.5) * 2.0**-53
    return -np.log(uniform)
