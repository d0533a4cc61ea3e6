"""A run in whose bubbles prompts are prefilled, and what its coordinators say at the moment of a picture."""

import random
import time
from datetime import timedelta
from itertools import pairwise
from typing import Any

from django.utils import timezone

from scripts.screens import staged_runs
from tests.site.coordinators import MODEL, coordinator_event, prefill_event, say
from tests.site.tenancies import use
from tests.site.world import World
from webapp.jobs.models import Job, Run
from webapp.live.models import SpanBatch
from webapp.prefill.models import Tenancy

SELLING = "selling"
SECONDS = 600
LEAST_MS, CHUNK_MS = 12.0, 9.0  # of a bubble that holds a chunk; of a chunk at most
SHARES = {"east": 1.0, "mid": 0.6}


def selling(world: World) -> None:
    """The run, with chunks of prefill in its bubbles."""
    run = staged_runs.running(world, SELLING)
    latency = {"a_ms": 4, "b_ms": 0.1, "c_ms": 0}
    section = {"checkpoint": "/models/llama-3-8b", "name": MODEL, "latency": latency}
    Job.objects.filter(pk=run.job_id).update(document={**run.job.document, "prefill": section})
    chance = random.Random(11)
    batches = list(SpanBatch.objects.filter(run=run))
    for batch in batches:
        batch.spans = sorted([*batch.spans, *_chunks(batch.spans, chance)], key=lambda code: code[2])
    SpanBatch.objects.bulk_update(batches, ["spans"])


def _chunks(codes: list[list[Any]], chance: random.Random) -> list[list[Any]]:
    """Codes of prefill between the ops of a GPU."""
    ops = sorted((code for code in codes if code[0] != "T"), key=lambda code: code[2])
    spans = []
    for one, other in pairwise(ops):
        at = one[3] + 1
        while other[2] - at > LEAST_MS and chance.random() < 0.8:
            end = at + min(CHUNK_MS, other[2] - at - 2) * chance.uniform(0.5, 1)
            spans.append(["P", None, round(at, 3), round(end, 3)])
            at = end + 1
    return spans


def sell() -> dict[str, Any]:
    """Say what the run's coordinators did in the last minutes, and what a tenant met."""
    run, chance = Run.objects.get(job__name=SELLING), random.Random(5)
    now = int(time.time())  # so that a second that is said twice counts once
    for rank, (dc, share) in enumerate(SHARES.items()):
        seconds = [_second(run, dc, share, now - ago, chance) for ago in range(SECONDS)]
        say(coordinator_event(run, dc=dc, rank=1_000_000 + rank, t=now - SECONDS), *seconds, node=f"{dc}-1")
    tenancy = Tenancy.objects.get(name="Fathom Search")
    for i in range(200):
        at = timezone.now() - timedelta(seconds=4 * i)
        use(tenancy, now + i, at=at, prompt_tokens=chance.randrange(80, 2_000), ttft_ms=_ttft_ms(chance))
    return {}


def _second(run: Run, dc: str, share: float, t: float, chance: random.Random) -> dict[str, Any]:
    burst = 3.0 if int(t) % 120 < 25 else 1.0
    requests = int(8 * share * burst * chance.uniform(0.5, 1.5))
    full, late = (requests // 4, requests // 9) if burst > 1 else (0, requests // 12)
    accepted = requests - full - late
    return prefill_event(
        run,
        dc=dc,
        t=t,
        accepted=accepted,
        refused={"queue_full": full, "ttft": late},
        delivered=accepted,
        failed={},
        missed=int(chance.random() < 0.02),
        waiting=full,
        gpus=4,
        slowdown=0.003,
        prefill_ms=min(1_600.0, 130.0 * accepted),
    )


def _ttft_ms(chance: random.Random) -> float:
    return round(min(chance.lognormvariate(4.8, 0.5), 460.0), 1)
