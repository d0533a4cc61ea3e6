"""The KV caches that one stage holds: within a budget of bytes, each under a lease of one request.

A prompt's length is known when it arrives, so a cache is one piece of memory, in whole blocks, and is never
moved. Its memory belongs to training: it is freed when the decoder has it, when the request is given up, when
the decoder is gone, and at the latest when the lease ends, whoever may still want it.
"""

import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from enum import Enum
from threading import RLock
from typing import Any

import torch
from torch import Tensor

from engine.errors import Infeasible, InputError
from engine.job.prefill.config import LlamaConfig
from engine.serve.decoder import Past
from engine.serve.weights import DTYPES

BLOCK_TOKENS = 128


class Freed(Enum):
    """Why a cache was freed."""

    HANDED_OVER = "handed_over"
    ABORTED = "aborted"
    EXPIRED = "expired"
    DECODER_LOST = "decoder_lost"


class LeaseEnded(LookupError):
    """The request holds no cache here: it never did, or its lease ended, or it was freed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class KvShape:
    """What a cache holds of every token: keys and values of `layers` blocks from number `first_layer` on."""

    first_layer: int
    layers: int
    kv_heads: int
    head_size: int
    dtype: str
    block_tokens: int = BLOCK_TOKENS

    @classmethod
    def of(cls, config: LlamaConfig, blocks: range, *, dtype: str, block_tokens: int) -> "KvShape":
        """The cache of `blocks` of a model."""
        return cls(
            first_layer=blocks.start,
            layers=len(blocks),
            kv_heads=config.kv_heads,
            head_size=config.head_size,
            dtype=dtype,
            block_tokens=block_tokens,
        )

    def header(self) -> dict[str, Any]:
        """What a stage says of a cache before it sends the blocks (docs/dev/kv-handover.md)."""
        return asdict(self)

    @property
    def token_bytes(self) -> int:
        return 2 * self.layers * self.kv_heads * self.head_size * DTYPES[self.dtype].itemsize

    @property
    def block_bytes(self) -> int:
        return self.token_bytes * self.block_tokens

    def tokens_within(self, budget_bytes: int) -> int:
        """Tokens that whole blocks of a budget hold."""
        return budget_bytes // self.block_bytes * self.block_tokens

    def blocks_of(self, tokens: int) -> int:
        """Blocks that hold so many tokens; the last may be part full."""
        return -(-tokens // self.block_tokens)

    def tokens_in(self, index: int, tokens: int) -> int:
        """Of `tokens` in all: how many are in the block at place `index`."""
        return min(self.block_tokens, tokens - index * self.block_tokens)

    def piece(self, count: int) -> tuple[int, int, int, int, int]:
        """Shape of `count` tokens: (keys and values, layers, kv heads, tokens, head size)."""
        return 2, self.layers, self.kv_heads, count, self.head_size


@dataclass(slots=True, kw_only=True)
class KvCache:
    """Keys and values of one request; `states` is as `KvShape.piece`, `filled` tokens of it are there."""

    request: str
    shape: KvShape
    tokens: int
    blocks: tuple[int, ...]
    states: Tensor
    filled: int = 0

    def past(self, layer: int) -> Past:
        """What the block number `layer` of this stage, from 0, attends to and adds to."""
        return Past(keys=self.states[0, layer], values=self.states[1, layer], done=self.filled)

    def block(self, index: int) -> Tensor:
        """The tokens of the block at place `index`: a view of the cache itself."""
        first = index * self.shape.block_tokens
        return self.states[:, :, :, first : first + self.shape.tokens_in(index, self.tokens)]


@dataclass(slots=True, kw_only=True)
class _Lease:
    """cache : held until `expires`. pins : who uses it now. leaving : a decoder is fetching it."""

    cache: KvCache
    expires: float
    pins: int = 0
    offered: bool = False
    leaving: bool = False
    doomed: Freed | None = None


@dataclass(slots=True)
class _Books:
    """Who holds what: leases by request, and the numbers of free blocks."""

    leases: dict[str, _Lease] = field(default_factory=dict)
    ending: list[_Lease] = field(default_factory=list)  # freed while in use: until their last user is done
    free: list[int] = field(default_factory=list)


class KvPool:
    """Caches by request, for any number of threads.

    Parameters
    ----------
    budget_bytes : most that all caches may hold; whole blocks of it are used.
    clock : monotonic seconds, on which leases end.

    Raises
    ------
    InputError
        The budget holds no block.
    """

    def __init__(
        self,
        shape: KvShape,
        *,
        budget_bytes: int,
        device: torch.device | str = "cpu",
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        if budget_bytes < shape.block_bytes:
            allowed = f"at least {shape.block_bytes:,}: a block of {shape.block_tokens} tokens"
            raise InputError("kv_budget_bytes", budget_bytes, allowed)
        self.shape, self.budget_bytes, self.device = shape, budget_bytes, torch.device(device)
        self.freed: Counter[Freed] = Counter()
        self._clock, self._lock = clock, RLock()
        self._books = _Books(free=list(range(budget_bytes // shape.block_bytes)))

    @property
    def bytes_in_use(self) -> int:
        """Bytes of all caches, of those too that are freed as soon as their last user is done."""
        with self._lock:
            held = [*self._books.leases.values(), *self._books.ending]
            return sum(len(lease.cache.blocks) for lease in held) * self.shape.block_bytes

    @property
    def free_bytes(self) -> int:
        """Bytes of the blocks that nobody holds."""
        with self._lock:
            return len(self._books.free) * self.shape.block_bytes

    @property
    def requests(self) -> tuple[str, ...]:
        """Who holds a lease now."""
        self.expire()
        with self._lock:
            return tuple(self._books.leases)

    def reserve(self, request: str, tokens: int, *, lease_s: float) -> Infeasible | None:
        """Hold room for `tokens` tokens of `request` for `lease_s`; or say why there is none now.

        Raises
        ------
        InputError
            `tokens` or `lease_s` is not above 0, or the request has a cache already.
        """
        _above_zero("tokens", tokens)
        _above_zero("lease_s", lease_s)
        self.expire()
        with self._lock:
            if request in self._books.leases:
                raise InputError("request", request, "holds a KV cache already")
            count = self.shape.blocks_of(tokens)
            if count > len(self._books.free):
                needed = count * self.shape.block_bytes
                return Infeasible(
                    reason=f"kv_space: {tokens:,} tokens need {needed:,} bytes of KV cache; "
                    f"{self.free_bytes:,} of {self.budget_bytes:,} are free"
                )
            size = self.shape.piece(count * self.shape.block_tokens)
            try:
                states = torch.empty(size, dtype=DTYPES[self.shape.dtype], device=self.device)
            except torch.OutOfMemoryError:  # training has more of it than the budget was made for
                needed = count * self.shape.block_bytes
                return Infeasible(reason=f"kv_space: the device has no {needed:,} bytes left")
            blocks = tuple(self._books.free.pop() for _ in range(count))
            cache = KvCache(request=request, shape=self.shape, tokens=tokens, blocks=blocks, states=states)
            self._books.leases[request] = _Lease(cache=cache, expires=self._clock() + lease_s)
        return None

    @contextmanager
    def pinned(self, request: str, *, same: KvCache | None = None) -> Iterator[KvCache]:
        """The request's cache, which is not taken away while in use. Raises LeaseEnded.

        same : it must still be this one: a request may come again under the name of one that is gone.
        """
        self.expire()
        with self._lock:
            lease = self._lease(request)
            if same is not None and lease.cache is not same:
                raise LeaseEnded(request)
            lease.pins += 1
        try:
            yield lease.cache
        finally:
            with self._lock:
                lease.pins -= 1
                if lease.doomed is not None and lease.pins == 0:
                    self._books.ending.remove(lease)
                    self._give_back(lease)

    def rewind(self, request: str, tokens: int) -> None:
        """Forget what the cache holds beyond its first `tokens` tokens.

        Raises LeaseEnded, also where a decoder may come for it.
        """
        self.expire()
        with self._lock:
            lease = self._lease(request)
            if lease.offered:
                raise LeaseEnded(request)
            lease.cache.filled = min(lease.cache.filled, tokens)

    def offer(self, request: str, *, lease_s: float) -> tuple[int, ...]:
        """From now on a decoder may fetch the cache, for `lease_s`; returns its blocks. Raises LeaseEnded.

        Raises InputError where tokens are missing in it, or `lease_s` is not above 0.
        """
        _above_zero("lease_s", lease_s)
        self.expire()
        with self._lock:
            lease = self._lease(request)
            if lease.cache.filled < lease.cache.tokens:
                allowed = f"all {lease.cache.tokens} tokens must be there, not {lease.cache.filled}"
                raise InputError("request", request, allowed)
            lease.offered, lease.expires = True, self._clock() + lease_s
            return lease.cache.blocks

    def claim(self, request: str, blocks: tuple[int, ...]) -> KvCache:
        """A decoder comes for the cache: nobody else may. What it is now, to be used through `pinned`.

        Raises LeaseEnded: also where it is not offered, is being fetched, or has other blocks.
        """
        self.expire()
        with self._lock:
            lease = self._lease(request)
            if not lease.offered or lease.leaving or lease.cache.blocks != blocks:
                raise LeaseEnded(request)
            lease.leaving = True
            return lease.cache

    def free(self, request: str, why: Freed, *, same: KvCache | None = None) -> bool:
        """Give back what the request holds; False where it holds nothing, or not this cache any more."""
        with self._lock:
            lease = self._books.leases.get(request)
            if lease is None or (same is not None and lease.cache is not same):
                return False
            del self._books.leases[request]
            lease.doomed = why
            self.freed[why] += 1
            if lease.pins:
                self._books.ending.append(lease)
            else:
                self._give_back(lease)
            return True

    def expire(self) -> list[str]:
        """Free all whose lease has ended; returns them. All that use the pool call it, its server too."""
        with self._lock:
            now = self._clock()
            over = [name for name, lease in self._books.leases.items() if lease.expires <= now]
            for name in over:
                self.free(name, Freed.EXPIRED)
            return over

    def next_end(self) -> float | None:
        """When the next lease ends, on the pool's clock; None where nothing is held."""
        with self._lock:
            return min((lease.expires for lease in self._books.leases.values()), default=None)

    def _lease(self, request: str) -> _Lease:
        try:
            return self._books.leases[request]
        except KeyError:
            raise LeaseEnded(request) from None

    def _give_back(self, lease: _Lease) -> None:
        self._books.free.extend(lease.cache.blocks)
        lease.cache.states = torch.empty(0)


def blocks_of(pool: KvPool, cache: KvCache) -> Iterator[tuple[int, memoryview]]:
    """(place, bytes in the order of `KvShape.piece`) of each block, which stay until the next is asked for.

    Copies: however slow a decoder is, the lease ends when it ends. Raises LeaseEnded.
    """
    staging = torch.empty(cache.shape.block_bytes, dtype=torch.uint8)
    for index in range(len(cache.blocks)):
        with pool.pinned(cache.request, same=cache) as held:
            piece = held.block(index)
            front = staging[: piece.numel() * piece.itemsize]
            front.view(piece.dtype).view(piece.shape).copy_(piece)
        yield index, front.numpy().data


def _above_zero(name: str, value: float) -> None:
    if not value > 0:
        raise InputError(name, value, "must be greater than 0")
