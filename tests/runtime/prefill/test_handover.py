"""The decode worker goes on from the cache alone: transformers' own tokens, or none at all."""

import socket
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
import torch

from engine.control.handshake import Handshake, Identity, dial
from engine.control.thread_driver import greet
from engine.errors import InputError
from engine.inputs import parse
from engine.prefill.handover import KvTransferParams, transfer_params
from engine.prefill.messages import Sampling
from engine.serve import kv_wire
from engine.serve.decode import DecodeWorker
from engine.serve.kv_pool import Freed, KvCache
from engine.serve.kv_server import KvServer
from engine.serve.kv_wire import KvTransferError, receive_frame, send_frame
from engine.serve.pipeline import PrefillPipeline, PrefillResult
from tests.runtime.prefill.checkpoints import BLOCK, model, pipeline, prompt, save
from tests.waiting import LIMIT_S, until

DECODER = 1000
NEW_TOKENS = 12


def identity(rank: int, secret: bytes = b"s" * 16) -> Identity:
    return Identity(rank=rank, run="run", generation=1, secret=secret)


class Service:
    """Three stages, each with its server."""

    def __init__(self, folder: Path, keep: ExitStack, **settings: object) -> None:
        self.run: PrefillPipeline = pipeline(folder, 3, **settings)
        self.servers = [
            keep.enter_context(KvServer(stage.pool, identity(rank), host="127.0.0.1", patience_s=LIMIT_S))
            for rank, stage in enumerate(self.run.stages)
        ]
        self._ahead_s = 0.0
        for stage in self.run.stages:
            stage.pool._clock = lambda: time.monotonic() + self._ahead_s

    def prefill(self, tokens: list[int], request: str = "r") -> PrefillResult:
        done = self.run.prefill(request, tokens, chunks=[5, len(tokens) - 5], lease_s=LIMIT_S)
        assert isinstance(done, PrefillResult)
        return done

    def offer(self, done: PrefillResult, lease_s: float = LIMIT_S) -> KvTransferParams:
        stages = [server.offer(done.request, lease_s=lease_s) for server in self.servers]
        return transfer_params(engine_id="run/1", request=done.request, tokens=done.tokens, stages=stages)

    def let_leases_end(self) -> None:
        """The clock of all pools jumps ahead: leases last `LIMIT_S` at most."""
        self._ahead_s += 2 * LIMIT_S

    @property
    def bytes_in_use(self) -> int:
        return sum(stage.pool.bytes_in_use for stage in self.run.stages)

    def freed(self, why: Freed) -> list[int]:
        return [stage.pool.freed[why] for stage in self.run.stages]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save(tmp_path_factory.mktemp("grouped"))


@pytest.fixture
def service(folder: Path) -> Iterator[Service]:
    with ExitStack() as keep:
        yield Service(folder, keep)


@pytest.fixture(scope="module")
def worker(folder: Path) -> DecodeWorker:
    return DecodeWorker(folder, identity(DECODER))


def own_tokens(tokens: list[int]) -> list[int]:
    """What transformers makes of the whole prompt by itself."""
    ids = torch.tensor([tokens])
    output = model().generate(
        ids, attention_mask=torch.ones_like(ids), max_new_tokens=NEW_TOKENS, do_sample=False
    )
    return output[0, len(tokens) :].tolist()


@pytest.mark.parametrize("tokens", [7, BLOCK * 8, 101])
def test_greedy_tokens_are_transformers_own(service: Service, worker: DecodeWorker, tokens: int) -> None:
    ids = prompt(tokens)
    done = service.prefill(ids)
    cache = worker.fetch(service.offer(done))
    assert service.bytes_in_use == 0
    assert service.freed(Freed.HANDED_OVER) == [1, 1, 1]
    new_tokens = worker.decode(cache, done.first_token, max_new_tokens=NEW_TOKENS - 1)
    assert [done.first_token, *new_tokens] == own_tokens(ids)
    assert len(set(new_tokens)) > 3  # no model that says the same whatever it has read


@pytest.mark.parametrize("stage", [0, 1, 2])
def test_one_corrupt_block_makes_other_tokens(service: Service, worker: DecodeWorker, stage: int) -> None:
    ids = prompt(60)
    done = service.prefill(ids)
    with service.run.stages[stage].pool.pinned("r") as held:
        held.block(4).normal_(0.0, 3.0, generator=torch.Generator().manual_seed(1))
    cache = worker.fetch(service.offer(done))
    tokens = worker.decode(cache, done.first_token, max_new_tokens=NEW_TOKENS - 1)
    assert tokens != own_tokens(ids)[1:]


