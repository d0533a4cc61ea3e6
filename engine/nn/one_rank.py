"""How the ranks that compute one stage share it; here the plain case, in which there is one.

`engine.nn.tensor_parallel.TpGroup` is the other one. Whatever differs between the two is a method here,
so that nothing else of the runtime asks how many ranks a stage has.
"""

from collections.abc import Callable, Sequence

import torch
from torch import Tensor, nn


class OneRank:
    """A stage that one rank computes.

    Attributes
    ----------
    leads : this rank speaks for its stage: to other stages, for checkpoints, for the result.
    """

    leads = True

    def cut(self, layers: Sequence[nn.Module]) -> None:
        """Leave of each layer what this rank computes."""

    def take(self, buffer: Tensor, load: Callable[[Tensor], Tensor]) -> Tensor:
        """What came in `buffer` (of the lead), as `load` puts it on the device, on every rank."""
        return load(buffer)

    def agreed(self, square_sum: float, loss: float) -> tuple[float, float]:
        """The lead's numbers on every rank."""
        return square_sum, loss

    def kinds(self, parameters: Sequence[nn.Parameter]) -> list[list[nn.Parameter]]:
        """The parameters in lists of one kind each, as a fused kernel takes them."""
        return [list(parameters)]

    def local(self, tensor: Tensor) -> Tensor:
        """What this rank holds of a parameter."""
        return tensor

    def gradient(self, parameter: nn.Parameter, local: Tensor) -> Tensor:
        """What stands as `.grad` of a parameter where its gradient gathers in `local`."""
        return local

    def square_sum(self, flat: Tensor, parameters: Sequence[nn.Parameter]) -> float:
        """Sum of the squares of a stage's gradients, of which `flat` holds this rank's in that order."""
        return float(torch.dot(flat, flat))

    def whole(self, tensor: Tensor, parameter: nn.Parameter) -> Tensor:
        """A parameter, or a moment of it, as one process has it; all ranks of the stage call this."""
        return tensor

    def part(self, whole: Tensor, parameter: nn.Parameter) -> Tensor:
        """The inverse of `whole`: what this rank has of it, where the parameter is."""
        return whole.to(parameter.device)


ONE_RANK = OneRank()
