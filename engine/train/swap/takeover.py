"""Where a run stands when its tracker was lost, from what its workers have.

A step counts once its record does, which is proposed only when every member has the sum. So members are at
the step after the last record, or hold its sum and are one behind. Who holds a sum that does not count keeps
its own gradients instead; mini-batches that are in nobody's are done again.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from engine.train.swap.journal import Journal
from engine.train.swap.ledger import Units
from engine.train.swap.messages import Hello


@dataclass(frozen=True, slots=True, kw_only=True)
class Resumed:
    """Where the run goes on.

    step : that is under way. behind : workers that have the sum of the one before, and are to take it.
    units : of `step`, in the gradients of each other worker. let_go : who cannot go on with the others.
    epoch : for the next sum. loss : and gradient norm of the step before, where somebody knows them.
    """

    step: int
    behind: tuple[int, ...]
    units: dict[int, Units]
    let_go: tuple[int, ...]
    epoch: int
    loss: tuple[float, float] | None


def resumed(journal: Journal, hellos: Mapping[int, Hello]) -> Resumed:
    """Where the run goes on with the workers that said these `hellos`, each with weights, by rank."""
    committed = journal.committed
    step = max(hello.step or 0 for hello in hellos.values()) if committed is None else committed.step + 1
    units: dict[int, Units] = {}
    taken: set[int] = set()
    for rank, hello in sorted(hellos.items()):
        # Two have the same mini-batch where the tracker had given one of them up, and not said so in time.
        if hello.step == step and taken.isdisjoint(hello.units):
            units[rank] = hello.units
            taken.update(hello.units)
    behind = tuple(
        rank
        for rank, hello in sorted(hellos.items())
        if committed
        and hello.step == step - 1
        and hello.holds
        and hello.epoch == committed.epoch
        and not taken
    )
    losses = [(h.loss, h.grad_norm) for h in hellos.values() if h.step == step]
    return Resumed(
        step=step,
        behind=behind,
        units=units,
        let_go=tuple(sorted(set(hellos) - set(units) - set(behind))),
        epoch=max(hello.epoch for hello in hellos.values()) + 1,
        loss=next(((loss, norm) for loss, norm in losses if loss is not None and norm is not None), None),
    )
