"""A run in every state that the run page knows, one with 10,000 iterations and one on 960 GPUs."""

import itertools
import random
import time
from datetime import timedelta
from typing import Any

from django.utils import timezone

from engine.job.changed import changed
from engine.job.events.event import from_dict
from engine.job.shape import shape_of
from tests.site import many
from tests.site.telemetry import ADAPTED, layout_changed
from tests.site.world import VALUES, World, make_dc, make_node
from webapp.inventory.models import Device, GpuPool, WanLink
from webapp.jobs.models import Job, MarkLevel, RankState, RankStatus, Run, Status
from webapp.jobs.services import (
    add_mark,
    cancel_run,
    fail_run,
    finish_stopped,
    launch_run,
    lock,
    record_adapted,
    record_boundary,
    record_layout_changed,
    record_result,
    set_status,
    stop_at_boundary,
    wait_for,
)
from webapp.live.models import IterationStat, LogLine
from webapp.planning import compose
from webapp.planning.services import create_plan

LONG, LONG_ITERATIONS = "long", 10_000
LARGE, LARGE_STAGES, LARGE_MICROBATCHES = "large", 60, 20
FAULT = "RuntimeError: CUDA error: uncorrectable ECC error encountered on gpu-0"
RANKS = 12
MARKS = 1_000_000  # past those that a run in training has
PACKAGES = "/opt/meridian/lib/python3.11/site-packages"
WARNING = (
    "UserWarning: The given NumPy array is not writable, and PyTorch does not support non-writable tensors "
    "(triggered at ../torch/csrc/utils/tensor_numpy.cpp:212)"
)


def runs(world: World) -> None:
    queued(world)
    starting(world)
    going(world)
    ended(world)
    long_one(world)
    large_one(world)


def launched(world: World, name: str, *, steps: int = 20_000) -> Run:
    """A run of a job of its own, called after what is to be seen."""
    template = Job.objects.filter(name=world.plan.name).first() or world.launch().job
    document = changed(template.document, {"optimizer.steps": steps})
    job = Job.objects.create(
        team=world.team,
        name=name,
        document=document,
        plan=world.plan,
        plan_copy=template.plan_copy,
        created_by=world.users["operator"],
    )
    return launch_run(world.users["operator"], job)


def at(run: Run, status: Status, reason: str = "") -> Run:
    from django.db import transaction

    with transaction.atomic():
        set_status(lock(run.pk), status, reason)
    run.refresh_from_db()
    return run


def running(world: World, name: str, iterations: int = 120, *, steps: int = 20_000) -> Run:
    """A run with its 12 ranks at work and `iterations` behind it."""
    run = launched(world, name, steps=steps)
    trained(world, run, iterations)
    Run.objects.filter(pk=run.pk).update(status_since=timezone.now() - timedelta(minutes=2))
    run.refresh_from_db()
    return run


def trained(world: World, run: Run, iterations: int, *, batches: int = 12) -> None:
    """Iterations of all ranks, with what went over each link."""
    many.train(world, run, range(iterations), batches=batches)
    shape = shape_of(run.job.document)
    gbps = [0.93 * link["cap_gbps"] for link in shape.links]
    IterationStat.objects.filter(run=run).update(ranks=shape.ranks, link_gbps=gbps)
    Run.objects.filter(pk=run.pk).update(steps=run.job.document["optimizer"]["steps"], mark_seq=MARKS)


def queued(world: World) -> None:
    launched(world, "queued")
    wait_for(
        launched(world, "waiting"), "Waits for 12 GPUs: east, mid and west have 9 idle; long holds 3 of them"
    )
    wait_for(
        launched(world, "waiting-for-us"),
        "Waits for 4 GPUs in west: west-1 is silent since 02:41 UTC and no other node is there",
        needs_action=True,
    )


def starting(world: World) -> None:
    run = at(launched(world, "starting"), Status.STARTING, "12 ranks on 3 nodes were sent for.")
    many.place_ranks(world, run)
    states = [RankStatus.READY] * 7 + [RankStatus.STARTING] * 3 + [RankStatus.ASSIGNED] * 2
    for rank, state in enumerate(states):
        run.ranks.filter(rank=rank).update(state=state, last_line="")
    wait_for(run, "Waits for 5 of 12 ranks to be ready")


def going(world: World) -> None:
    operator = world.users["operator"]
    running(world, "running")
    adapted = running(world, "adapted")
    record_adapted(adapted, from_dict({**ADAPTED, "t": time.time() - 20}))
    moved = running(world, "moved")
    record_layout_changed(moved, from_dict(layout_changed(moved, t=time.time() - 20)))
    draining = running(world, "draining")
    stop_at_boundary(operator, draining, why="mid-1 is draining", again=True)
    record_boundary(draining, 124)
    cancel_run(operator, running(world, "stopping"))


