"""A decode worker: transformers' generate goes on from a received cache and one token, without the prompt."""

from collections.abc import Generator, Sequence
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import torch

from engine.control.handshake import Identity
from engine.errors import InputError
from engine.job.prefill.config import read_config
from engine.prefill.handover import KvTransferParams
from engine.prefill.messages import Sampling
from engine.serve.kv_client import KvClient, ReceivedCache
from engine.serve.kv_pool import KvShape
from engine.serve.kv_wire import KvTransferError
from engine.serve.sampling import draw
from engine.serve.weights import DTYPES
from engine.transport.tls import TlsFiles

if TYPE_CHECKING:
    from transformers import DynamicCache


class DecodeWorker:
    """The whole model of `folder` in transformers, beside a client of the stages that prefill.

    transformers and the weights (190 MB, seconds) are loaded when `model` is first looked at.
    Raises InputError where the folder holds no Llama, or, at that moment, transformers is not installed.
    """

    def __init__(
        self,
        folder: str | Path,
        me: Identity,
        *,
        dtype: str = "fp32",
        device: str = "cpu",
        tls: TlsFiles | None = None,
    ) -> None:
        self._folder, self._dtype, self._device = Path(folder).expanduser(), dtype, device
        config = read_config(self._folder)
        shape = KvShape.of(config, range(config.num_hidden_layers), dtype=dtype, block_tokens=1)
        self._client, self._longest = KvClient(me, shape, tls=tls), config.max_position_embeddings

    @cached_property
    def model(self) -> Any:
        """transformers' own, in evaluation mode."""
        try:
            from transformers import AutoModelForCausalLM
        except ImportError:
            allowed = "decoding needs the package transformers, which is not installed"
            raise InputError("checkpoint", str(self._folder), allowed) from None
        model: Any = AutoModelForCausalLM.from_pretrained(self._folder, dtype=DTYPES[self._dtype])
        return model.to(self._device).eval()

    def fetch(self, params: KvTransferParams) -> ReceivedCache:
        """The cache that a completion's answer names. Raises KvTransferError."""
        if params.remote_tokens > self._longest:
            raise KvTransferError(f"a cache of {params.remote_tokens:,} tokens; at most {self._longest:,}")
        return self._client.fetch(params)

    @torch.inference_mode()
    def decode(
        self, cache: ReceivedCache, last_token: int, *, max_new_tokens: int, **options: Any
    ) -> list[int]:
        """`max_new_tokens` tokens behind `last_token`, fewer where the model ends; greedy unless asked.

        Parameters
        ----------
        last_token : the one that prefill answered with; `cache` holds all before it.
        options : of transformers' generate, such as do_sample, temperature, streamer.
        """
        if max_new_tokens < 1 or last_token in self._ends():
            return []
        ids = torch.tensor([[last_token]], device=self.model.device)
        output = self.model.generate(
            ids,
            attention_mask=torch.ones(1, cache.tokens + 1, dtype=torch.int64, device=ids.device),
            past_key_values=self._theirs(cache),
            max_new_tokens=max_new_tokens,
            **{"do_sample": False} | options,
        )
        tokens: list[int] = output[0, 1:].tolist()
        return tokens

    def stream(
        self, cache: ReceivedCache, last_token: int, *, most: int, sampling: Sampling
    ) -> Generator[int, None, Literal["stop", "length"]]:
        """As `decode`, token by token as they are asked for; `most` at most. Returns why they ended.

        Tokens are drawn as `sampling` says, past the model's end of text where it says so; `last_token` was
        the answer's first.
        """
        theirs, ends = self._theirs(cache), self._ends()
        for at in range(1, most + 1):
            with torch.inference_mode():
                ids = torch.tensor([[last_token]], device=self.model.device)
                output = self.model(ids, past_key_values=theirs, use_cache=True)
                last_token = draw(output.logits[0, -1].cpu(), sampling, at=at)
            if last_token in ends and not sampling.ignore_eos:
                return "stop"
            yield last_token
        return "length"

    def _theirs(self, cache: ReceivedCache) -> "DynamicCache":
        from transformers import DynamicCache

        theirs = DynamicCache(config=self.model.config)
        for number, (keys, values) in enumerate(cache.layers()):
            theirs.update(keys[None].to(self.model.device), values[None].to(self.model.device), number)
        return theirs

    def _ends(self) -> Sequence[int]:
        ends = self.model.generation_config.eos_token_id
        return ends if isinstance(ends, list) else [] if ends is None else [ends]
