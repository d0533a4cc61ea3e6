"""How a prompt's KV cache changes hands: who offers it, who fetches it, and their messages over HTTP.

No tensors here. Each stage holds its layers of a cache under a lease. The answer to the request gives their
addresses. The decode worker fetches the cache from each stage, and the stage frees it. Nobody coordinates: a
cache that is not fetched is freed when its lease ends.
"""

import ipaddress
from collections.abc import Sequence
from typing import Annotated, Literal

from pydantic import AfterValidator, Field, model_validator

from engine.errors import InputError
from engine.inputs import Count, Document, Index, NonNegative, Positive


def _ip_address(value: str) -> str:
    try:
        return str(ipaddress.ip_address(value))
    except ValueError:
        raise ValueError("must be an IP address, as names may change what they stand for") from None


Name = Annotated[str, Field(min_length=1, max_length=256)]
HAND_OVER_S = 30.0  # a cache is held for so long until who decodes has it
Port = Annotated[Count, Field(le=65_535)]


class StageCache(Document):
    """Address of one stage's part of a cache: its blocks, for `layers` layers from `first_layer` on.

    rank : of the process that listens at host and port; the fetching side greets it by this.
    """

    rank: Index
    host: Name
    port: Port
    block_ids: Annotated[tuple[Index, ...], Field(min_length=1)]
    first_layer: Index
    layers: Count


class KvTransferParams(Document):
    """`kv_transfer_params` of a completion, with the names of vLLM's connectors if they have the same field.

    remote_host, remote_port, remote_block_ids : of the first stage, which on one GPU is the only one.
    remote_tokens : tokens in the cache: the whole prompt's.  remote_stages : every stage, in order.
    """

    do_remote_prefill: Literal[True] = True
    do_remote_decode: Literal[False] = False
    remote_engine_id: Name
    remote_request_id: Name
    remote_host: Name
    remote_port: Port
    remote_block_ids: tuple[Index, ...]
    remote_tokens: Count
    remote_stages: Annotated[tuple[StageCache, ...], Field(min_length=1)]

    @model_validator(mode="after")
    def _consistent(self) -> "KvTransferParams":
        first = self.remote_stages[0]
        if (self.remote_host, self.remote_port) != (first.host, first.port):
            raise InputError(
                "remote_port", self.remote_port, "must be the address of the first of remote_stages"
            )
        if self.remote_block_ids != first.block_ids:
            raise InputError("remote_block_ids", self.remote_block_ids, "must be those of the first stage")
        following = 0
        for i, stage in enumerate(self.remote_stages):
            if stage.first_layer != following:
                allowed = f"must follow the layers before it: {following}"
                raise InputError(f"remote_stages[{i}].first_layer", stage.first_layer, allowed)
            following += stage.layers
        return self

    @property
    def layers(self) -> int:
        """Layers of the whole model."""
        return sum(stage.layers for stage in self.remote_stages)


class DecodeReceiver(Document):
    """Where the KV cache of one request is sent, as the inference controller names it.

    host : an IP address.  request : the name under which the receiver waits for it.
    key : 32 bytes as hex digits, made for this request alone: both sides of the transfer prove that they know
        it (docs/dev/kv-handover.md).
    datacenter : where it is, as the site calls it; None: in the data centre that prefills.
    """

    host: Annotated[str, AfterValidator(_ip_address)]
    port: Port
    request: Annotated[str, Field(min_length=1, max_length=128)]
    key: Annotated[str, Field(pattern="^[0-9a-f]{64}$", repr=False)]
    datacenter: Name | None = None


class KvLink(Document):
    """From the data centre that prefills to that of the decode GPU: one-way latency, and rate for a cache."""

    latency_ms: NonNegative
    bytes_per_s: Positive

    def ms(self, nbytes: float) -> float:
        """Until the last of `nbytes` is there."""
        return self.latency_ms + nbytes / self.bytes_per_s * 1e3


class HandedOver(Document):
    """A receiver has the cache of `tokens` tokens from all `stages`; it goes on from `next_token`."""

    remote_request_id: Name
    remote_tokens: Count
    stages: Count
    next_token: Index


def transfer_params(
    *, engine_id: str, request: str, tokens: int, stages: Sequence[StageCache]
) -> KvTransferParams:
    """The answer for a cache of `tokens` tokens on `stages`, in pipeline order."""
    first = stages[0]
    return KvTransferParams(
        remote_engine_id=engine_id,
        remote_request_id=request,
        remote_host=first.host,
        remote_port=first.port,
        remote_block_ids=first.block_ids,
        remote_tokens=tokens,
        remote_stages=tuple(stages),
    )
