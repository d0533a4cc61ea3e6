"""Works at computations: by the function of their kind, with wires to the page that waits."""

import threading
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import structlog
from django.db import connection

from engine.errors import InputError
from webapp.computations import services
from webapp.computations.kinds import KINDS, giving_way
from webapp.computations.models import Computation
from webapp.computations.wires import BEAT_S, Wires

log = structlog.get_logger(__name__)
HEARTBEAT_S = 3.0


def work_at(pk: uuid.UUID, *, ending: Callable[[], bool] = lambda: False) -> None:
    """Claim a computation, answer it and keep the answer; nothing happens where it is not queued.

    ending : true when the worker shuts down; the computation then goes back into the queue.
    """
    computation = services.claim(pk)
    if computation is None:
        return
    if KINDS[computation.kind].gives_way:
        ending = _or_somebody_waits(ending)
    wires = Wires(computation=computation, ending=ending)
    try:
        with _heart(computation):
            _answer(wires)
    except InputError as error:
        services.give_up(computation, str(error))
    except Exception as error:
        log.exception("computation failed", computation=str(pk))
        services.give_up(computation, f"the engine failed: {type(error).__name__}")
    else:
        if ending() and wires.done < wires.of:
            services.put_back(computation)
        else:
            services.finish(computation, wires.answer or {})


def _answer(wires: Wires) -> None:
    kind = KINDS[wires.computation.kind]
    for answer in kind.work(wires.computation.request, wires):
        wires.answer, wires.done, wires.result = answer, wires.done + 1, {}
        wires.beat()
        if wires.stopped or wires.ending():
            return


def _or_somebody_waits(ending: Callable[[], bool]) -> Callable[[], bool]:
    """`ending`, or what somebody waits for is queued: asked every `BEAT_S`. Once true it stays so."""
    asked_at, waits = time.monotonic(), False

    def gives_way() -> bool:
        nonlocal asked_at, waits
        if not waits and time.monotonic() - asked_at >= BEAT_S:
            asked_at, waits = time.monotonic(), services.somebody_waits(giving_way())
        return waits or ending()

    return gives_way


@contextmanager
def _heart(computation: Computation) -> Iterator[None]:
    """Says every few seconds that the worker lives, also while a long policy asks for nothing."""
    over = threading.Event()

    def beat() -> None:
        try:
            while not over.wait(HEARTBEAT_S):
                services.say_alive(computation)
        finally:
            connection.close()

    thread = threading.Thread(target=beat, name="heart", daemon=True)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()
