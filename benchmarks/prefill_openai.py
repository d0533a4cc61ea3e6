"""What tenants cost a running training: ``python -m benchmarks.prefill_openai``.

The demo as it is (three data centres on the emulated device, the site, PostgreSQL, prefill coordinators), and
the official `openai` client, which sends prompts to each data centre in blocks of time, by turns with none.
Iterations are those that the site recorded. Prints the slow-down with a 95 % bootstrap interval over pairs of
neighbouring blocks (as benchmarks.prefill_live), and how busy the CPU was, with clients, site and database on
it. Above 70 % nothing is claimed. Prompts are as long as those of the Azure code trace, in its order, cut to
what the model's context holds. The quota of the demo's tenancy, and the longest prompt that it may send, are
raised in the database.

The client has a session of its own, as a user's in another terminal has; who comes first on the CPU is left
to the demo.
"""

import argparse
import asyncio
import itertools
import os
import sys
import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, field
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import numpy as np
import openai
import psutil

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from benchmarks.prefill_live import say, slowdown
from engine.prefill.trace import read_trace
from tests.demo.harness import Demo, wait_for
from tests.demo_alone.own import demo_of_its_own, first_run, operator_of, query

COORDINATORS = (
    "select name from live_prefillcoordinator join inventory_datacenter dc on dc.id = dc_id"
    " where run_id = %s and state = 'open'"
)
ITERATIONS = (
    'select start, "end" from live_iterationstat where run_id = %s and utilization is not null'
    " order by iteration"
)
PREFILL = "select sum(prefill_ms), sum(waited_ms) from live_prefillsecond where run_id = %s"
Block = tuple[bool, float, float]  # with prefill, Unix begin, Unix end
SETTLE_S = 1.5  # of a block, before its iterations count


@dataclass
class Told:
    """What became of the requests, and how long each took, ms."""

    ended: Counter[str] = field(default_factory=Counter)
    took_ms: list[float] = field(default_factory=list)
    tokens: int = 0


async def ask_on(
    api: openai.AsyncOpenAI, model: str, until: float, recorder: Told, options: Any, lengths: Iterator[int]
) -> None:
    """One request after the other, with a pause between."""
    while time.monotonic() < until:
        prompt = "x" * min(next(lengths), options.longest)
        sent = time.monotonic()
        try:
            answer = await api.completions.create(model=model, prompt=prompt, max_tokens=1)
        except openai.APIStatusError as error:
            recorder.ended[f"refused: {error.status_code} {error.code}"] += 1
        else:
            recorder.ended["done"] += 1
            recorder.took_ms.append((time.monotonic() - sent) * 1e3)
            recorder.tokens += answer.usage.prompt_tokens if answer.usage else 0
        await asyncio.sleep(options.pause)


def ask(url: str, key: str, models: list[str], options: Any) -> tuple[list[Block], Told]:
    """Run all blocks against the demo at `url`."""
    return asyncio.run(_ask(url, key, models, options))


async def _ask(url: str, key: str, models: list[str], options: Any) -> tuple[list[Block], Told]:
    ran: list[Block] = []
    recorder = Told()
    lengths = itertools.cycle(read_trace("azure-code").tokens.tolist())
    async with openai.AsyncOpenAI(base_url=f"{url}/v1", api_key=key, max_retries=0, timeout=30) as api:
        for block in range(2 * options.blocks):
            on = (block % 2 == 0) != (block // 2 % 2 == 1)
            began, until = time.time(), time.monotonic() + options.seconds
            if on:
                await asyncio.gather(
                    *(ask_on(api, model, until, recorder, options, lengths) for model in models)
                )
            await asyncio.sleep(max(0.0, until - time.monotonic()))
            ran.append((on, began, time.time()))
    return ran, recorder


def durations(ran: list[Block], starts: np.ndarray[Any, Any]) -> dict[bool, list[list[float]]]:
    """Seconds of the iterations that lie within each block, from one begin to the next."""
    lists: dict[bool, list[list[float]]] = {True: [], False: []}
    for on, began, ended in ran:
        inside = starts[(starts >= began + SETTLE_S) & (starts <= ended)]
        lists[on].append(np.diff(inside).tolist())
    return lists


def measure(demo: Demo, options: Any) -> dict[str, Any]:
    """Wait for the coordinators, run the blocks, and say what came out."""
    run = int(first_run(demo, operator_of(demo), iteration=1, seconds=180))
    wait_for("a coordinator in each data centre", lambda: len(query(demo, COORDINATORS, run)) == 3, 180)
    models = [f"llama-tiny@{name}" for (name,) in query(demo, COORDINATORS, run)]
    raised = "update prefill_tenancy set tokens_per_min = %s, longest_prompt = %s returning id"
    query(demo, raised, 100_000_000, options.longest)
    time.sleep(10.0)
    key = (demo.var / "demo-key").read_text().strip()
    with ProcessPoolExecutor(1, mp_context=get_context("spawn"), initializer=os.setsid) as client:
        psutil.cpu_percent()
        ran, recorder = client.submit(ask, demo.url, key, models, options).result()
        busy = psutil.cpu_percent()
    time.sleep(5.0)  # what the site has still to take in
    starts = np.array([start for start, _ in query(demo, ITERATIONS, run)])
    ((prefill_ms, waited_ms),) = query(demo, PREFILL, run)
    ttft = {f"p{q}": round(float(np.percentile(recorder.took_ms, q)), 1) for q in (50, 95, 99)}
    return {
        **slowdown(durations(ran, starts)),
        "iterations": len(starts),
        "ended": dict(recorder.ended),
        "prompt_tokens": recorder.tokens,
        "prefill_gpu_s": prefill_ms / 1e3,
        "ops_waited_s": waited_ms / 1e3,
        "answer_ms": ttft,
        "missed": sum(ms > options.objective for ms in recorder.took_ms),
        "cpu_percent": busy,
    }


def main() -> None:
    """Start the demo, measure, stop it."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--blocks", type=int, default=30, help="of each kind")
    parser.add_argument("--seconds", type=float, default=6.0, help="of a block")
    parser.add_argument(
        "--pause", type=float, default=0.5, help="seconds between an answer and the next request"
    )
    parser.add_argument("--longest", type=int, default=1900, help="tokens that a prompt is cut to")
    parser.add_argument("--objective", type=float, default=2000.0, help="ms to the answer's only token")
    options = parser.parse_args()
    with demo_of_its_own(sells=True) as demo:
        figures = measure(demo.start(), options)
    say(figures)


if __name__ == "__main__":
    main()