def ended(world: World) -> None:
    operator = world.users["operator"]
    stopped = running(world, "stopped")
    cancel_run(operator, stopped)
    stopped.ranks.update(state=RankStatus.STOPPED)
    finish_stopped(stopped)
    record_result(stopped, {"wan": wan_rows([f"data-centre-{i + 1:02}" for i in range(12)])})
    cancel_run(operator, launched(world, "cancelled-early"))
    failed = running(world, "failed")
    failed.ranks.update(state=RankStatus.STOPPED, detail="stopped with its run")
    failed.ranks.filter(rank=2).update(state=RankStatus.FAILED, detail=FAULT, exit_code=1)
    fail_run(failed, f"P1 S3 on mid-1: {FAULT} (exit status 1)")
    refused = at(launched(world, "failed-early"), Status.STARTING)
    many.place_ranks(world, refused)
    refused.ranks.update(state=RankStatus.FAILED, detail="ModuleNotFoundError: No module named 'torch'")
    fail_run(refused, "P1 S1 on east-1: ModuleNotFoundError: No module named 'torch' (exit status 1)")
    done = running(world, "succeeded", 200, steps=200)
    done.ranks.update(state=RankStatus.FINISHED)
    record_result(done, {"wan": wan_rows(["east", "mid", "west"])})
    at(done, Status.SUCCEEDED, "All 200 iterations done.")
    again = running(world, "second-attempt", 40)
    fail_run(again, "west-1 was silent for 12 s: its ranks are lost")
    launch_run(operator, again.job)


def wan_rows(names: list[str]) -> list[dict[str, Any]]:
    """Traffic between every two data centres, of hops and of gradients."""
    return [
        {
            "from": source,
            "to": target,
            "from_stage": stage,
            "to_stage": stage + is_hop,
            "bytes": 4_194_304_000 * (stage + 1),
            "egress_bytes": 4_218_000_000 * (stage + 1),
            "egress_cost": 0.08436 * (stage + 1),
            "gbps": None,
            "connections": 9,
        }
        for stage, (source, target) in enumerate(itertools.permutations(names, 2))
        for is_hop in (True, False)
    ]


def long_one(world: World) -> None:
    """Ten thousand iterations, and what its ranks wrote."""
    run = running(world, LONG, LONG_ITERATIONS)
    LogLine.objects.filter(run=run).delete()
    chance = random.Random(7)
    LogLine.objects.bulk_create(
        LogLine(
            run=run,
            rank=i % RANKS,
            seq=i,
            at=timezone.now() - timedelta(seconds=(1500 - i) / 6),
            text=_line(i, chance),
            dropped=412 if i == 1480 else 0,
        )
        for i in range(1500)
    )
    add_mark(run, MarkLevel.WARN, "west-1 was silent for 7 s.")


def _line(i: int, chance: random.Random) -> str:
    """As trainers write: a step, a warning, a path, that lines were dropped."""
    if i == 1480:
        return "412 lines were dropped here: more than 200 a second"
    if i % 97 == 13:
        return WARNING
    if i % 311 == 40:
        return f'  File "{PACKAGES}/torch/distributed/distributed_c10d.py", line 2501, in batch_isend_irecv'
    loss, norm = 2.31 + chance.gauss(0, 0.01), 1.02 + chance.gauss(0, 0.05)
    speed = 63_000 + chance.randrange(1_000)
    return f"iteration {8500 + i}: loss {loss:.4f}, gradient norm {norm:.3f}, {speed:,} tokens/s"


def large_one(world: World) -> None:
    """960 GPUs: 16 pipelines of 60 stages over three data centres of 40 nodes."""
    dcs = [make_dc(world.team, f"large-{place}") for place in ("a", "b", "c")]
    GpuPool.objects.filter(dc__in=dcs).update(price_per_gpu_hour="1.85")
    joined: dict[str, Any] = {"acl_sha256": "0" * 64, "enrolled_at": timezone.now()}
    online = {**joined, "device": Device.EMULATED, "last_seen": timezone.now(), "seen_gpus": 8}
    nodes = [[make_node(dc, f"{dc.name}-{i + 1:02}", gpus=8, **online) for i in range(40)] for dc in dcs]
    for a, b in itertools.pairwise(dcs):
        WanLink.objects.create(a=a, b=b, latency_ms=12, bandwidth_gbps=5)
    values: dict[str, Any] = {
        **VALUES,
        "datacenters": dcs,
        "partitions": LARGE_STAGES,
        "microbatches": LARGE_MICROBATCHES,
        "comm_to_compute": 16,
        "layers": LARGE_STAGES,
        "max_dp_cells": 1,
    }
    plan = create_plan(
        world.users["operator"],
        team=world.team,
        name=LARGE,
        request=compose.request_of(values),
        training=compose.training_of(values),
    )
    from webapp.jobs.services import launch_plan

    run = launch_plan(world.users["operator"], plan, 0)
    _spread(run, nodes)
    run.epoch = time.time() - 40 * run.predicted["iteration_ms"] / 1e3 * 1.06
    trained(world, run, 40, batches=2)
    WanLink.objects.update(bandwidth_gbps=5)


def _spread(run: Run, nodes: list[list[Any]]) -> None:
    """Ranks on nodes of eight GPUs, in order."""
    document, used = run.job.document, [0, 0, 0]
    stages, states = document["cell"]["stages"], []
    for rank in range(stages * document["cell"]["pipelines"]):
        dc = document["cell"]["dc_of_stage"][rank % stages]
        node = nodes[dc][used[dc] // 8]
        states.append(
            RankState(
                run=run,
                rank=rank,
                pipeline=rank // stages,
                stage=rank % stages,
                dc=node.dc,
                node=node,
                gpu=used[dc] % 8,
                state=RankStatus.RUNNING,
                state_since=timezone.now(),
            )
        )
        used[dc] += 1
    RankState.objects.bulk_create(states)
