"""Sockets that ask for a snapshot at once share one, and none gets one older than its question."""

import asyncio
import itertools
import time

import pytest
from asgiref.sync import sync_to_async

from webapp.live import sharing
from webapp.live.sharing import Picture, picture


@pytest.fixture
def reads(monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, float]]:
    """(run, time at which it began) of every reading; each takes 50 ms and numbers itself."""
    begun: list[tuple[int, float]] = []
    numbers = itertools.count(1)

    def read(run_id: int) -> Picture:
        begun.append((run_id, time.monotonic()))
        time.sleep(0.05)
        number = next(numbers)
        if run_id == 13:
            raise LookupError("no such run")
        return Picture(seq=number, epoch=None, text=str(len(begun)))

    monkeypatch.setattr(sharing, "_encoded", read)
    # No database is read here; a connection that another test left in the thread would be looked at.
    monkeypatch.setattr(sharing, "database_sync_to_async", sync_to_async)
    return begun


async def test_a_burst_costs_one_reading_and_what_comes_meanwhile_one_more(
    reads: list[tuple[int, float]],
) -> None:
    first = asyncio.gather(*(picture(1) for _ in range(100)))
    await asyncio.sleep(0.02)
    second = asyncio.gather(*(picture(1) for _ in range(100)))
    assert {one.seq for one in await first} == {1}
    assert {one.seq for one in await second} == {2}
    assert len(reads) == 2
    assert not sharing._next
    assert not sharing._now


async def test_nobody_gets_a_picture_that_was_begun_before_the_question(
    reads: list[tuple[int, float]],
) -> None:
    async def ask(after_s: float) -> tuple[float, int]:
        await asyncio.sleep(after_s)
        asked = time.monotonic()
        return asked, (await picture(1)).seq

    for asked, seq in await asyncio.gather(*(ask(0.007 * i) for i in range(40))):
        assert reads[seq - 1][1] >= asked
    assert len(reads) < 12


async def test_runs_do_not_share_and_a_failure_reaches_all_who_asked_and_no_later_one(
    reads: list[tuple[int, float]],
) -> None:
    found = await asyncio.gather(*(picture(run) for run in (1, 2, 1, 13, 13)), return_exceptions=True)
    assert [type(one) for one in found] == [Picture, Picture, Picture, LookupError, LookupError]
    assert sorted(run for run, _ in reads) == [1, 2, 13]
    assert not sharing._now
    assert (await picture(1)).seq == 4


async def test_one_who_goes_away_takes_nothing_from_the_others(reads: list[tuple[int, float]]) -> None:
    leaving = asyncio.create_task(picture(1))
    staying = asyncio.create_task(picture(1))
    await asyncio.sleep(0.01)
    leaving.cancel()
    assert (await staying).seq == 1
    assert len(reads) == 1
