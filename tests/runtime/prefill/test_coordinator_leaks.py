"""A coordinator forgets what has ended, in whichever way it did."""

import tracemalloc
from pathlib import Path

import pytest

from engine.serve.prefill_wire import Drop
from tests.runtime.prefill.fast_coordinator import DECODED, PERIOD_MS, FastCoordinator

AN_ITERATION = 8  # requests: most of what the bubbles hold
MANY = 12  # more than they hold: some wait
LATE_MS = 11_000.0  # a standstill of training: requests are lost to it
MOST_BYTES = 60  # of each request that has ended: what is kept of the latest ones varies


@pytest.fixture
def coordinator(tmp_path: Path) -> FastCoordinator:
    new = FastCoordinator(tmp_path)
    for _ in range(6):
        new.iterate()
    return new


def nothing_is_left(coordinator: FastCoordinator) -> None:
    """After a while in which nobody asks."""
    for _ in range(60):  # beyond all leases
        coordinator.iterate()
    for rank in coordinator.ranks:
        rank.pool.expire()
        assert (rank.pool.bytes_in_use, rank.pool.requests) == (0, ())
    service, controller = coordinator.service, coordinator.service.plan.controller
    assert not service._requests
    assert not service._names
    assert not coordinator._decodes
    assert service.turn() is None, "nothing is due"
    assert not controller._book.live()
    assert (service.waiting, controller.waiting, controller.reserved) == (0, (), ())


@pytest.mark.long
def test_requests_that_ended_take_no_memory(coordinator: FastCoordinator) -> None:
    tracemalloc.start()
    for _ in range(40):
        coordinator.iterate(AN_ITERATION)
    for _ in range(3):
        coordinator.iterate()
    before, ended = tracemalloc.get_traced_memory()[0], coordinator.ended.total()
    for _ in range(60):
        coordinator.iterate(AN_ITERATION)
    for _ in range(3):
        coordinator.iterate()
    kept_bytes = tracemalloc.get_traced_memory()[0] - before
    tracemalloc.stop()
    many = coordinator.ended.total() - ended
    assert many > 400
    assert kept_bytes < MOST_BYTES * many + 20_000, f"{kept_bytes} bytes after {many} requests"


def test_requests_that_a_standstill_moved_about_all_end(coordinator: FastCoordinator) -> None:
    for late_ms in (0.0, 0.0, 0.0, 0.0, 1_500.0, 0.0):
        coordinator.iterate(MANY, late_ms=late_ms)
    nothing_is_left(coordinator)
    assert coordinator.ended.total() == 6 * MANY


@pytest.mark.long
def test_ten_thousand_requests_leave_nothing(coordinator: FastCoordinator) -> None:
    requests = 0
    while requests < 10_000:
        lost = requests == 2_000
        coordinator.iterate(AN_ITERATION, late_ms=LATE_MS if lost else 0.0)
        requests += AN_ITERATION
    nothing_is_left(coordinator)
    coordinator.iterate(AN_ITERATION)
    coordinator.service.detach(0, coordinator.ranks[0])  # a rank goes, and comes again
    for request in coordinator.ranks[0].pool.requests:
        coordinator.ranks[0].send(Drop(request=request))
    coordinator.service.attach(0, coordinator.ranks[0])
    coordinator.iterate(AN_ITERATION)
    coordinator.until(coordinator.now_ms + PERIOD_MS / 2)
    coordinator._decodes.clear()
    coordinator.service.decoder_lost()
    nothing_is_left(coordinator)
    assert coordinator.ended.total() == requests + 2 * AN_ITERATION
    for how in ("done", "cancelled", "decode", "training"):
        assert coordinator.ended[how] > 0, (how, coordinator.ended)
    assert DECODED * coordinator.ended["done"] > 1_000
