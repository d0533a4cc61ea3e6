"""Prefill on the fake device: chunks on a stream of low priority, weights, and caches that are fetched."""

import json
import queue
import threading
import time
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.distributed import HashStore

from engine.control.handshake import Identity
from engine.inputs import Document
from engine.nn.device import LOW_PRIORITY, CudaDevice
from engine.prefill.handover import transfer_params
from engine.prefill.messages import Sampling
from engine.serve.chunks import PrefillChunk
from engine.serve.hidden_states import HiddenHeader, HiddenReceiver, HiddenSender, HiddenShape, address_key
from engine.serve.kv_client import KvClient
from engine.serve.kv_pool import KvShape
from engine.serve.kv_server import KvServer
from engine.serve.pipeline import PrefillPipeline, PrefillResult
from engine.serve.prefill_wire import ChunkLate, ChunkRan, RunChunk
from engine.serve.prefill_worker import PrefillWorker
from engine.serve.stage import PrefillStage, StageSettings
from tests.fake_cuda.memory import Kind
from tests.fake_cuda.mutating import without
from tests.fake_cuda.patches import fake_cuda
from tests.fake_cuda.watching import unwatched
from tests.waiting import LIMIT_S

CONFIG = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "hidden_size": 32,
    "intermediate_size": 80,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 8,
    "vocab_size": 97,
    "max_position_embeddings": 256,
    "rms_norm_eps": 1e-5,
    "hidden_act": "silu",
    "attention_bias": False,
    "mlp_bias": False,
    "tie_word_embeddings": False,
    "bos_token_id": None,
    "eos_token_id": None,
    "initializer_range": 0.2,
    "rope_parameters": {"rope_type": "default", "rope_theta": 1e4},
}
PROMPT = [3, 14, 15, 92, 65, 35, 89, 79, 32, 38, 46]
BLOCK = 8


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "config.json").write_text(json.dumps(CONFIG))
    return tmp_path


@pytest.fixture(autouse=True)
def _known_to_the_fake(monkeypatch: pytest.MonkeyPatch) -> None:
    """A lock whose order the fake knows, and a mask that torch cannot make while a dispatch mode watches."""
    from torch.nn.attention import bias  # with it torch._dynamo: seconds, for a process that runs these tests

    bias_class = bias.causal_lower_right

    def mask(*size: int) -> Any:
        with unwatched():
            return bias_class(*size)

    monkeypatch.setattr(bias, "causal_lower_right", mask)
    monkeypatch.setattr("engine.serve.kv_pool.RLock", threading.Condition)  # which holds an RLock


def stages(folder: Path, device: str, count: int = 2) -> PrefillPipeline:
    """Stages with weights that are drawn on the device."""
    return PrefillPipeline(
        [
            PrefillStage.load(
                folder,
                StageSettings(
                    stage=stage, stages=count, device=device, kv_budget_bytes=1_000_000, block_tokens=BLOCK
                ),
                seed=5,
            )
            for stage in range(count)
        ]
    )


def prefill(run: PrefillPipeline) -> Tensor:
    """Logits of the prompt in two chunks, on the host."""
    done = run.prefill("r", PROMPT, chunks=[4, len(PROMPT) - 4], lease_s=60.0)
    assert isinstance(done, PrefillResult)
    return done.logits.to("cpu")


def test_logits_equal_those_of_the_host_and_chunks_are_in_order(folder: Path) -> None:
    expected = prefill(stages(folder, "cpu"))
    with fake_cuda() as gpu:
        CudaDevice(0)  # the rank's own, with the stream of its ops
        assert torch.equal(prefill(stages(folder, "cuda")), expected)
    assert gpu.faults == []
    products = [ran for ran in gpu.ran if ran.name == "linear"]
    assert products
    assert {ran.stream.priority for ran in products} == {LOW_PRIORITY}


class Coordinator:
    """Keeps what the prefill worker says."""

    def __init__(self) -> None:
        self.said: queue.SimpleQueue[Document] = queue.SimpleQueue()

    def send(self, message: Document) -> None:
        if isinstance(message, ChunkRan | ChunkLate):
            self.said.put(message)


def test_a_prefill_worker_runs_chunks_beside_training_ops(folder: Path) -> None:
    expected = int(prefill(stages(folder, "cpu", 1)).argmax())
    with fake_cuda() as gpu:
        device, coordinator = CudaDevice(0), Coordinator()
        (stage,) = stages(folder, "cuda", 1).stages
        server = KvServer(stage.pool, identity(0), host="127.0.0.1")
        prefill_worker = PrefillWorker(stage, server, ops=1, leads=True, span=lambda start, end: None)
        prefill_worker.attach(coordinator)
        training = torch.ones(512, 512, device=device.name)
        for _ in range(200):
            training = training * 1.0  # under way while the chunks run
        prefill_worker.begin(0)
        for done, tokens in ((0, 4), (4, len(PROMPT) - 4)):
            prefill_worker.handle(chunk(done, tokens))
        first, last = (coordinator.said.get(timeout=LIMIT_S) for _ in range(2))
        device.settle()
        prefill_worker.close()
        server.close()
    assert isinstance(first, ChunkRan)
    assert isinstance(last, ChunkRan)
    assert last.token == expected
    assert gpu.faults == []
    ops = [ran for ran in gpu.ran if ran.name == "mul" and ran.stream.priority < 0]
    chunks = [ran for ran in gpu.ran if "PrefillStage" in str(ran.stream)]
    assert sum(ops[0].begin < chunk.begin and chunk.end < ops[-1].end for chunk in chunks) > len(chunks) / 2


