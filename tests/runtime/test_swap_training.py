"""A swap run computes what one process computes, with whoever is there, inside the device's memory."""

import dataclasses
import itertools
import math
import os
import selectors
import signal
import socket
import threading
from pathlib import Path
from typing import Any

import pytest

from engine.control.errors import PeerLost
from engine.control.handshake import Handshake, listen
from engine.control.identity import identity_of
from engine.control.thread_driver import BlockingChannel
from engine.job.launch import LOCALHOST, single_machine
from engine.run.launcher import RankGroup
from engine.train.swap.client import Client
from engine.train.swap.memory import DeviceMemory
from engine.train.swap.messages import (
    LISTENERS,
    TO_REPLICA,
    Address,
    End,
    FromTracker,
    Hello,
    Leave,
    Take,
)
from engine.train.swap.replica import Replica
from tests.events import as_dicts
from tests.ports import free_port
from tests.runtime.jobs import Run
from tests.runtime.swap_jobs import EMULATED, GPU, job
from tests.runtime.test_trackers import scalars
from tests.runtime.test_training_equals_single import reference
from tests.waiting import LIMIT_S, until

HELLO = Hello(step=0, address=Address(store=1))


def check_equal(run: Run, result: dict[str, Any]) -> None:
    losses, norms, _ = reference(run.job)
    off = 1e-9 if run.job.device.dtype == "fp64" else 1e-5
    assert result["losses"] == pytest.approx(losses, rel=off, abs=off)
    assert result["grad_norms"] == pytest.approx(norms, rel=off, abs=off)


def check_exactly_once(run: Run) -> None:
    """By the tracker's word, and by the spans of all workers that came to the end of an iteration."""
    units = run.job.cell.global_batch // run.job.cell.micro_batch
    batches = run.of_kind("batch")
    assert [batch["iteration"] for batch in batches] == list(range(run.job.optimizer.steps))
    for batch in batches:
        assert sorted(itertools.chain(*batch["units"].values())) == list(range(units))
        spans = [
            span
            for event in run.of_kind("spans")
            if event["iteration"] == batch["iteration"]
            for span in event["spans"]
        ]
        for op in ("F", "R", "B"):
            done = [(s.get("chunk"), s["microbatch"]) for s in spans if s.get("op") == op]
            assert len(done) == len(set(done)) == units * (1 + max(chunk for chunk, _ in done))


def test_losses_norms_and_spans(tmp_path: Path) -> None:
    folder = tmp_path / "board"
    run = Run(job(**EMULATED, clip=1.0, steps=3, tracking={"tensorboard": str(folder)}), str(tmp_path))
    result = run.result()
    check_equal(run, result)
    check_exactly_once(run)
    bits = [loss / math.log(2) for loss in result["losses"]]  # a token is a byte
    assert result["bits_per_byte"] == pytest.approx(bits)
    written = [(step, value) for tag, step, _, value in scalars(folder) if tag == "bits_per_byte/train"]
    assert written == [(i, pytest.approx(value, rel=1e-6)) for i, value in enumerate(bits, 1)]
    swap, n = result["swap"], len(result["swap"]["sub_models"])
    assert swap["feasible"]
    assert n > 2
    assert swap["peak_device_bytes"] <= swap["device_bytes"] == 1_500_000
    assert result["iteration_ms"]["simulated"] > 3 * 0.08e3
    for event in run.of_kind("spans"):
        loads = [s for s in event["spans"] if s["op"] == "load" and "payload" not in s]
        out = [s for s in event["spans"] if s["op"] == "load" and s.get("payload") == "gradient"]
        # 2(n − 1) loads a step, and the updated first sub-model's; at the very first, that one's own too.
        assert len(loads) == 2 * (n - 1) + 1 + (event["iteration"] == 0)
        assert sorted(s["chunk"] for s in out) == list(range(n))
        for span in (*loads, *out):
            sub = swap["sub_models"][span["chunk"]]
            assert span["bytes"] == sub["parameter_bytes"]
            assert span["end"] - span["start"] >= span["bytes"] / 0.04e9 - 1e-4
        work = [s for s in event["spans"] if s["op"] in ("F", "R", "B")]
        assert all(a["end"] <= b["start"] + 1e-5 for a, b in itertools.pairwise(work)), "one op at a time"
        order = [s["chunk"] for s in work if s["op"] != "R"]
        visits = [chunk for chunk, _ in itertools.groupby(order)]
        assert visits == [*range(n), *reversed(range(n - 1))], "the last sub-model stays after forward"