def test_bytes_that_change_on_the_way_are_refused(
    service: Service, worker: DecodeWorker, monkeypatch: pytest.MonkeyPatch
) -> None:
    done = service.prefill(prompt(40))
    params, checksum = service.offer(done), kv_wire._checksum

    def of_what_came(text: bytes, body: memoryview) -> int:
        if isinstance(text, memoryview) and body:  # a block that has arrived
            body[len(body) // 2] ^= 1
        return checksum(text, body)

    monkeypatch.setattr(kv_wire, "_checksum", of_what_came)
    with pytest.raises(KvTransferError, match="arrived damaged"):
        worker.fetch(params)
    until(lambda: service.bytes_in_use == 0)
    assert service.freed(Freed.DECODER_LOST) == [1, 1, 1]


def test_a_cache_is_fetched_once(service: Service, worker: DecodeWorker) -> None:
    params = service.offer(service.prefill(prompt(20)))
    worker.fetch(params)
    with pytest.raises(KvTransferError, match="no such cache"):
        worker.fetch(params)


def test_a_name_can_be_used_again_at_once(service: Service, worker: DecodeWorker) -> None:
    for _ in range(20):
        worker.fetch(service.offer(service.prefill(prompt(20))))
    assert service.freed(Freed.HANDED_OVER) == [20, 20, 20]
    assert service.freed(Freed.DECODER_LOST) == [0, 0, 0]


def test_a_lease_ends_without_anybody_asking(service: Service, worker: DecodeWorker) -> None:
    params = service.offer(service.prefill(prompt(20)))
    assert service.bytes_in_use > 0
    service.let_leases_end()
    until(lambda: service.bytes_in_use == 0)
    assert service.freed(Freed.EXPIRED) == [1, 1, 1]
    with pytest.raises(KvTransferError, match="lease ended"):
        worker.fetch(params)


def test_a_withdrawn_cache_is_gone(service: Service, worker: DecodeWorker) -> None:
    params = service.offer(service.prefill(prompt(20)))
    assert [server.pool.free("r", Freed.ABORTED) for server in service.servers] == [True] * 3
    assert service.bytes_in_use == 0
    with pytest.raises(KvTransferError, match="no such cache"):
        worker.fetch(params)


@pytest.mark.parametrize("silent", [False, True])
def test_a_decoder_that_dies_frees_what_it_fetched(
    service: Service, monkeypatch: pytest.MonkeyPatch, silent: bool
) -> None:
    let_go, patience_s = KvServer._let_go, []

    def soon_impatient(self: KvServer, connected: socket.socket, cache: KvCache) -> None:
        patience_s.append(connected.gettimeout())
        if silent:
            connected.settimeout(0.05)
        let_go(self, connected, cache)

    monkeypatch.setattr(KvServer, "_let_go", soon_impatient)
    stage = service.offer(service.prefill(prompt(60))).remote_stages[0]
    connected = socket.create_connection((stage.host, stage.port), timeout=LIMIT_S)
    greet(connected, Handshake(dial(identity(DECODER), peer=0)))
    send_frame(connected, {"fetch": "r", "blocks": list(stage.block_ids)})
    assert receive_frame(connected)[0]["cache"] == "r"
    pool = service.run.stages[0].pool
    if not silent:  # else it says nothing more, until the server's patience is over
        connected.close()
    until(lambda: pool.bytes_in_use == 0)
    connected.close()
    assert pool.freed[Freed.DECODER_LOST] == 1
    assert patience_s in ([], [LIMIT_S]), "for each thing that the decoder says"


def test_a_lease_that_ends_during_a_transfer_ends_the_transfer(folder: Path) -> None:
    with ExitStack() as keep:
        service = Service(folder, keep)
        stage = service.offer(service.prefill(prompt(60))).remote_stages[0]
        connected = keep.enter_context(socket.create_connection((stage.host, stage.port), timeout=LIMIT_S))
        greet(connected, Handshake(dial(identity(DECODER), peer=0)))
        send_frame(connected, {"fetch": "r", "blocks": list(stage.block_ids)})
        header, _ = receive_frame(connected)
        for index in range(len(stage.block_ids)):
            tokens = min(BLOCK, 60 - index * BLOCK)
            receive_frame(connected, body_bytes=service.run.stages[0].pool.shape.token_bytes * tokens)
        service.let_leases_end()
        until(lambda: service.run.stages[0].pool.bytes_in_use == 0)
        send_frame(connected, {"taken": "r"})
        with pytest.raises(KvTransferError, match="lease ended during"):
            receive_frame(connected)
        assert header["tokens"] == 60


@pytest.mark.parametrize("ignored", [False, True])
def test_an_answer_goes_on_past_its_end_of_text_where_that_is_ignored(
    service: Service, worker: DecodeWorker, ignored: bool
) -> None:
    done = service.prefill(prompt(20))
    sampling = Sampling(ignore_eos=ignored)
    cache = worker.fetch(service.offer(done))
    likeliest = list(worker.stream(cache, done.first_token, most=4, sampling=Sampling(ignore_eos=True)))
    worker.model.generation_config.eos_token_id = likeliest[1]
    try:
        tokens = list(worker.stream(cache, done.first_token, most=4, sampling=sampling))
    finally:
        worker.model.generation_config.eos_token_id = None
    assert tokens == (likeliest if ignored else likeliest[: likeliest.index(likeliest[1])])


def test_who_does_not_know_the_secret_gets_nothing(service: Service, folder: Path) -> None:
    params = service.offer(service.prefill(prompt(20)))
    stranger = DecodeWorker(folder, identity(DECODER, secret=b"x" * 16))
    with pytest.raises(KvTransferError, match="secret"):
        stranger.fetch(params)
    assert service.bytes_in_use > 0  # and harms nobody


def test_a_failure_without_words_is_named_by_its_kind(
    service: Service, worker: DecodeWorker, monkeypatch: pytest.MonkeyPatch
) -> None:
    params = service.offer(service.prefill(prompt(20)))

    def silent(*_: object, **__: object) -> socket.socket:
        raise TimeoutError

    monkeypatch.setattr(socket, "create_connection", silent)
    with pytest.raises(KvTransferError, match=": TimeoutError"):
        worker.fetch(params)


def test_a_stranger_who_sends_rubbish_is_let_go(service: Service, worker: DecodeWorker) -> None:
    params = service.offer(service.prefill(prompt(20)))
    for rubbish in (b"", b"GET / HTTP/1.1\r\n\r\n" * 20):
        with socket.create_connection((params.remote_host, params.remote_port)) as connected:
            connected.sendall(rubbish)
    assert worker.fetch(params).tokens == 20


@pytest.mark.parametrize(
    "fetch", [{}, {"fetch": 3, "blocks": []}, {"fetch": "r", "blocks": [0]}, {"fetch": "r", "blocks": [[]]}]
)
def test_wrong_questions_are_no_harm(service: Service, worker: DecodeWorker, fetch: dict) -> None:
    params = service.offer(service.prefill(prompt(20)))
    with socket.create_connection((params.remote_host, params.remote_port), timeout=LIMIT_S) as connected:
        greet(connected, Handshake(dial(identity(DECODER), peer=0)))
        send_frame(connected, fetch)
        with pytest.raises(KvTransferError):
            receive_frame(connected)
    assert worker.fetch(params).tokens == 20


def test_a_cache_of_another_model_is_refused(service: Service, tmp_path: Path) -> None:
    other = DecodeWorker(save(tmp_path, "llama3"), identity(DECODER))
    with pytest.raises(KvTransferError, match="kv_heads 2: 1 was expected"):
        other.fetch(service.offer(service.prefill(prompt(20))))
    until(lambda: service.bytes_in_use == 0)


def test_params_are_plain_json(service: Service) -> None:
    params = service.offer(service.prefill(prompt(20)))
    assert KvTransferParams.model_validate_json(params.model_dump_json()) == params
    assert params.remote_block_ids == params.remote_stages[0].block_ids
    wrong = params.model_dump() | {"remote_port": params.remote_port % 65_535 + 1}
    with pytest.raises(InputError, match="remote_port"):
        parse(KvTransferParams, wrong)


def test_bf16_comes_over_as_it_is(folder: Path) -> None:
    with ExitStack() as keep:
        service = Service(folder, keep, dtype="bf16")
        done = service.prefill(prompt(30))
        held = []
        for stage in service.run.stages:
            with stage.pool.pinned("r") as cache:
                held.append(cache.states[:, :, :, :30].clone())
        worker = DecodeWorker(folder, identity(DECODER), dtype="bf16")
        cache = worker.fetch(service.offer(done))
        for sent, came in zip(held, cache.parts, strict=True):
            assert torch.equal(sent, came)
        assert len(worker.decode(cache, done.first_token, max_new_tokens=3)) == 3
