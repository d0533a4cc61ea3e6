import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.demo.harness import Client, Demo

FOLDER = Path(__file__).parent


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Tests of this folder that need no demo come first: beside them it would run for nothing."""
    here = [i for i, item in enumerate(items) if item.path.parent == FOLDER]
    ordered = sorted((items[i] for i in here), key=lambda item: "demo" in getattr(item, "fixturenames", ()))
    for i, item in zip(here, ordered, strict=True):
        items[i] = item


@pytest.fixture(scope="package")
def demo() -> Iterator[Demo]:
    """The whole product, once for the tests of this folder (tests/conftest.py gives them to one worker).

    It ends with them: its ranks would take a core from all other tests.
    """
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
