"""A training run whose four cells hold a stage of the served model each."""

import asyncio
from pathlib import Path
from typing import Any

import pytest
import torch

from engine.control.handshake import Identity
from engine.prefill.messages import Done, Failed
from engine.serve.decode import DecodeWorker
from tests.runtime.prefill.checkpoints import TINY
from tests.runtime.prefill.live import LiveRun, prefill
from tests.runtime.prefill.test_live import MADE, PROMPTS, prefilled, theirs
from tests.waiting import LIMIT_S

DEGREE = 4
STAGES = 2  # of training, one in each data centre
pytestmark = pytest.mark.long


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A Llama of four layers over bytes."""
    where = tmp_path_factory.mktemp("four") / "four"
    torch.manual_seed(5)
    shape = {**TINY, "vocab_size": 256, "max_position_embeddings": 2048}
    from transformers import LlamaConfig, LlamaForCausalLM

    LlamaForCausalLM(LlamaConfig(**shape, initializer_range=0.25)).save_pretrained(where)
    return where


def test_four_gpus_answer_as_the_whole_model_does(folder: Path, tmp_path: Path) -> None:
    expected = {name: theirs(folder, prompt) for name, prompt in PROMPTS.items()}
    run = LiveRun(
        folder,
        tmp_path,
        cells=DEGREE,
        pipelines=DEGREE,
        stages=STAGES,
        dc_of_stage=[0, 1],
        datacenters=[{"name": "north", "gpus": DEGREE}, {"name": "south", "gpus": DEGREE}],
        # Bubbles so long that a busy machine has some left.
        links=[{"between": ["north", "south"], "latency_ms": 100, "bandwidth_gbps": 1}],
        model={"layers": STAGES, "hidden": 32, "heads": 2, "seq": 16},
        prefill=prefill(folder, pp_degree=DEGREE),
    )
    try:
        asyncio.run(_happens(run, folder, expected))
        run.group.stop_at_boundary()
        assert run.group.wait(LIMIT_S)
    finally:
        run.group.stop(0.0)
    assert any(event["kind"] == "result" for event in run.events), "the run went on to its end"
    ran = prefilled(run.events)
    assert all(ran[pipeline * STAGES] > len(PROMPTS) for pipeline in range(DEGREE)), "on every stage"


async def _happens(run: LiveRun, folder: Path, expected: dict[str, list[int]]) -> None:
    await run.until("the coordinator", lambda: run.coordinator("north"))
    north = await run.gateway("north")
    await north.ask("withdrawn", may_fail=True, prompt="x" * 250, max_tokens=1500)
    await run.until("acceptance", lambda: "withdrawn" in north.answers)
    await north.withdraw("withdrawn")
    for name, prompt in PROMPTS.items():
        await north.ask(name, prompt=prompt, max_tokens=MADE)
    await north.ask("first", prompt=PROMPTS["long"], max_tokens=1)
    assert {name: await north.tokens(name) for name in PROMPTS} == expected
    assert await north.tokens("first") == expected["long"][:1]
    assert isinstance((await north.ended("withdrawn"))[-1], Failed)
    await north.ask("handed-over", prompt=PROMPTS["long"], max_tokens=1, hand_over=True)
    messages = await north.ended("handed-over")
    assert await asyncio.to_thread(_decoded, run, folder, messages) == expected["long"]
    await north.ask("lost", may_fail=True, prompt="y" * 200, max_tokens=1500)
    await run.until("acceptance", lambda: "lost" in north.answers)
    run.coordinator_process("north").kill()
    await run.until("the closing", lambda: len(run.coordinator_states("north")) > 1)
    await run.until("another coordinator", lambda: run.coordinator("north"))
    again = await run.gateway("north")
    await again.ask("after", prompt=PROMPTS["long"], max_tokens=MADE)
    assert await again.tokens("after") == expected["long"]
    for gateway in (north, again):
        await gateway.close()


def _decoded(run: LiveRun, folder: Path, message: list[Any]) -> list[int]:
    """What a decoder elsewhere makes of the caches of all stages."""
    done = message[-1]
    assert isinstance(done, Done)
    params = done.kv_transfer_params
    assert params is not None
    assert [(stage.rank, stage.first_layer) for stage in params.remote_stages] == [
        (pipeline * STAGES, pipeline) for pipeline in range(DEGREE)
    ]
    me = Identity(rank=3_000_000, run="live", generation=1, secret=run.spec.secret.encode())
    worker = DecodeWorker(folder, me)
    first = next(answer.token for answer in message if answer.kind == "token")
    return [first, *worker.decode(worker.fetch(params), first, max_new_tokens=MADE - 1)]
