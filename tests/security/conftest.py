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
