"""A decode worker's side of the hand-over: fetches every stage's part of a cache, and checks what comes."""

import socket
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from engine.control.handshake import Handshake, Identity, dial
from engine.control.thread_driver import greet
from engine.prefill.handover import KvTransferParams, StageCache
from engine.serve.kv_pool import KvShape
from engine.serve.kv_wire import Frame, KvTransferError, receive_frame, secured, send_frame
from engine.serve.weights import DTYPES
from engine.transport.tls import TlsContexts, TlsFiles

CONNECT_S = 10.0


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class ReceivedCache:
    """Keys and values of all layers: by stage, each (keys and values, layers, kv heads, tokens, size)."""

    tokens: int
    parts: tuple[Tensor, ...]

    def layers(self) -> list[tuple[Tensor, Tensor]]:
        """(keys, values) of each layer in order, each of shape (kv heads, tokens, head size)."""
        return [(part[0, layer], part[1, layer]) for part in self.parts for layer in range(part.shape[1])]


class KvClient:
    """Fetches caches for one decode worker.

    me : its own rank, apart from all of the run's, with the run, generation and secret of the prefill side.
    shape : of the cache of all layers, as the decode worker's own model has it.
    patience_s : for a stage that says nothing.  tls : certificates, where the stages ask for them.
    """

    def __init__(
        self, me: Identity, shape: KvShape, *, patience_s: float = CONNECT_S, tls: TlsFiles | None = None
    ) -> None:
        self.me, self.shape, self._patience_s = me, shape, patience_s
        self._tls = TlsContexts.of(tls)

    def fetch(self, params: KvTransferParams) -> ReceivedCache:
        """The whole cache, from all stages at the same time; no stage holds anything of it afterwards.

        Raises
        ------
        KvTransferError
            A stage refused (its lease had ended), cannot be reached, left, or sent something damaged or of
            another model. What other stages held of the cache is gone, or goes with its lease.
        """
        if params.layers != self.shape.layers:
            raise KvTransferError(f"a cache of {params.layers} layers; this model has {self.shape.layers}")
        with ThreadPoolExecutor(len(params.remote_stages)) as threads:
            coming = [threads.submit(self._fetch, params, stage) for stage in params.remote_stages]
        return ReceivedCache(tokens=params.remote_tokens, parts=tuple(part.result() for part in coming))

    def _fetch(self, params: KvTransferParams, stage: StageCache) -> Tensor:
        where = f"stage at {stage.host}:{stage.port}"
        try:
            connected = socket.create_connection((stage.host, stage.port), timeout=self._patience_s)
            with connected, secured(connected, self._tls, listens=False) as talking:
                greet(talking, Handshake(dial(self.me, peer=stage.rank)))
                return self._converse(talking, params, stage)
        except KvTransferError as error:
            raise KvTransferError(f"{where}: {error}") from None
        except OSError as error:  # AuthenticationError among them
            raise KvTransferError(f"{where}: {str(error) or type(error).__name__}") from error

    def _converse(self, connected: socket.socket, params: KvTransferParams, stage: StageCache) -> Tensor:
        request = params.remote_request_id
        send_frame(connected, {"fetch": request, "blocks": list(stage.block_ids)})
        header, _ = receive_frame(connected)
        shape = self._shape(header, params, stage)
        states = torch.empty(shape.piece(params.remote_tokens), dtype=DTYPES[shape.dtype])
        buffer = bytearray(min(shape.block_tokens, params.remote_tokens) * shape.token_bytes)
        for index, number in enumerate(stage.block_ids):
            first, count = index * shape.block_tokens, shape.tokens_in(index, params.remote_tokens)
            header, body = receive_frame(connected, body_bytes=count * shape.token_bytes, into=buffer)
            if header.get("block") != number:
                raise KvTransferError(f"block {header.get('block')} came where {number} was due")
            piece = torch.frombuffer(body, dtype=states.dtype).view(shape.piece(count))
            states[:, :, :, first : first + count] = piece
        send_frame(connected, {"taken": request})
        answer, _ = receive_frame(connected)
        if answer.get("freed") != request:
            raise KvTransferError("it did not say that the cache is free")
        return states

    def _shape(self, header: Frame, params: KvTransferParams, stage: StageCache) -> KvShape:
        """The shape that a stage announces, if this model has it and it is what the answer promised."""
        block_tokens = header.get("block_tokens")
        part = replace(self.shape, first_layer=stage.first_layer, layers=stage.layers)
        expected: Frame = {
            "cache": params.remote_request_id,
            "tokens": params.remote_tokens,
            **part.header(),
            "block_tokens": block_tokens,
        }
        if header != expected:
            differs = next((key for key in expected if header.get(key) != expected[key]), "fields")
            raise KvTransferError(
                f"a cache with {differs} {header.get(differs)!r}: {expected.get(differs)!r} was expected"
            )
        if not isinstance(block_tokens, int) or not 0 < block_tokens <= 1_000_000:
            raise KvTransferError(f"a cache in blocks of {block_tokens!r} tokens")
        shape = replace(part, block_tokens=block_tokens)
        if shape.blocks_of(params.remote_tokens) != len(stage.block_ids):
            raise KvTransferError(f"{len(stage.block_ids)} blocks do not hold {params.remote_tokens} tokens")
        return shape
