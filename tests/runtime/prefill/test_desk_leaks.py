"""A desk forgets what has ended, in whichever way it did."""

import tracemalloc
from pathlib import Path

import pytest

from engine.serve.seat_wire import Drop
from tests.runtime.prefill.fast_desk import DECODED, PERIOD_MS, FastDesk

AN_ITERATION = 8  # requests: most of what the bubbles hold
MANY = 12  # more than they hold: some wait
LATE_MS = 11_000.0  # a standstill of training: requests are lost to it
MOST_BYTES = 60  # of each request that has ended: what is kept of the latest ones varies


@pytest.fixture
def desk(tmp_path: Path) -> FastDesk:
    made = FastDesk(tmp_path)
    for _ in range(6):
        made.iterate()
    return made


def nothing_is_left(desk: FastDesk) -> None:
    """After a while in which nobody asks."""
    for _ in range(60):  # beyond all leases
        desk.iterate()
    for rank in desk.ranks:
        rank.pool.expire()
        assert (rank.pool.bytes_in_use, rank.pool.requests) == (0, ())
    service, controller = desk.service, desk.service.plan.controller
    assert not service._live
    assert not service._names
    assert not desk._decodes
    assert service.turn() is None, "nothing is due"
    assert not controller._book.live()
    assert (service.waiting, controller.waiting, controller.reserved) == (0, (), ())


@pytest.mark.long
def test_requests_that_ended_take_no_memory(desk: FastDesk) -> None:
    tracemalloc.start()
    for _ in range(40):
        desk.iterate(AN_ITERATION)
    for _ in range(3):
        desk.iterate()
    before, ended = tracemalloc.get_traced_memory()[0], desk.ended.total()
    for _ in range(60):
        desk.iterate(AN_ITERATION)
    for _ in range(3):
        desk.iterate()
    kept = tracemalloc.get_traced_memory()[0] - before
    tracemalloc.stop()
    many = desk.ended.total() - ended
    assert many > 400
    assert kept < MOST_BYTES * many + 20_000, f"{kept} bytes after {many} requests"


def test_requests_that_a_standstill_moved_about_all_end(desk: FastDesk) -> None:
    for late_ms in (0.0, 0.0, 0.0, 0.0, 1_500.0, 0.0):
        desk.iterate(MANY, late_ms=late_ms)
    nothing_is_left(desk)
    assert desk.ended.total() == 6 * MANY


@pytest.mark.long
def test_ten_thousand_requests_leave_nothing(desk: FastDesk) -> None:
    asked = 0
    while asked < 10_000:
        lost = asked == 2_000
        desk.iterate(AN_ITERATION, late_ms=LATE_MS if lost else 0.0)
        asked += AN_ITERATION
    nothing_is_left(desk)
    desk.iterate(AN_ITERATION)
    desk.service.detach(0, desk.ranks[0])  # a rank goes, and comes again
    for request in desk.ranks[0].pool.requests:
        desk.ranks[0].send(Drop(request=request))
    desk.service.attach(0, desk.ranks[0])
    desk.iterate(AN_ITERATION)
    desk.until(desk.now_ms + PERIOD_MS / 2)
    desk._decodes.clear()
    desk.service.decoder_lost()
    nothing_is_left(desk)
    assert desk.ended.total() == asked + 2 * AN_ITERATION
    for how in ("done", "cancelled", "decode", "training"):
        assert desk.ended[how] > 0, (how, desk.ended)
    assert DECODED * desk.ended["done"] > 1_000
