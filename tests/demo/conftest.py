import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.demo.harness import Client, Demo


@pytest.fixture(scope="session")
def demo() -> Iterator[Demo]:
    """The whole product, once for the tests of this folder (tests/conftest.py gives them to one worker)."""
    var = Path(tempfile.mkdtemp(prefix="meridian-demo-"))
    var.chmod(0o711)  # as root the servers run as another account: their data stays in here
    running = Demo(var)
    try:
        yield running.start()
    finally:
        running.stop()
        shutil.rmtree(var, ignore_errors=True)


@pytest.fixture
def operator(demo: Demo) -> Client:
    client = Client(demo.url)
    client.login("operator", "meridian-demo")
    return client
