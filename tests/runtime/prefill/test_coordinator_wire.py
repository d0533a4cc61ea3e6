"""The line between gateway and coordinator: what is sent arrives as it was, and a stranger gets nothing."""

import asyncio
import socket
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.control.asyncio_driver import AsyncChannel, call, serve
from engine.control.coordinator_wire import (
    COORDINATOR_RANK,
    FROM_COORDINATOR,
    FROM_GATEWAY,
    GATEWAY_RANK,
    Answer,
)
from engine.control.errors import AuthenticationError, ChannelLost
from engine.control.handshake import Greeting, Identity
from engine.control.messages import line_of
from engine.prefill.messages import Accepted, Account, PrefillRequest, Sampling, Token, Turn, Withdraw
from tests.waiting import LIMIT_S

COORDINATOR = Identity(rank=COORDINATOR_RANK, run="run-1", generation=1, secret=b"secret")
GATEWAY = replace(COORDINATOR, rank=GATEWAY_RANK)
text = st.text(st.characters(exclude_categories=["Cs"]), max_size=40)


@given(
    prompt=st.one_of(text, st.lists(st.integers(0, 200_000), max_size=20).map(tuple)),
    sampling=st.builds(
        Sampling,
        temperature=st.floats(0, 2),
        seed=st.none() | st.integers(1 - 2**63, 2**63 - 1),
        ignore_eos=st.booleans(),
    ),
)
def test_a_prompt_arrives_as_it_was(prompt: str | tuple[int, ...], sampling: Sampling) -> None:
    ask = PrefillRequest(request="r", prompt=prompt, longest_prompt=9, sampling=sampling, stop=(" \n",))
    assert FROM_GATEWAY.read(line_of(ask)) == ask


@given(text)
def test_a_piece_of_text_arrives_as_it_was(piece: str) -> None:
    token = Token(request="r", token=1, text=piece, ttft_ms=1.5)
    assert FROM_COORDINATOR.read(line_of(token)) == token


@pytest.mark.parametrize(
    "ask",
    [{"prompt": "a", "turns": [Turn(role="user", content="b")]}, {}, {"prompt": "a", "hand_over": True}],
)
def test_an_ask_that_contradicts_itself_is_refused(ask: dict[str, object]) -> None:
    with pytest.raises(ValueError, match=r"prompt|max_tokens"):
        PrefillRequest(request="r", longest_prompt=9, max_tokens=2, **ask)


async def _echo(line: AsyncChannel[PrefillRequest | Withdraw | Account], _: Greeting) -> None:
    async for ask in line.messages():
        await line.send(Accepted(request=ask.request, prompt_tokens=1, queue_ms=0, ttft_ms=1))


async def _open() -> tuple[asyncio.Server, int]:
    """A coordinator that accepts whatever it is asked, and its port."""
    listening = socket.create_server(("127.0.0.1", 0))
    return await serve(listening, COORDINATOR, FROM_GATEWAY, _echo), listening.getsockname()[1]


async def _call(port: int, me: Identity = GATEWAY) -> AsyncChannel[Answer]:
    return await call("127.0.0.1", port, me, COORDINATOR_RANK, FROM_COORDINATOR)


async def test_many_asks_on_one_connection() -> None:
    coordinator, port = await _open()
    async with coordinator:
        line = await _call(port)
        for i in range(50):
            await line.send(PrefillRequest(request=f"r{i}", prompt="x" * 1_000, longest_prompt=9))
        messages = line.messages()
        assert [(await anext(messages)).request for _ in range(50)] == [f"r{i}" for i in range(50)]
        await line.close()


async def test_a_wrong_secret_and_another_run_are_refused() -> None:
    coordinator, port = await _open()
    async with coordinator:
        for me in (replace(GATEWAY, secret=b"guess"), replace(GATEWAY, run="run-2")):
            with pytest.raises(AuthenticationError):
                await _call(port, me)


async def test_what_is_no_message_ends_the_line() -> None:
    coordinator, port = await _open()
    async with coordinator:
        line = await _call(port)
        line._writer.write(b'{"kind":"gift"}\n')
        async with asyncio.timeout(LIMIT_S):
            assert [message async for message in line.messages()] == []
        with pytest.raises(ChannelLost):
            await _send_on(line)
        await line.close()


async def _send_on(line: AsyncChannel[Answer]) -> None:
    for _ in range(100):
        await line.send(PrefillRequest(request="r", prompt="x" * 100_000, longest_prompt=9))
