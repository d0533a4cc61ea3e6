"""The losses and gradient norms of a run so far, and whether they are finite and without spikes."""

import array
import math
from collections import deque
from statistics import median

from engine.job.events.training import Step
from engine.job.job import TrainJob
from engine.job.sections.optimizer import SpikeSettings


def rate_of(job: TrainJob, iteration: int) -> float:
    """The learning rate of an iteration."""
    return job.optimizer.lr_schedule.rate(job.optimizer.lr, iteration, job.optimizer.steps)


def bits_per_byte(loss: float, tokens_per_byte: float | None) -> float | None:
    """A loss in nats a token as bits a byte of the text; None where its bytes are not known."""
    return None if tokens_per_byte is None else loss * tokens_per_byte / math.log(2)


def step_event(
    job: TrainJob, iteration: int, loss: float, norm: float, t: float, *, bits_per_byte: float | None
) -> Step:
    """The `step` event of an iteration that ended at Unix time `t`."""
    return Step(
        iteration=iteration,
        loss=loss,
        bits_per_byte=bits_per_byte,
        grad_norm=norm,
        learning_rate=rate_of(job, iteration),
        tokens=job.tokens_per_step,
        t=t,
    )


class Losses:
    """One loss and norm per step; `spike` says which loss is one (None: only what is not finite is wrong).

    Attributes
    ----------
    bits : the losses in bits per byte; NaN where that is not known.
    """

    def __init__(self, spike: SpikeSettings | None) -> None:
        self.losses, self.norms, self.bits = array.array("d"), array.array("d"), array.array("d")
        self._spike = spike
        self._latest: deque[float] = deque(maxlen=spike.window if spike else 0)

    def add(self, step: int, loss: float, norm: float, bits: float | None = None) -> None:
        """Note the loss and norm of a step (counted from 0), and the loss in bits per byte.

        Raises
        ------
        FloatingPointError
            They are not finite, or the loss is a spike: the run must not go on from here.
        """
        if not (math.isfinite(loss) and math.isfinite(norm)):
            raise FloatingPointError(
                f"step {step}: loss {loss} and gradient norm {norm} must be finite; lower lr"
            )
        self._check_spike(step, loss)
        self._latest.append(loss)
        self.losses.append(loss)
        self.norms.append(norm)
        self.bits.append(math.nan if bits is None else bits)

    def _check_spike(self, step: int, loss: float) -> None:
        spike = self._spike
        if spike is None or len(self._latest) < spike.window:
            return
        usual = median(self._latest)
        if loss > spike.factor * usual:
            raise FloatingPointError(
                f"step {step}: loss {loss:.4g} is over {spike.factor:g} times the median {usual:.4g} of the "
                f"last {spike.window} steps; resume from a checkpoint with a lower lr, or raise spike.factor"
            )
