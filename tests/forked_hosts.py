"""Hosts of ranks that are forks of one process, and import once what otherwise each host imports."""

import os
import subprocess
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest

from engine.run import host_process
from tests.runtime.hosts import Forked, Nursery


@pytest.fixture(scope="session", autouse=True)
def _forked_hosts() -> Iterator[None]:
    """For runs that a test starts in its own process.

    Commands, agents and demos start hosts as users do. So does a test that has set what Python reads when it
    starts.
    """
    nursery: Nursery | None = None

    def start(command: list[str], **how: Any) -> "subprocess.Popen[bytes] | Forked":
        nonlocal nursery
        assert command[-2:] == ["-m", "engine.run.host"]
        if nursery is None:
            nursery = Nursery({**host_process._HUGE_PAGES, **os.environ})
        if not nursery.may_start(how["env"]):
            return subprocess.Popen(command, **how)
        return nursery.start(how["env"], how["stderr"])

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(host_process, "subprocess", SimpleNamespace(Popen=start, PIPE=subprocess.PIPE))
        yield
    if nursery is not None:
        nursery.close()
