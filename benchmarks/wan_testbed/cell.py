"""The ranks of one data centre of the testbed, run by our executor.

    python -m benchmarks.wan_testbed.cell SPEC DC

SPEC is a file with a launch spec of the whole run. Prints the run's `step` and `result` events as JSON lines.
"""

import contextlib
import json
import signal
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

from engine.runtime.launch import LaunchSpec, RankGroup


def main() -> None:
    spec, dc = LaunchSpec.from_json(Path(sys.argv[1]).read_text()), int(sys.argv[2])
    local = tuple(assignment.rank for assignment in spec.ranks if assignment.dc == dc)
    group = RankGroup(replace(spec, local=local, log_dir=f"{spec.log_dir}/{dc}"), tell)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
    group.start()
    try:
        with contextlib.suppress(KeyboardInterrupt):
            group.wait()
    finally:
        group.stop(0.0)


def tell(event: dict[str, Any]) -> None:
    if event["kind"] in ("step", "result") or event.get("state") == "failed":
        print(json.dumps(event), flush=True)


if __name__ == "__main__":
    main()
