"""Every unit of a batch counts exactly once, whatever comes and goes (an independent account beside)."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.train.swap.ledger import Ledger

EVENTS = st.lists(st.tuples(st.sampled_from(("take", "bring", "lose")), st.integers(0, 5)), max_size=120)


@given(units=st.integers(1, 40), workers=st.integers(1, 6), most=st.integers(1, 8), events=EVENTS)
def test_each_unit_is_in_one_workers_gradients(units: int, workers: int, most: int, events: list) -> None:
    ledger = Ledger(units, range(workers))
    there = set(range(workers))
    held: dict[int, tuple[int, ...]] = {}
    gradients: dict[int, list[int]] = {worker: [] for worker in there}  # what a worker has really added up
    lost = 0

    def take(worker: int) -> None:
        got = ledger.take(worker, most, sum(w not in held for w in there))
        assert len(got) <= most
        if got:
            held[worker] = got

    def bring(worker: int) -> None:
        gradients[worker] += held[worker]
        ledger.bring(worker, held.pop(worker))

    for what, worker in events:
        if worker not in there:
            continue
        if what == "take" and worker not in held:
            take(worker)
        elif what == "bring" and worker in held:
            bring(worker)
        elif what == "lose" and len(there) > 1:
            there.discard(worker)
            lost += len(held.pop(worker, ())) + len(gradients.pop(worker))
            ledger.lose(worker)
        inside = [unit for units_ in gradients.values() for unit in units_]
        assert len(inside) == len(set(inside))
        assert ledger.complete == (len(inside) == units)
    while not ledger.complete:  # those who are left finish
        for worker in sorted(there):
            if worker in held:
                bring(worker)
            take(worker)
    assert sorted(unit for worker in there for unit in gradients[worker]) == list(range(units))
    assert {worker: list(got) for worker, got in ledger.brought().items()} == gradients
    assert ledger.redone == lost


def test_shares_are_even_where_all_are_idle() -> None:
    ledger = Ledger(10, (0, 1, 2))
    assert [len(ledger.take(worker, 8, 3 - worker)) for worker in range(3)] == [4, 3, 3]


@pytest.mark.parametrize("worker", [0, 7])
def test_what_no_worker_may_do_is_an_error(worker: int) -> None:
    ledger = Ledger(4, (0,))
    ledger.take(0, 2, 1)
    with pytest.raises(ValueError, match="holds none"):
        ledger.take(worker, 2, 1)
    with pytest.raises(ValueError, match="brings"):
        ledger.bring(worker, (0, 3))
