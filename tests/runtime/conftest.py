"""Hosts of ranks that are forks of one process, and import once what otherwise each rank imports."""

import os
import subprocess
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest

from engine.runtime import launch
from tests.runtime.hosts import Forked, Nursery


@pytest.fixture(scope="package", autouse=True)
def _forked_hosts() -> Iterator[None]:
    """For runs that a test here starts in its own process. The command (test_train_job.py), agents and the
    demo start the host as it is, and so does a test that has set a variable of the environment.
    """
    nursery: Nursery | None = None

    def start(command: list[str], **how: Any) -> "subprocess.Popen[bytes] | Forked":
        nonlocal nursery
        assert command[-2:] == ["-m", "engine.runtime.host"]
        if nursery is None:
            nursery = Nursery({**launch._HUGE_PAGES, **os.environ})
        if not nursery.may_start(how["env"]):
            return subprocess.Popen(command, **how)
        return nursery.start(how["stderr"])

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(launch, "subprocess", SimpleNamespace(Popen=start, PIPE=subprocess.PIPE))
        yield
    if nursery is not None:
        nursery.close()
