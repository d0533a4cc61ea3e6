"""Jobs of several DP-cells: every cell does what one alone would, and shares links in time with no other."""

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from engine.errors import InputError
from engine.job.predict import predict, schedule_of
from tests.runtime.jobs import Run, job
from tests.runtime.test_training_equals_single import reference

MIXED = {"pipelines": [[0, 1, 4], [5, 2, 3]]}
TIMES = {"forward": 10, "backward": 20, "recompute": 10}


def cells(count: int, *, of: int, **changes: Any) -> Any:
    n = count * of
    sites = [{"name": "north", "gpus": 2 * n}, {"name": "south", "gpus": n}]
    few = {"device": "emulated", "times_ms": TIMES, "recompute": None, **changes}
    return job(**{"datacenters": sites, "pipelines": n, "cells": count, **few})


@settings(max_examples=8, deadline=None)
@given(count=st.integers(2, 4), of=st.integers(1, 3), policy=st.sampled_from(["atlas", "varuna", "1f1b"]))
def test_each_cell_is_predicted_as_one_alone(count: int, of: int, policy: str) -> None:
    changes = {"policy": policy, "activation_bytes": 2_000_000}
    many, one = cells(count, of=of, **changes), cells(1, of=of, **changes)
    assert str(schedule_of(many)) == str(schedule_of(one))
    none = (0.0,) * 3
    together, alone = (predict(j, allreduce_s=none, optimizer_s=none) for j in (many, one))
    assert together.iteration_s == alone.iteration_s
    assert together.utilization == pytest.approx(alone.utilization)
    ops = [s for s in together.spans if s.op not in ("all_reduce", "optimizer")]
    expected = [s for s in alone.spans if s.op not in ("all_reduce", "optimizer")]
    for cell in range(count):
        here = [s for s in ops if s.pipeline in many.cell.cell_of(cell * of)]
        shifted = [{**s.as_dict(), "pipeline": s.pipeline - cell * of} for s in here]
        assert shifted == [s.as_dict() for s in expected]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"cells": 3}, "cells.*3.*divides the 2 pipelines"),
        ({"cells": 0}, "cells"),
        (
            {"cells": 2, "dc_of_stage": None, "policy": "1f1b", "devices": MIXED},
            "cells.*2.*different data centres",
        ),
    ],
)
def test_refused_with_the_field(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        job(**changes)


@pytest.mark.long
def test_cells_compute_what_one_process_computes(tmp_path: Path) -> None:
    of = cells(2, of=2, device=None, times_ms=None, recompute=True, steps=2)
    assert schedule_of(of).sharing == "temporal"
    losses, norms, _ = reference(of)
    result = Run(of, str(tmp_path)).result()
    assert result["losses"] == pytest.approx(losses, rel=1e-5)
    assert result["grad_norms"] == pytest.approx(norms, rel=1e-5)
