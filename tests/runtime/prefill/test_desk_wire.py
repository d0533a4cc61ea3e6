"""The line between gateway and desk: what is sent arrives as it was, and a stranger gets nothing."""

import asyncio
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.control.desk_wire import DESK_RANK, GATEWAY_RANK, DeskLost, Line, answers, asks, call, open_desk
from engine.control.errors import AuthenticationError
from engine.control.handshake import Identity
from engine.prefill.desk import Accepted, Ask, Sampling, Token, Turn, from_desk, line_of, to_desk

DESK = Identity(rank=DESK_RANK, run="run-1", generation=1, secret=b"secret")
GATEWAY = replace(DESK, rank=GATEWAY_RANK)
text = st.text(st.characters(exclude_categories=["Cs"]), max_size=40)


@given(
    prompt=st.one_of(text, st.lists(st.integers(0, 200_000), max_size=20).map(tuple)),
    sampling=st.builds(Sampling, temperature=st.floats(0, 2), seed=st.none() | st.integers(0, 2**63)),
)
def test_a_prompt_arrives_as_it_was(prompt: str | tuple[int, ...], sampling: Sampling) -> None:
    ask = Ask(request="r", prompt=prompt, longest_prompt=9, sampling=sampling, stop=(" \n",))
    assert to_desk(line_of(ask)) == ask


@given(text)
def test_a_piece_of_text_arrives_as_it_was(piece: str) -> None:
    token = Token(request="r", token=1, text=piece, ttft_ms=1.5)
    assert from_desk(line_of(token)) == token


@pytest.mark.parametrize(
    "ask",
    [{"prompt": "a", "turns": [Turn(role="user", content="b")]}, {}, {"prompt": "a", "hand_over": True}],
)
def test_an_ask_that_contradicts_itself_is_refused(ask: dict[str, object]) -> None:
    with pytest.raises(ValueError, match=r"prompt|max_tokens"):
        Ask(request="r", longest_prompt=9, max_tokens=2, **ask)


async def _echo(line: Line) -> None:
    async for ask in asks(line):
        await line.send(Accepted(request=ask.request, prompt_tokens=1, queue_ms=0, ttft_ms=1))


async def test_many_asks_on_one_connection() -> None:
    async with await open_desk("127.0.0.1", 0, DESK, _echo) as desk:
        line = await call("127.0.0.1", desk.sockets[0].getsockname()[1], GATEWAY, DESK_RANK)
        for i in range(50):
            await line.send(Ask(request=f"r{i}", prompt="x" * 1_000, longest_prompt=9))
        said = answers(line)
        assert [(await anext(said)).request for _ in range(50)] == [f"r{i}" for i in range(50)]
        await line.close()


async def test_a_wrong_secret_and_another_run_are_refused() -> None:
    async with await open_desk("127.0.0.1", 0, DESK, _echo) as desk:
        port = desk.sockets[0].getsockname()[1]
        for me in (replace(GATEWAY, secret=b"guess"), replace(GATEWAY, run="run-2")):
            with pytest.raises(AuthenticationError):
                await call("127.0.0.1", port, me, DESK_RANK)


async def test_what_is_no_message_ends_the_line() -> None:
    async with await open_desk("127.0.0.1", 0, DESK, _echo) as desk:
        line = await call("127.0.0.1", desk.sockets[0].getsockname()[1], GATEWAY, DESK_RANK)
        line._writer.write(b'{"kind":"gift"}\n')
        async with asyncio.timeout(5):
            assert [said async for said in answers(line)] == []
        with pytest.raises(DeskLost):
            await _send_on(line)
        await line.close()


async def _send_on(line: Line) -> None:
    for _ in range(100):
        await line.send(Ask(request="r", prompt="x" * 100_000, longest_prompt=9))
