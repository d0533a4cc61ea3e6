"""Prefill in a training run: one run is asked all there is to ask, and then looked at from every side."""

import asyncio
import dataclasses
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import torch

from engine.job.launch import single_machine
from engine.prefill.messages import Accepted, Done, Failed, Refused, Token, Turn
from engine.run.launcher import RankGroup
from engine.run.tiny import CONTEXT, write_tiny
from tests.events import as_dicts
from tests.ports import free_port
from tests.runtime.jobs import Run, job
from tests.runtime.prefill.live import Gateway, LiveRun, live_job, prefill
from tests.runtime.prefill.receiver import Receiver
from tests.waiting import LIMIT_S

PROMPTS = {"short": "def f", "long": "import os\n" * 12, "other": "class A:\n    pass\n"}
MADE = 6
KEY = "5a" * 32
CELLS = 2  # each of one pipeline


@dataclass
class Story:
    """What became of the run."""

    events: list[dict[str, Any]] = field(default_factory=list)
    tokens: dict[str, list[int]] = field(default_factory=dict)
    answers: dict[str, list[Any]] = field(default_factory=dict)
    lost: bool = False
    receiver: Receiver = field(default_factory=lambda: Receiver({"theirs": KEY}))


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    where = tmp_path_factory.mktemp("tiny") / "tiny"
    write_tiny(where, steps=0, seed=5)
    return where


