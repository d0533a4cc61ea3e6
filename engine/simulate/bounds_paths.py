"""Shortest paths of one microbatch through the positions of a traversal, for lower bounds.

A position is a chunk on a stage (`engine.schedule.traversal`). All paths count the work and transfers of one
microbatch without any waiting, so no schedule can be shorter. If B can be split, its input part is `backward`
and its weight part `weight`. Running W right after B does all the work of a whole B and sends the gradient
sooner, so a bound for split schedules holds for whole ones.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from engine.schedule.ir import Sharing
from engine.schedule.scenario import Scenario
from engine.schedule.search import Frame
from engine.schedule.timing import durations
from engine.schedule.traversal import WITHIN_STAGE, Traversal

Floats = NDArray[np.float64]


@dataclass(frozen=True, slots=True, kw_only=True)
class Paths:
    """Times around each of L positions, shape (L,), and on each of L − 1 edges.

    forward, backward, weight : durations of one op.
    again : least GPU time of recomputation: R, or the wait between F and a B that is the very next op, which
        is `trip`; never the latter if a later position of the microbatch is on the same GPU.
    recompute : duration of R; 0 if there is none.
    held, latency : time of a transfer on its link and after it, 0 within a stage.
    head : earliest start of F.  trip : from the end of F to the arrival of its gradient.
    tail : from the end of B to the end of all that must follow, its W included.
    back : from the end of B to the end of W at position 0, over every position between.
    shared : whether the edge crosses a link that all pipelines share.
    """

    traversal: Traversal
    forward: Floats
    again: Floats
    backward: Floats
    weight: Floats
    recompute: Floats
    held: Floats
    latency: Floats
    shared: NDArray[np.bool_]
    head: Floats
    trip: Floats
    tail: Floats
    back: Floats

    @classmethod
    def of(cls, scenario: Scenario, frame: Frame) -> "Paths":
        """The paths in one frame."""
        traversal = frame.traversal
        stage, hop = traversal.stage_of, traversal.hop_of
        split = bool(np.any(scenario.times.weight))
        forward, recompute, backward, weight = durations(scenario, traversal.chunks, split=split)[:, stage]
        if not split:
            weight = np.zeros_like(backward)
        crosses = hop != WITHIN_STAGE
        temporal = frame.sharing == "temporal" and scenario.pipelines > 1
        sharing: Sharing = "temporal" if temporal else "spatial"
        held = np.where(crosses, scenario.hop_times(sharing)[hop], 0.0)
        latency = np.where(crosses, scenario.hop_delays(sharing)[hop], 0.0)
        cross = held + latency
        return_path = np.concatenate([[0.0], np.cumsum(cross + backward[:-1])])
        trip = _trip(cross, forward, backward)
        return cls(
            traversal=traversal,
            forward=forward,
            again=np.where(_highest(traversal), np.minimum(recompute, trip), recompute),
            backward=backward,
            weight=weight,
            recompute=recompute,
            held=held,
            latency=latency,
            shared=crosses & scenario.hop_is_wan[hop] & temporal & (held > 0),
            head=np.concatenate([[0.0], np.cumsum(forward[:-1] + cross)]),
            trip=trip,
            # return_path[v] − return_path[u] is the time from the end of B(v) to the end of B(u); then W(u).
            tail=return_path + np.maximum.accumulate(weight - return_path),
            back=return_path + weight[0],
        )

    @property
    def work(self) -> Floats:
        """GPU time of one microbatch at each position, without W."""
        return self.forward + self.again + self.backward


def _trip(cross: Floats, forward: Floats, backward: Floats) -> Floats:
    there_and_back = np.append(2 * cross + forward[1:] + backward[1:], 0.0)
    return np.cumsum(there_and_back[::-1])[::-1]


def _highest(traversal: Traversal) -> NDArray[np.bool_]:
    """Whether a position has no later one on its GPU."""
    highest = np.zeros(len(traversal.positions), dtype=np.bool_)
    highest[traversal.position_of.max(axis=1)] = True
    return highest
