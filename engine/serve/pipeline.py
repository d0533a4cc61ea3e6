"""All stages of a prefill pipeline in one process: a prompt through them, chunk after chunk.

What ranks do apart, with messages between them; for a server with one GPU, for tests and for measuring.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from engine.errors import Infeasible, InputError
from engine.serve.chunks import chunks_of
from engine.serve.kv_pool import Freed
from engine.serve.stage import PrefillStage


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class PrefillResult:
    """A prompt whose cache lies on every stage: logits of its last token, and the likeliest next one."""

    request: str
    tokens: int
    logits: Tensor

    @property
    def first_token(self) -> int:
        return int(self.logits.argmax())


class PrefillPipeline:
    """The stages of one model, in order. Raises InputError where they are not all of it."""

    def __init__(self, stages: Sequence[PrefillStage]) -> None:
        places = [(stage.part.stage, stage.part.stages) for stage in stages]
        if places != [(i, len(stages)) for i in range(len(stages))]:
            raise InputError("stages", places, f"all {len(stages)} stages of one model, in order")
        self.stages = tuple(stages)

    def prefill(
        self, request: str, tokens: Sequence[int], *, chunks: Sequence[int] | None = None, lease_s: float
    ) -> PrefillResult | Infeasible:
        """Run a prompt's token ids through all stages, cut into `chunks` (None: whole).

        Where it fails, or a stage has no room for its cache, no stage holds anything of it.

        Parameters
        ----------
        lease_s : from now; prefill that takes longer is given up.

        Raises
        ------
        InputError
            An empty or too long prompt, an id that the model does not know, chunks that do not add up.
        LeaseEnded
            The lease ended meanwhile.
        """
        self._check(tokens)
        pieces = chunks_of(request, len(tokens), chunks)
        refused = self._reserve(request, len(tokens), lease_s)
        if refused is not None:
            return refused
        ids = torch.tensor(tokens, dtype=torch.int64)
        try:
            for chunk in pieces:
                x = ids[chunk.done : chunk.done + chunk.tokens]
                for stage in self.stages:
                    x = stage.run(chunk, x)
        except BaseException:
            self.abort(request)
            raise
        return PrefillResult(request=request, tokens=len(tokens), logits=x)

    def abort(self, request: str) -> None:
        """Free what every stage holds of a request; nothing where it holds nothing."""
        for stage in self.stages:
            stage.pool.free(request, Freed.ABORTED)

    def _reserve(self, request: str, tokens: int, lease_s: float) -> Infeasible | None:
        for index, stage in enumerate(self.stages):
            refused = stage.pool.reserve(request, tokens, lease_s=lease_s)
            if refused is not None:
                for earlier in self.stages[:index]:
                    earlier.pool.free(request, Freed.ABORTED)
                return Infeasible(reason=f"stage {index}: {refused.reason}")
        return None

    def _check(self, tokens: Sequence[int]) -> None:
        config = self.stages[0].config
        longest = config.max_position_embeddings
        if len(tokens) > longest:
            raise InputError("tokens", len(tokens), f"at most {longest:,}, the model's context")
        for i, token in enumerate(tokens):
            if not 0 <= token < config.vocab_size:
                raise InputError(
                    f"tokens[{i}]", token, f"0 to {config.vocab_size - 1}, the model's vocabulary"
                )
