"""`auto`: the figures known to be the best, and every rule of the contract."""

import pytest

from engine.inputs import parse
from engine.schedule import Built, Scenario, Search, build
from engine.simulate import time_schedule
from tests.engine import fig6

WHOLE = {"forward": 1, "recompute": 1, "backward": 2}
SPLIT = {"forward": 1, "recompute": 1, "backward": 1, "weight": 1}
TESTBED = {
    "stages": 4,
    "dc_of_stage": [0, 0, 1, 2],
    "pipelines": 3,
    "times": WHOLE,
    "wan": {"latency": 0, "transfer": 3},
}
KNOWN_BEST = [
    (fig6.FIG6, {"full_limit": 1}, 34),
    (fig6.FIG6, {"full_limit": 2}, 33),
    (fig6.FIG6, {"full_limit": 1, "times": SPLIT}, 29),
    (fig6.FIG6, {"full_limit": 4, "times": SPLIT}, 26),
    (TESTBED, {"microbatches": 4}, 28),
    (TESTBED, {"microbatches": 16}, 76),
    (TESTBED, {"microbatches": 4, "full_limit": 1}, 29),
    (TESTBED, {"microbatches": 16, "full_limit": 1}, 77),
    (TESTBED, {"microbatches": 4, "times": SPLIT}, 24),
    (TESTBED, {"microbatches": 16, "times": SPLIT}, 70),
]


@pytest.mark.parametrize(("document", "fields", "slots"), KNOWN_BEST)
def test_known_best_of_small_cells(document: dict, fields: dict, slots: int) -> None:
    straight = {**document, **fields, "sharing": "temporal", "traversal": "straight", "policy": "auto"}
    scenario = parse(Scenario, straight)
    built = build(scenario, Search(seconds=60, bound=slots))
    assert isinstance(built, Built)
    assert time_schedule(scenario, built.schedule).makespan == slots
