"""Experiments for another process: `python -m engine.reproduce NAME…` writes one line of JSON for each.

A line is {"experiment", "title", "rows", "plots"}. The process may be ended at any time.
"""

import json
import math
import sys
from dataclasses import asdict
from typing import Any

from engine.reproduce import Experiment, Plot, experiments


def answer(experiment: Experiment) -> dict[str, Any]:
    """Rows and plots as JSON holds them."""
    outcome = experiment.run()
    return {
        "experiment": experiment.name,
        "title": experiment.title,
        "rows": [row.as_dict(experiment.name) for row in outcome.rows],
        "plots": [_plot(plot) for plot in outcome.plots],
    }


def _plot(plot: Plot) -> dict[str, Any]:
    """JSON has no infinity: such a point is null."""
    drawn = asdict(plot)
    for series in drawn["series"]:
        for axis in ("x", "y"):
            series[axis] = [float(value) if math.isfinite(value) else None for value in series[axis]]
    return drawn


def main(names: list[str]) -> None:
    """Computes the experiments of these names, in this order."""
    known = experiments()
    for name in names:
        sys.stdout.write(json.dumps(answer(known[name]), allow_nan=False) + "\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main(sys.argv[1:])
