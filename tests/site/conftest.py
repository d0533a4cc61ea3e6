"""The world of most site tests. Imported late: this file is read before Django is set up."""

from typing import Any

import pytest


@pytest.fixture(scope="session")
def _recorded_house(django_db_setup: None, django_db_blocker: Any) -> Any:
    from tests.site.house import make_house
    from tests.site.recorded import Recorded

    with django_db_blocker.unblock():
        return Recorded(make_house)


@pytest.fixture(scope="session")
def _recorded_world(django_db_setup: None, django_db_blocker: Any) -> Any:
    from tests.site.recorded import Recorded
    from tests.site.world import make_world

    with django_db_blocker.unblock():
        return Recorded(make_world)


@pytest.fixture
def house(db: Any, _recorded_house: Any) -> Any:
    return _recorded_house.again()


@pytest.fixture
def world(db: Any, _recorded_world: Any) -> Any:
    return _recorded_world.again()


@pytest.fixture(autouse=True)
def _nobody_has_failed() -> None:
    """All tests fail at logins, keys and links from one address."""
    from webapp.common import broker

    for key in broker.client().scan_iter("control:throttle:*"):
        broker.client().delete(key)
