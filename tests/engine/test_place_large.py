"""The largest placement that docs/bars.md has a figure of is a document that commands read."""

import json
from pathlib import Path

import pytest

from benchmarks.placement import BARS, document
from engine.documents import load_document
from engine.inputs import parse
from engine.plan.placement.request import PlacementRequest


@pytest.mark.long
def test_the_largest_networks_of_the_benchmark_are_read(tmp_path: Path) -> None:
    devices, stages, _ = max(BARS)
    file = tmp_path / "network.json"
    for kind in ("random", "regions"):
        file.write_text(json.dumps(document(devices, stages, kind)), encoding="utf-8")
        request = parse(PlacementRequest, load_document(file))
        assert len(request.latency_ms) == devices
