"""The work at the figures of the papers, in a process of its own.

An experiment may take minutes and asks nobody whether it should stop. Its process is ended instead, so that
a computation is cancelled, and gives way to others, within a second.
"""

from collections.abc import Iterator
from typing import Any

from django.utils import timezone

from engine.reproduce import experiments
from webapp.computations.own_process import json_lines
from webapp.computations.wires import Wires


def reproduce(request: dict[str, Any], wires: Wires) -> Iterator[dict[str, Any]]:
    """{"experiments": {name: …}}: rows and plots of each experiment of `request`, as they come.

    What an earlier attempt at the same computation has computed is kept: the work gives way to others.
    """
    titles = {name: experiment.title for name, experiment in experiments().items()}
    names = [name for name in request["experiments"] if name in titles]
    before = (wires.computation.answer or {}).get("experiments", {})
    computed = {name: before[name] for name in names if name in before}
    left = [name for name in names if name not in before]
    wires.of = len(names)
    for _ in computed:
        yield {"experiments": dict(computed)}
    for result in _results(left, titles, wires):
        computed[result.pop("experiment")] = result | {"computed_at": timezone.now().isoformat()}
        yield {"experiments": {name: computed[name] for name in names if name in computed}}


def _results(names: list[str], titles: dict[str, str], wires: Wires) -> Iterator[dict[str, Any]]:
    """What the process writes, until it ends or the computation is to stop."""
    if not names:
        return
    results = json_lines("engine.reproduce", names, wires)
    for name in names:
        wires.publish({"at": titles[name]})
        wires.beat()
        if (result := next(results, None)) is None:
            return
        assert result["experiment"] == name
        yield result