@pytest.mark.long
@pytest.mark.parametrize(
    "changes",
    [
        {"dtype": "fp32", "accumulation": 2, "lr_schedule": {"warmup_steps": 2, "decay": "cosine"}},
        {"dtype": "fp32", "model": {"layers": 6, "hidden": 32, "heads": 2, "seq": 16, "family": "llama"}},
        {"devices": {"pipelines": [[0], [3], [1]]}, "swap": {"gpu": GPU, "gradients": "device"}},
        {"swap": {"gpu": {"memory_bytes": 1e8}}},
    ],
    ids=["fp32", "llama", "device-two-dcs", "one-sub-model"],
)
def test_every_way_equals_a_plain_loop(changes: dict[str, Any], tmp_path: Path) -> None:
    run = Run(job(**changes), str(tmp_path))
    check_equal(run, run.result())
    check_exactly_once(run)


@pytest.mark.long
@pytest.mark.parametrize("devices", [[0, 1, 2], [0, 1, 3]], ids=["gloo", "ring"])
def test_one_leaves_one_joins_one_is_killed(devices: list[int], tmp_path: Path) -> None:
    of = job(
        **EMULATED,
        steps=14,
        devices={"pipelines": [[device] for device in devices]},
        swap={
            "gpu": GPU,
            "joins": [{"after_step": 1, "device": 4}, {"after_step": 2, "device": devices[1]}],
            "leaves": [{"after_step": 2, "worker": 1}],
        },
    )
    run = Run(of, str(tmp_path))
    assert run.training.wait(60)
    until(lambda: any("joined" in event for event in run.of_kind("workers")))
    first = next(e["pid"] for e in run.of_kind("rank") if e["rank"] == 0)
    os.kill(first, signal.SIGKILL)
    result = run.result()
    check_equal(run, result)
    for batch in run.of_kind("batch"):
        assert sorted(itertools.chain(*batch["units"].values())) == list(range(12))
    assert {"joined", "left", "lost"} <= {name for change in result["swap"]["changes"] for name in change}
    assert [e["rank"] for e in run.of_kind("rank") if e["state"] == "left"] == [0]
    assert "SIGKILL" in next(e["detail"] for e in run.of_kind("rank") if e["state"] == "left")


@pytest.mark.long
def test_the_last_worker_that_is_killed_fails_the_run(tmp_path: Path) -> None:
    run = Run(job(pipelines=2, steps=100_000), str(tmp_path))
    assert run.training.wait(60)
    for count, rank in enumerate((0, 1), start=1):
        os.kill(next(e["pid"] for e in run.of_kind("rank") if e["rank"] == rank), signal.SIGKILL)
        until(lambda count=count: sum(e["exit_code"] == -9 for e in run.of_kind("rank")) == count)
    assert run.group.wait(30)
    assert [(e["rank"], e["state"]) for e in run.of_kind("rank") if e["exit_code"]] == [
        (0, "left"),
        (1, "failed"),
    ]
    assert not run.of_kind("result")


@pytest.mark.long
def test_an_error_of_a_worker_fails_the_run_with_its_last_line(tmp_path: Path) -> None:
    run = Run(job(lr=1000.0, steps=200, dtype="fp32"), str(tmp_path))
    assert run.group.wait(60)
    failed = [e for e in run.of_kind("rank") if e["state"] == "failed"]
    assert failed
    assert all("must be finite" in e["detail"] for e in failed)
    assert not run.of_kind("result")


@pytest.mark.long
def test_checkpoint_and_resume_equal_the_whole_run(tmp_path: Path) -> None:
    saves = {"dir": str(tmp_path / "saved"), "every": 2, "keep": 2}
    half = Run(job(steps=2, checkpoint=saves), str(tmp_path / "a")).result()
    assert half["checkpoints"] == {"saved": 1, "failed": 0, "last_step": 2}
    rest = Run(job(steps=4, checkpoint=saves, resume=True), str(tmp_path / "b")).result()
    whole = Run(job(steps=4), str(tmp_path / "c")).result()
    assert rest["resumed_from"] == 2
    assert half["losses"] + rest["losses"] == pytest.approx(whole["losses"], rel=1e-12)


AS_PIPELINE = {
    "strategy": None,
    "swap": None,
    "stages": 2,
    "dc_of_stage": [0, 0],
    "policy": "1f1b",
    "datacenters": [{"name": "north", "gpus": 6}],
    "links": None,
}


@pytest.mark.long
@pytest.mark.parametrize(("first", "then"), [(AS_PIPELINE, {}), ({}, AS_PIPELINE)], ids=["swap", "pipeline"])
def test_a_strategy_goes_on_from_the_other_ones_checkpoint(
    tmp_path: Path, first: dict[str, Any], then: dict[str, Any]
) -> None:
    saves = {"dir": str(tmp_path / "saved"), "every": 2, "keep": 2}
    half = Run(job(steps=2, checkpoint=saves, **first), str(tmp_path / "a")).result()
    rest = Run(job(steps=4, checkpoint=saves, resume=True, **then), str(tmp_path / "b")).result()
    whole = Run(job(steps=4), str(tmp_path / "c")).result()
    assert rest["resumed_from"] == 2
    assert half["losses"] + rest["losses"] == pytest.approx(whole["losses"], rel=1e-9)