def chunk(done: int, tokens: int) -> RunChunk:
    """A chunk of the prompt, which the prefill worker may run at once."""
    now = time.monotonic()
    return RunChunk(
        request="a",
        done=done,
        ids=tuple(PROMPT[done : done + tokens]),
        tokens=tokens,
        total=len(PROMPT),
        iteration=0,
        op=0,
        begin_s=now,
        until_s=now + LIMIT_S,
        lease_s=LIMIT_S,
        sampling=Sampling(),
    )


def test_a_decoder_gets_the_cache_that_the_device_holds(folder: Path) -> None:
    def fetched(device: str) -> list[Tensor]:
        run = stages(folder, device)
        prefill(run)
        servers = [
            KvServer(stage.pool, identity(rank), host="127.0.0.1") for rank, stage in enumerate(run.stages)
        ]
        try:
            offered = [server.offer("r", lease_s=60.0) for server in servers]
            params = transfer_params(engine_id="e", request="r", tokens=len(PROMPT), stages=offered)
            config = run.stages[0].config
            shape = KvShape.of(config, range(4), dtype="fp32", block_tokens=BLOCK)
            cache = KvClient(identity(1000), shape).fetch(params)
            return [tensor for layer in cache.layers() for tensor in layer]
        finally:
            for server in servers:
                server.close()

    expected = fetched("cpu")
    with fake_cuda() as gpu:
        CudaDevice(0)
        assert all(map(torch.equal, fetched("cuda"), expected))
    assert gpu.faults == []
    assert any(ran.name == "copy to host" for ran in gpu.ran)


class Next:
    """Stands in for the prefill worker of the next stage: takes what is handed on."""

    def __init__(self) -> None:
        self.came: queue.SimpleQueue[Tensor] = queue.SimpleQueue()

    def arrived(self, what: HiddenHeader, hidden: Tensor) -> None:
        self.came.put(hidden)


def test_the_next_stage_gets_the_hidden_states_of_the_device(folder: Path) -> None:
    chunk = PrefillChunk(request="r", done=0, tokens=len(PROMPT), total=len(PROMPT))

    def handed_on(device: str) -> Tensor:
        stage, store, behind = stages(folder, device).stages[0], HashStore(), Next()
        shape = HiddenShape(size=stage.config.hidden_size, dtype=stage.dtype, context=256)
        taker = HiddenReceiver(identity(1), shape, behind, before=0, host="127.0.0.1")
        store.set(address_key(1), json.dumps(taker.address))
        sender = HiddenSender(identity(0), store, behind=1, most_bytes=10**6)
        try:
            assert stage.pool.reserve("r", len(PROMPT), lease_s=60.0) is None
            hidden = stage.run(chunk, torch.tensor(PROMPT))
            sender.send(HiddenHeader(request="r", done=0, tokens=len(PROMPT), lease_s=60.0), hidden)
            return behind.came.get(timeout=LIMIT_S)
        finally:
            sender.close()
            taker.close()

    expected = handed_on("cpu")
    with fake_cuda() as gpu:
        CudaDevice(0)
        assert torch.equal(handed_on("cuda"), expected)
    assert gpu.faults == []


def identity(rank: int) -> Identity:
    return Identity(rank=rank, run="run", generation=1, secret=b"s" * 16)


@pytest.mark.parametrize("waits", [True, False])
def test_a_chunk_that_does_not_wait_for_the_weights_is_found(
    folder: Path, monkeypatch: pytest.MonkeyPatch, waits: bool
) -> None:
    """Today a copy of the rotary frequencies from the host happens to wait, too; on the device none would."""
    monkeypatch.setattr("engine.serve.stage.frequencies", lambda _: torch.ones(4, device="cuda"))
    if not waits:
        line = "self._stream.wait_stream(torch.cuda.current_stream(self.device))"
        without(monkeypatch, PrefillStage, "__init__", line)
    with fake_cuda() as gpu:
        device = CudaDevice(0)
        prefill(stages(folder, "cuda"))
        device.settle()
    if waits:
        assert gpu.faults == []
    else:
        assert gpu.kinds == {Kind.TOO_EARLY}
        gpu.expect("linear on stream . of PrefillStage.__init__ .* does not wait for normal_ on stream .")


def test_a_result_that_is_taken_before_it_is_made_is_found(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    without(monkeypatch, PrefillStage, "_done", "over.synchronize()")
    with fake_cuda() as gpu:
        CudaDevice(0)
        prefill(stages(folder, "cuda"))
    assert {Kind.TOO_EARLY, Kind.NOT_JOINED} <= gpu.kinds
    gpu.expect(
        "copy to host on stream 1 of CudaDevice.__init__ .* does not wait for .* PrefillStage.__init__"
    )
    gpu.expect("nobody has waited for .* of PrefillStage.__init__")