@pytest.fixture(scope="module")
def story(folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Story:
    run = LiveRun(folder, tmp_path_factory.mktemp("log"), cells=CELLS)
    outcome = Story()
    try:
        asyncio.run(_happens(run, outcome))
        run.group.stop_at_boundary()
        assert run.group.wait(LIMIT_S)
    finally:
        run.group.stop(0.0)
    outcome.events = run.events
    return outcome


async def _happens(run: LiveRun, outcome: Story) -> None:
    await run.until("both coordinators", lambda: run.coordinator("north") and run.coordinator("south"))
    north, south = await run.gateway("north"), await run.gateway("south")
    for name, prompt in PROMPTS.items():
        await north.ask(name, prompt=prompt, max_tokens=MADE)
        await south.ask(name, prompt=prompt, max_tokens=MADE)
    for name in PROMPTS:
        outcome.tokens[name] = await north.tokens(name)
        assert await south.tokens(name) == outcome.tokens[name]
    await _odd(run, north, outcome)
    await _killed(run, north, outcome)
    for gateway in (north, south):
        await gateway.close()


async def _odd(run: LiveRun, north: Gateway, outcome: Story) -> None:
    await north.ask("chat", turns=(Turn(role="user", content="hi"),), max_tokens=1)
    await north.ask("said-as-ids", prompt=tuple(b"user: hi\nassistant:"), max_tokens=1)
    await north.ask("drawn", prompt="x = ", max_tokens=4, sampling={"temperature": 1.0, "seed": 3})
    await north.ask("drawn-again", prompt="x = ", max_tokens=4, sampling={"temperature": 1.0, "seed": 3})
    await north.ask("handed-over", prompt="abc", max_tokens=1, hand_over=True)
    for name, port in (("sent", outcome.receiver.port), ("sent-to-nobody", free_port())):
        to = {"host": "127.0.0.1", "port": port, "request": "theirs", "key": KEY}
        await north.ask(name, prompt=PROMPTS["long"], max_tokens=1, hand_over=True, decode=to)
    await north.ask("beyond-the-tenancy", prompt="x" * 20, longest_prompt=19)
    await north.ask("beyond-the-context", prompt="x" * (CONTEXT - 8), max_tokens=9, longest_prompt=10_000)
    await north.ask("beyond-the-vocabulary", prompt=(1, 256))
    await north.ask("at-once", prompt="x" * 200, ttft_objective_ms=5.0)
    await north.ask("withdrawn", may_fail=True, prompt="x" * 250, max_tokens=1500)
    await run.until("acceptance", lambda: "withdrawn" in north.answers)
    await north.withdraw("withdrawn")
    for name in ("chat", "said-as-ids", "drawn", "drawn-again"):
        outcome.tokens[name] = await north.tokens(name)
    for name in (
        "handed-over",
        "sent",
        "sent-to-nobody",
        "beyond-the-tenancy",
        "beyond-the-context",
        "beyond-the-vocabulary",
    ):
        outcome.answers[name] = await north.ended(name)
    for name in ("at-once", "withdrawn"):
        outcome.answers[name] = await north.ended(name)


async def _killed(run: LiveRun, north: Gateway, outcome: Story) -> None:
    await north.ask("lost", may_fail=True, prompt="y" * 200, max_tokens=1500)
    await run.until("acceptance", lambda: "lost" in north.answers)
    process = run.coordinator_process("north")
    process.kill()
    async with asyncio.timeout(LIMIT_S):
        await north.lost.wait()
    outcome.lost = True
    await run.until("the closing", lambda: len(run.coordinator_states("north")) > 1)
    await run.until("another coordinator", lambda: run.coordinator("north"))
    again = await run.gateway("north")
    await again.ask("after", prompt=PROMPTS["short"], max_tokens=MADE)
    outcome.tokens["after"] = await again.tokens("after")
    await again.close()


def prefilled(events: list[dict[str, Any]]) -> dict[int, int]:
    """Chunks by rank. Spans of a GPU never overlap: a chunk that runs over is waited for by the op, which
    begins later."""
    by_rank: dict[int, list[dict[str, Any]]] = {}
    for event in events:
        if event["kind"] == "spans":
            by_rank.setdefault(event["rank"], []).extend(s for s in event["spans"] if s["track"] == "gpu")
    for spans in by_rank.values():
        spans.sort(key=lambda span: span["start"])
        for one, other in pairwise(spans):
            if "prefill" in (one["op"], other["op"]):
                assert one["end"] <= other["start"] + 2e-6, (one, other)
    return {rank: sum(span["op"] == "prefill" for span in spans) for rank, spans in by_rank.items()}


def theirs(folder: Path, prompt: str) -> list[int]:
    """What transformers makes of it in one process, the whole prompt at once."""
    from transformers import LlamaForCausalLM  # here: its import takes seconds of every test process

    model = LlamaForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
    ids = torch.tensor([list(prompt.encode())])
    output = model.generate(ids, attention_mask=torch.ones_like(ids), max_new_tokens=MADE, do_sample=False)
    return output[0, ids.shape[1] :].tolist()  # type: ignore[no-any-return]


def test_tokens_are_those_of_the_whole_model_in_one_process(folder: Path, story: Story) -> None:
    for name, prompt in PROMPTS.items():
        assert story.tokens[name] == theirs(folder, prompt)
    assert len({tuple(story.tokens[name]) for name in PROMPTS}) > 1, "the prompts make a difference"


def test_a_chat_without_a_template_is_its_plain_form(story: Story) -> None:
    assert story.tokens["chat"] == story.tokens["said-as-ids"]


def test_a_seed_draws_the_same_tokens_again(story: Story) -> None:
    assert story.tokens["drawn"] == story.tokens["drawn-again"]


def test_prefill_runs_only_while_no_training_op_does(story: Story) -> None:
    assert sum(prefilled(story.events).values()) > 2 * len(PROMPTS), "long prompts came in chunks"


def test_losses_are_those_of_a_run_without_prefill(story: Story, tmp_path: Path) -> None:
    result = next(e for e in story.events if e["kind"] == "result")
    steps = 5
    plain = Run(job(micro_batch=1, steps=steps, cells=CELLS), str(tmp_path)).result()
    assert plain["losses"] == pytest.approx(result["losses"][:steps], abs=1e-12)


def test_what_cannot_be_answered_is_refused_with_its_reason(story: Story) -> None:
    reasons = {
        name: messages[-1].reason
        for name, messages in story.answers.items()
        if isinstance(messages[-1], Refused)
    }
    assert reasons == {
        "beyond-the-tenancy": "prompt_too_long",
        "beyond-the-context": "context_length_exceeded",
        "beyond-the-vocabulary": "invalid_prompt",
        "at-once": "ttft",
    }
    assert story.answers["beyond-the-tenancy"][-1].prompt_tokens == 20


def test_a_withdrawn_request_is_cancelled(story: Story) -> None:
    messages = story.answers["withdrawn"]
    assert isinstance(messages[0], Accepted)
    assert isinstance(messages[-1], Failed)
    assert messages[-1].reason == "cancelled"


def test_a_cache_that_is_handed_over_says_where_it_lies(story: Story) -> None:
    accepted, token, done = story.answers["handed-over"]
    assert isinstance(accepted, Accepted)
    assert isinstance(token, Token)
    assert isinstance(done, Done)
    assert done.kv_transfer_params is not None
    assert (done.kv_transfer_params.remote_tokens, done.kv_transfer_params.layers) == (3, 2)


def test_a_cache_that_is_sent_is_transformers_own_where_it_was_to_go(folder: Path, story: Story) -> None:
    from transformers import LlamaForCausalLM

    accepted, token, done = story.answers["sent"]
    assert isinstance(accepted, Accepted)
    assert isinstance(token, Token)
    assert isinstance(done, Done)
    assert done.handed_over is not None
    assert (done.handed_over.next_token, done.handed_over.stages) == (token.token, 1)
    model = LlamaForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
    with torch.inference_mode():
        whole = model(torch.tensor([list(PROMPTS["long"].encode())]), use_cache=True)
    layers = story.receiver.layers("theirs")
    for (keys, values), layer in zip(layers, whole.past_key_values.layers, strict=True):
        torch.testing.assert_close(keys, layer.keys[0], rtol=1e-4, atol=1e-4)
        torch.testing.assert_close(values, layer.values[0], rtol=1e-4, atol=1e-4)


def test_a_receiver_that_is_away_fails_its_request_alone(story: Story) -> None:
    failed = story.answers["sent-to-nobody"][-1]
    assert isinstance(failed, Failed)
    assert failed.reason == "decode"
    assert "Connection refused" in failed.message
    assert not any(isinstance(message, Token) for message in story.answers["sent-to-nobody"])


def test_a_killed_coordinator_is_back_and_the_run_goes_on(story: Story) -> None:
    assert story.lost, "gateways know by the connection that what was accepted is lost"
    assert story.tokens["after"] == story.tokens["short"]
    states = [
        (e["state"], e["detail"])
        for e in story.events
        if e["kind"] == "prefill_coordinator" and e["dc"] == "north"
    ]
    assert [state for state, _ in states] == ["open", "closed", "open", "closed"]
    assert "SIGKILL" in states[1][1]


def test_counts_add_up(story: Story) -> None:
    events = [e for e in story.events if e["kind"] == "prefill" and e["dc"] == "south"]
    delivered = sum(e["delivered"] for e in events)
    assert delivered == len(PROMPTS)
    assert sum(e["accepted"] for e in events) == delivered + sum(sum(e["failed"].values()) for e in events)
    assert sum(e["prefill_ms"] for e in events) > 0
    assert {e["gpus"] for e in events} == {2}


@pytest.mark.long
def test_two_nodes_have_a_coordinator_each_on_ports_of_their_ranges(folder: Path, tmp_path: Path) -> None:
    """With two GPUs a prompt, whose hidden states go over ports of the range, too."""
    port = free_port()
    of = live_job(folder, cells=CELLS, prefill=prefill(folder, pp_degree=2))
    spec = dataclasses.replace(
        single_machine(of, run="live", log_dir=""), rendezvous_port=port, secret="s" * 32
    )
    run = LiveRun.__new__(LiveRun)
    run.spec, run.events = spec, []
    shares = {"north": ((0, 1, 3, 4), (42_000, 42_039)), "south": ((2, 5), (42_040, 42_079))}
    groups = {
        name: RankGroup(
            dataclasses.replace(spec, local=local, ports=ports, log_dir=str(tmp_path / name)),
            as_dicts(run.events),
        )
        for name, (local, ports) in shares.items()
    }
    try:
        for group in groups.values():
            group.start()
        asyncio.run(_both_answer(run, theirs(folder, PROMPTS["long"])))
    finally:
        for group in groups.values():
            group.stop(0.0)
    for name, (_, (first, last)) in shares.items():
        opened = next(e for e in run.of_kind("prefill_coordinator") if e["dc"] == name)
        assert first <= opened["port"] <= last


async def _both_answer(run: LiveRun, expected: list[int]) -> None:
    await run.until("both coordinators", lambda: run.coordinator("north") and run.coordinator("south"))
    for dc in ("north", "south"):
        gateway = await run.gateway(dc)
        await gateway.ask("a", prompt=PROMPTS["long"], max_tokens=MADE)
        assert await gateway.tokens("a") == expected
        await gateway.close()