@pytest.mark.long
def test_a_run_ends_at_a_boundary(tmp_path: Path) -> None:
    run = Run(job(steps=100_000), str(tmp_path))
    assert run.training.wait(60)
    run.group.stop_at_boundary()
    result = run.result()
    assert result["steps"] == run.of_kind("boundary")[0]["iteration"] + 1


@pytest.mark.long
def test_another_machine_brings_one_worker_and_one_that_joins(tmp_path: Path) -> None:
    port = free_port()
    of = job(steps=40, swap={"gpu": GPU, "joins": [{"after_step": 1, "device": 4}]})
    spec = dataclasses.replace(
        single_machine(of, run="test", log_dir=""), rendezvous_port=port, secret="s" * 32
    )
    nodes = ("north", "north", "south", "south")
    spec = dataclasses.replace(
        spec,
        ranks=tuple(dataclasses.replace(me, node=node) for me, node in zip(spec.ranks, nodes, strict=True)),
    )
    events: list[dict[str, Any]] = []
    groups = [
        RankGroup(dataclasses.replace(spec, local=local, log_dir=str(tmp_path / name)), as_dicts(events))
        for name, local in (("north", (0, 1)), ("south", (2, 3)))
    ]
    try:
        groups[1].start()
        # Its workers look for a tracker whose machine has not begun: its host imports torch for seconds.
        until(lambda: sum(e["kind"] == "rank" and e["state"] == "starting" for e in events) >= 2)
        groups[0].start()
        assert all(group.wait(120) for group in groups)
    finally:
        for group in groups:
            group.stop(0.0)
    (result,) = [event for event in events if event["kind"] == "result"]
    assert result["losses"] == pytest.approx(reference(of)[0], rel=1e-9)
    assert [change["joined"] for change in result["swap"]["changes"]] == [[3]]
    assert {e["state"] for e in events if e["kind"] == "rank" and e["exit_code"] is not None} == {"finished"}


def test_who_does_not_know_the_secret_is_refused() -> None:
    with selectors.DefaultSelector() as selector, socket.create_server((LOCALHOST, 0)) as listener:
        spec = single_machine(job(), run="test", log_dir="")
        tracker = Replica(
            spec,
            0,
            listener,
            selector,
            emit=lambda _: None,
            start=lambda _: None,
            stop_flag=b"\0",
            tokens_per_byte=lambda _: 1.0,
        )
        answers: list[str] = []

        def knock(secret: str) -> None:
            other = dataclasses.replace(spec, secret=secret)
            with pytest.raises(PeerLost) as refused:
                Client(other, 0, listener.getsockname()[1], HELLO, lambda _: None)
            answers.append(str(refused.value))

        def answered() -> bool:
            for key, _ in selector.select(0.05):
                key.data()
            return bool(answers) and not knocking.is_alive()

        knocking = threading.Thread(target=knock, args=("wrong",))
        knocking.start()
        until(answered)
        assert len(answers) == 1
        assert "does not know the secret" in answers[0]
        assert not tracker.awaits
        tracker.close()


@pytest.mark.parametrize(
    ("because", "dies"), [(Take(step=0, units=(0,)), True), (Leave(), False), (End(), False)]
)
def test_a_tracker_that_ends_before_a_worker_it_let_go_has_not_failed_it(
    because: FromTracker, dies: bool
) -> None:
    spec, lost = single_machine(job(), run="test", log_dir=""), threading.Event()

    def serve(listener: socket.socket) -> None:
        connection, _ = listener.accept()
        with connection:
            channel = BlockingChannel(
                connection, Handshake(listen(identity_of(spec, spec.first_rank, LISTENERS))), TO_REPLICA
            )
            assert isinstance(next(channel.messages()), Hello)
            channel.send(because)

    with socket.create_server((LOCALHOST, 0)) as listener:
        serving = threading.Thread(target=serve, args=(listener,))
        serving.start()
        before = set(threading.enumerate())
        client = Client(spec, 0, listener.getsockname()[1], HELLO, lambda _: lost.set())
        serving.join()
        assert client.inbox.get(timeout=LIMIT_S) == because
        for thread in set(threading.enumerate()) - before:
            if thread.name == "tracker":  # the listener: it ends with the connection
                thread.join(LIMIT_S)
                assert not thread.is_alive()
        assert lost.is_set() == dies


def test_memory_that_is_not_there_is_refused() -> None:
    memory = DeviceMemory(100)
    memory.take(60)
    with pytest.raises(MemoryError, match="120 bytes do not fit on a device of 100 bytes"):
        memory.take(120)
    memory.give(60)
    memory.take(100)
    assert memory.peak_bytes == 100
