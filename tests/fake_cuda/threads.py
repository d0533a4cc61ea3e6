"""Threads of the host: what one has waited for is known to those that wait for it."""

import threading
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import pytest

from tests.fake_cuda.clock import Clock
from tests.fake_cuda.gpu import Gpu
from tests.fake_cuda.watching import Watch

_start, _join, _submit = threading.Thread.start, threading.Thread.join, ThreadPoolExecutor.submit
_condition = threading.Condition
_enter, _leave, _wait = _condition.__enter__, _condition.__exit__, _condition.wait


class Threads:
    """Carries clocks from thread to thread, and watches the ops of threads that are started."""

    def __init__(self, gpu: Gpu) -> None:
        self._gpu = gpu
        self._clocks: dict[threading.Thread, Clock] = {}

    def patch(self, patch: pytest.MonkeyPatch) -> None:
        """Put the methods in place until `patch` is undone."""
        patch.setattr(threading.Thread, "start", lambda thread: self.start(thread))
        patch.setattr(threading.Thread, "join", lambda thread, timeout=None: self.join(thread, timeout))
        patch.setattr(ThreadPoolExecutor, "submit", lambda *args, **kwargs: self.submit(*args, **kwargs))
        patch.setattr(_condition, "__enter__", lambda lock: self.enter(lock))
        patch.setattr(_condition, "__exit__", lambda lock, *error: self.leave(lock, *error))
        patch.setattr(_condition, "wait", lambda lock, timeout=None: self.wait(lock, timeout))

    def start(self, thread: threading.Thread) -> None:
        begun, run = self._gpu.host.clock.copy(), thread.run

        def watched() -> None:
            self._gpu.wait_for(begun)
            self._clocks[thread] = self._gpu.host.clock
            with Watch(self._gpu):
                run()

        thread.run = watched  # type: ignore[method-assign]
        _start(thread)

    def join(self, thread: threading.Thread, timeout: float | None) -> None:
        _join(thread, timeout)
        if not thread.is_alive() and thread in self._clocks:
            self._gpu.wait_for(self._clocks[thread])

    def submit(
        self, pool: ThreadPoolExecutor, work: Callable[..., Any], /, *args: Any, **kwargs: Any
    ) -> "Future[Any]":
        clock = self._gpu.host.clock.copy()

        def done() -> Any:
            self._gpu.wait_for(clock)
            return work(*args, **kwargs)

        return _submit(pool, done)

    def enter(self, lock: threading.Condition) -> Any:
        answer = _enter(lock)
        self._gpu.wait_for(self._known(lock))
        return answer

    def leave(self, lock: threading.Condition, *error: Any) -> None:
        self._known(lock).join(self._gpu.host.clock)
        _leave(lock, *error)

    def wait(self, lock: threading.Condition, timeout: float | None) -> bool:
        self._known(lock).join(self._gpu.host.clock)
        answer = _wait(lock, timeout)
        self._gpu.wait_for(self._known(lock))
        return answer

    def _known(self, lock: threading.Condition) -> Clock:
        """What those knew who have held a lock; to be used while it is held."""
        gpu, clock = lock.__dict__.get("_known_to", (None, Clock()))
        if gpu is not self._gpu:  # a lock of the process may be older than this fake
            clock = Clock()
            lock.__dict__["_known_to"] = self._gpu, clock
        return clock
