"""The worlds of the site's tests. Imported late: this file is read before Django is set up."""

from typing import Any

import pytest


@pytest.fixture
def world(db: Any) -> Any:
    from tests.site.world import make_world

    return make_world()


@pytest.fixture
def house(db: Any) -> Any:
    from tests.site.house import make_house

    return make_house()


@pytest.fixture(autouse=True)
def _nobody_has_failed() -> None:
    """All tests fail at logins, links and joins from one address, those of a whole site too."""
    from webapp.common import broker

    for pattern in ("control:throttle:*", "control:uses:*"):
        for key in broker.client().scan_iter(pattern):
            broker.client().delete(key)
