"""The demo over ten minutes: it trains, it learns, it does not grow, and Ctrl-C ends all of it."""

import time
from collections import defaultdict

import numpy as np
import psutil
import pytest

from tests.demo.harness import Demo, wait_for
from tests.demo_alone.own import demo_of_its_own, family_of, first_run, left_of, operator_of, query, state_of

pytestmark = [pytest.mark.long, pytest.mark.timeout(1200)]

MOST_MB_PER_MINUTE = 1.0


def _pss_by_family(demo: Demo) -> dict[str, float]:
    found: dict[str, float] = defaultdict(float)
    for process in demo.tree():
        name = family_of(demo, process)
        try:
            found[name] += process.memory_full_info().pss / 1e6
        except psutil.Error:
            continue
    return found


def _growth(times_s: list[float], values_mb: list[float]) -> float:
    """Slope of the least-squares line, MB per minute."""
    return float(np.polyfit(np.asarray(times_s) / 60, values_mb, 1)[0])


def test_ten_minutes_of_the_demo(capsys: pytest.CaptureFixture[str]) -> None:
    with demo_of_its_own() as demo:
        started = time.monotonic()
        demo.start()
        client = operator_of(demo)
        run = first_run(demo, client, iteration=1, seconds=180)
        trains_after_s = time.monotonic() - started
        times_s: list[float] = []
        samples: list[dict[str, float]] = []
        while (elapsed := time.monotonic() - started) < 600:
            if elapsed >= 120:
                times_s.append(elapsed)
                samples.append(_pss_by_family(demo))
            time.sleep(10)
        total = [sum(sample.values()) for sample in samples]
        growth = {name: _growth(times_s, [s.get(name, 0.0) for s in samples]) for name in samples[0]}
        losses = [
            row[0]
            for row in query(
                demo,
                "select loss from live_iterationstat"
                " where run_id = %s and loss is not null order by iteration",
                int(run),
            )
        ]
        state = state_of(client, run)
        status, alive = demo.interrupt()
        with capsys.disabled():
            print(f"\ntrains after {trains_after_s:.1f} s; {len(losses)} iterations; ")
            print(f"PSS {total[0]:.0f} -> {total[-1]:.0f} MB, {_growth(times_s, total):+.2f} MB/min")
            for name, slope in sorted(growth.items()):
                print(
                    f"  {name:10} {samples[0][name]:7.1f} -> {samples[-1].get(name, 0):7.1f} MB {slope:+.3f}"
                )
            print(f"loss {losses[0]:.3f} -> {losses[200]:.3f} after 200 steps; exit status {status}")
        assert state["status"] == "running", state
        assert losses[200] <= 0.7 * losses[0]
        assert _growth(times_s, total) < MOST_MB_PER_MINUTE, growth
        assert status in (0, 130)
        assert not alive
        wait_for("no process of the demo", lambda: not left_of(demo), 10)
