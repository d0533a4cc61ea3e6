"""Prefill in a run that goes on after a failure, and in one that re-plans."""

import asyncio
import os
import signal
from pathlib import Path
from typing import Any

import pytest

from engine.job.launch import Disturbance
from engine.run.tiny import write_tiny
from tests.runtime.prefill.live import Gateway, LiveRun, live_job, prefill
from tests.runtime.test_adapting import EMULATED
from tests.runtime.test_recovery import check_exactly_once
from tests.waiting import LIMIT_S

pytestmark = pytest.mark.long
PROMPT = "def main() -> None:\n"
MADE = 4


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    where = tmp_path_factory.mktemp("tiny") / "tiny"
    write_tiny(where, steps=0, seed=5)
    return where


async def answer(run: LiveRun, dc: str) -> list[int]:
    await run.until(f"the coordinator of {dc}", lambda: run.coordinator(dc))
    gateway = await run.gateway(dc)
    await gateway.ask("a", prompt=PROMPT, max_tokens=MADE)
    tokens = await gateway.tokens("a")
    await gateway.close()
    return tokens


def told_to_end(run: LiveRun) -> dict[str, Any]:
    run.group.stop_at_boundary()
    assert run.group.wait(LIMIT_S)
    return run.of_kind("result")[0]


def test_a_run_that_recovers_sells_again(folder: Path, tmp_path: Path) -> None:
    run = LiveRun(folder, tmp_path, recovery={}, dtype="fp64")
    try:
        asyncio.run(_killed(run))
        result = told_to_end(run)
    finally:
        run.group.stop(0.0)
    (recovery,) = result["recoveries"]
    assert recovery["from"] in ("memory", "peer")
    check_exactly_once(run.events, run.spec.job.with_fields("optimizer", steps=result["steps"]), [recovery])
    for dc in ("north", "south"):
        assert run.coordinator_states(dc) == ["open", "closed", "open", "closed"]


async def _killed(run: LiveRun) -> None:
    first = await answer(run, "north")
    assert await answer(run, "south") == first
    gateway: Gateway = await run.gateway("north")
    await gateway.ask("under-way", may_fail=True, prompt="y" * 200, max_tokens=1500)
    await run.until("acceptance", lambda: "under-way" in gateway.answers)
    os.kill(next(e["pid"] for e in run.of_kind("rank") if e["rank"] == 4 and e["pid"]), signal.SIGKILL)
    async with asyncio.timeout(LIMIT_S):
        await gateway.lost.wait()
    last = gateway.answers["under-way"][-1]
    assert last.kind == "failed", "nothing that was accepted ends silently"
    await gateway.close()
    await run.until("the closing", lambda: len(run.of_kind("prefill_coordinator")) >= 4)
    for dc in ("north", "south"):
        assert await answer(run, dc) == first


def test_a_run_that_plans_anew_sells_on(folder: Path, tmp_path: Path) -> None:
    slow = Disturbance(gpu_factor=((0, 0, 1.6),), since=8)
    changes = {**EMULATED, "adapt": {"deviation": 0.25}, "prefill": prefill(folder)}
    run = LiveRun(folder, tmp_path, slow, **changes)
    assert run.spec.job == live_job(folder, **changes)
    try:
        first = asyncio.run(_adapted(run))
        told_to_end(run)
    finally:
        run.group.stop(0.0)
    assert len(first) == MADE
    assert run.coordinator_states("north") == ["open", "closed"]


async def _adapted(run: LiveRun) -> list[int]:
    first = await answer(run, "north")
    await run.until("a new plan", lambda: any(e["replanned"] for e in run.of_kind("adapted")))
    assert await answer(run, "north") == first
    return first
