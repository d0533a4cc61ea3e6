"""Sockets that ask for a snapshot at once share one, and none gets one older than its question."""

import asyncio
import itertools
import threading
import time

import pytest
from asgiref.sync import sync_to_async

from tests.waiting import LIMIT_S
from webapp.live import sharing
from webapp.live.sharing import Picture, picture


class Reads(list[tuple[int, float]]):
    """(run, time at which it began) of every reading; none ends before they `may_end`."""

    def __init__(self) -> None:
        super().__init__()
        self.may_end = threading.Event()
        self.may_end.set()


@pytest.fixture
def reads(monkeypatch: pytest.MonkeyPatch) -> Reads:
    """Each numbers itself."""
    begun = Reads()
    numbers = itertools.count(1)

    def read(run_id: int) -> Picture:
        begun.append((run_id, time.monotonic()))
        assert begun.may_end.wait(LIMIT_S)
        number = next(numbers)
        if run_id == 13:
            raise LookupError("no such run")
        return Picture(seq=number, epoch=None, text=str(len(begun)))

    monkeypatch.setattr(sharing, "_encoded", read)
    # No database is read here; a connection that another test left in the thread would be looked at.
    monkeypatch.setattr(sharing, "database_sync_to_async", sync_to_async)
    return begun


async def test_a_burst_costs_one_reading_and_what_comes_meanwhile_one_more(
    reads: Reads,
) -> None:
    reads.may_end.clear()
    first = asyncio.gather(*(picture(1) for _ in range(100)))
    await _begun(reads, 1)
    second = asyncio.gather(*(picture(1) for _ in range(100)))
    await asyncio.sleep(0)  # they ask
    reads.may_end.set()
    assert {one.seq for one in await first} == {1}
    assert {one.seq for one in await second} == {2}
    assert len(reads) == 2
    assert not sharing._next
    assert not sharing._now


async def test_nobody_gets_a_picture_that_was_begun_before_the_question(
    reads: Reads,
) -> None:
    async def ask() -> tuple[float, int]:
        asked_at = time.monotonic()
        return asked_at, (await picture(1)).seq

    for burst in range(3):
        reads.may_end.clear()
        asking = [asyncio.create_task(ask())]
        await _begun(reads, 2 * burst + 1)
        for _ in range(20):  # one after the other, while the first is read
            asking.append(asyncio.create_task(ask()))
            await asyncio.sleep(0)
        reads.may_end.set()
        for asked_at, seq in await asyncio.gather(*asking):
            assert reads[seq - 1][1] >= asked_at
        assert len(reads) == 2 * burst + 2, "all who asked meanwhile share one"


async def test_runs_do_not_share_and_a_failure_reaches_all_who_asked_and_no_later_one(
    reads: Reads,
) -> None:
    outcomes = await asyncio.gather(*(picture(run) for run in (1, 2, 1, 13, 13)), return_exceptions=True)
    assert [type(one) for one in outcomes] == [Picture, Picture, Picture, LookupError, LookupError]
    assert sorted(run for run, _ in reads) == [1, 2, 13]
    assert not sharing._now
    assert (await picture(1)).seq == 4


async def test_one_who_goes_away_takes_nothing_from_the_others(reads: Reads) -> None:
    reads.may_end.clear()
    leaving = asyncio.create_task(picture(1))
    staying = asyncio.create_task(picture(1))
    await _begun(reads, 1)
    leaving.cancel()
    await asyncio.wait([leaving])
    reads.may_end.set()
    assert (await staying).seq == 1
    assert len(reads) == 1


async def _begun(reads: Reads, count: int) -> None:
    async with asyncio.timeout(LIMIT_S):
        while len(reads) < count:
            await asyncio.sleep(0.001)
