"""A forked host's exit status is the same for all that wait for it."""

import os
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from tests.runtime import hosts
from tests.runtime.hosts import Forked


def test_two_threads_that_wait_have_one_status(monkeypatch: pytest.MonkeyPatch) -> None:
    both_see_it = threading.Barrier(2)
    ready = hosts._ready

    def seen_by_both(*args: Any) -> bool:
        found = ready(*args)
        both_see_it.wait(10)
        return found

    monkeypatch.setattr(hosts, "_ready", seen_by_both)
    (stdin, to), (of, stdout), (status, end) = os.pipe(), os.pipe(), os.pipe()
    host = Forked(1, to, of, status)
    os.write(end, b"0")
    for fd in (stdin, stdout, end):
        os.close(fd)
    with ThreadPoolExecutor(2) as threads:
        assert list(threads.map(lambda _: host.poll(), range(2))) == [0, 0]
    host.stdin.close()
    host.stdout.close()
