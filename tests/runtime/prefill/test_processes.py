"""Each stage in a process of its own, as ranks have it, and the decode worker in another."""

import multiprocessing
import os
import signal
from collections.abc import Iterator
from contextlib import ExitStack
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import pytest
import torch

from engine.control.handshake import Identity
from engine.prefill.handover import StageCache, transfer_params
from engine.serve.chunks import chunks_of
from engine.serve.decode import DecodeWorker
from engine.serve.kv_server import KvServer
from engine.serve.kv_wire import KvTransferError
from engine.serve.stage import PrefillStage, StageSettings
from tests.runtime.prefill.checkpoints import BLOCK, prompt, save
from tests.runtime.prefill.test_handover import NEW_TOKENS, own_tokens

STAGES = 2
TOKENS = 70

pytestmark = pytest.mark.long


def identity(rank: int) -> Identity:
    return Identity(rank=rank, run="run", generation=1, secret=b"s" * 16)


def serve(folder: Path, rank: int, orders: Connection) -> None:
    """One rank: runs what comes in, offers what is asked for, ends with its orders."""
    settings = StageSettings(stage=rank, stages=STAGES, kv_budget_bytes=1_000_000, block_tokens=BLOCK)
    stage = PrefillStage.load(folder, settings)
    with KvServer(stage.pool, identity(rank), host="127.0.0.1") as server:
        stage.pool.reserve("r", TOKENS, lease_s=300)
        for sizes in iter(orders.recv, None):
            x = torch.tensor(orders.recv())
            chunk = next(c for c in chunks_of("r", TOKENS, sizes) if c.tokens == len(x))
            orders.send(stage.run(chunk, x).tolist())
        orders.send(server.offer("r", lease_s=300).model_dump())
        orders.recv()
        orders.send(stage.pool.bytes_in_use)


@pytest.fixture
def ranks(tmp_path: Path) -> Iterator[list[tuple[Any, Connection]]]:
    spawning = multiprocessing.get_context("spawn")
    save(tmp_path)
    with ExitStack() as keep:
        processes = []
        for rank in range(STAGES):
            here, there = spawning.Pipe()
            process = spawning.Process(target=serve, args=(tmp_path, rank, there), daemon=True)
            process.start()
            keep.callback(process.join, 30)
            keep.callback(process.kill)
            processes.append((process, here))
        yield processes


def prefill(ranks: list[tuple[Any, Connection]]) -> tuple[int, list[StageCache]]:
    x: list = prompt(TOKENS)
    rest: list = []
    for piece in (x[:50], x[50:]):
        rest = piece
        for _, orders in ranks:
            orders.send([50, 20])
            orders.send(rest)
            rest = orders.recv()
    for _, orders in ranks:
        orders.send(None)
    stages = [StageCache.model_validate(orders.recv()) for _, orders in ranks]
    return int(torch.tensor(rest).argmax()), stages


def test_stages_in_processes_and_a_worker_elsewhere(
    ranks: list[tuple[Any, Connection]], tmp_path: Path
) -> None:
    first, stages = prefill(ranks)
    params = transfer_params(engine_id="run/1", request="r", tokens=TOKENS, stages=stages)
    worker = DecodeWorker(tmp_path, identity(99))
    tokens = worker.decode(worker.fetch(params), first, max_new_tokens=NEW_TOKENS - 1)
    assert [first, *tokens] == own_tokens(prompt(TOKENS))
    for process, orders in ranks:
        orders.send("what is held?")
        assert orders.recv() == 0
        process.join(30)
        assert process.exitcode == 0


def test_a_stage_that_is_killed_fails_the_fetch(ranks: list[tuple[Any, Connection]], tmp_path: Path) -> None:
    _, stages = prefill(ranks)
    os.kill(ranks[1][0].pid, signal.SIGKILL)
    ranks[1][0].join(30)
    params = transfer_params(engine_id="run/1", request="r", tokens=TOKENS, stages=stages)
    with pytest.raises(KvTransferError, match=str(stages[1].port)):
        DecodeWorker(tmp_path, identity(99)).fetch(params)
