"""ZeRO-1: the replicas of a stage share the optimizer's state, and train what they train without it."""

import json
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from click.testing import CliRunner
from hypothesis import given
from hypothesis import strategies as st
from torch import nn
from torch.distributed import HashStore, PrefixStore, ProcessGroupGloo

from engine.commands.train import command as train
from engine.documents import load_document
from engine.errors import InputError
from engine.inputs import parse
from engine.job.job import TrainJob
from engine.job.launch import single_machine
from engine.job.memory import stage_memory
from engine.job.recovery.layout import roles
from engine.job.recovery.plan import Saved, restart_point
from engine.nn.device import CpuDevice
from engine.nn.model import Stage
from engine.train import zero
from engine.train.checkpoint.layers import copy_of
from engine.train.gradients import Gradients
from engine.train.staging import StagedSums
from engine.train.zero import ShardedAdamW, ShardNorm, ShardSums, Sharing, shards
from tests.runtime import swap_jobs
from tests.runtime.decoders import model_of
from tests.runtime.jobs import Run, job
from tests.runtime.machines import Machines
from tests.runtime.test_training_equals_single import reference

NEAR = {"pipelines": 2, "recompute": False, "policy": "1f1b"}
BUCKET = 40 * 8  # bytes: three buckets of fp64, the last one not full


@given(numbers=st.integers(1, 300), members=st.integers(1, 9), bucket=st.integers(1, 90))
def test_every_number_has_one_owner_and_each_bucket_is_cut_evenly(
    numbers: int, members: int, bucket: int
) -> None:
    cut = shards(numbers, members, bucket)
    assert [n for shard in cut for n in range(shard.start, shard.stop)] == list(range(numbers))
    owned = [sum(s.stop - s.start for s in cut if s.owner == member) for member in range(members)]
    assert max(owned) - min(owned) <= -(-numbers // bucket)


def each_of(members: int, of_member: Callable[[Any, int], Any]) -> list[Any]:
    """What `of_member` returns for each member of a gloo group, all at once in this process."""
    store, answers = HashStore(), {}

    def run(member: int) -> None:
        options = ProcessGroupGloo._Options()  # type: ignore[attr-defined]
        options._devices = [ProcessGroupGloo.create_device(hostname="127.0.0.1")]
        options._threads = 1
        answers[member] = of_member(
            ProcessGroupGloo(PrefixStore("zero", store), member, members, options), member
        )

    threads = [threading.Thread(target=run, args=(member,), daemon=True) for member in range(members)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    return [answers[member] for member in range(members)]


def model() -> nn.Sequential:
    generator = torch.Generator().manual_seed(3)
    layers = nn.Sequential(nn.Linear(5, 7), nn.Linear(7, 6)).double()
    with torch.no_grad():
        for parameter in layers.parameters():
            parameter.normal_(generator=generator)
    return layers


def batch(member: int, step: int) -> torch.Tensor:
    return torch.randn(4, 5, generator=torch.Generator().manual_seed(100 * member + step)).double()


def groups_of(layers: nn.Module) -> list[dict[str, Any]]:
    """No decay of biases, as an optimizer of groups has it."""
    cut = {matrix: [p for p in layers.parameters() if (p.dim() == 2) is matrix] for matrix in (True, False)}
    return [{"params": cut[True], "weight_decay": 0.1}, {"params": cut[False], "weight_decay": 0.0}]


@pytest.mark.parametrize(("members", "staged"), [(2, False), (3, False), (2, True)])
def test_shared_states_step_as_whole_ones_do(
    members: int, staged: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Weights, norms and moments after three steps, against AdamW of torch on the gradients' sum.

    staged : through host memory, as on GPUs without NCCL.
    """
    monkeypatch.setattr(zero, "BUCKET_BYTES", BUCKET)
    monkeypatch.setattr("engine.train.gradients.BUCKET_BYTES", BUCKET)

    def of_member(group: Any, member: int) -> tuple[Any, ...]:
        layers, group = model(), StagedSums(group, CpuDevice()) if staged else group
        sharing = Sharing(group, member, members, list(layers.parameters())[::-1])
        gradients = Gradients(
            [layers], group=ShardSums(sharing), replica=member, replicas=members, tp=ShardNorm(sharing)
        )
        optimizer = ShardedAdamW(torch.optim.AdamW(groups_of(layers), lr=0.05), sharing)
        norms = []
        for step in range(3):
            gradients.clear()
            gradients.finishing(0)
            layers(batch(member, step)).square().sum().backward()
            gradients.finished(0)
            gradients.all_reduce(1.0, unix=lambda t: t)
            norms.append(gradients.square_sum())
            gradients.scale(0.5)
            optimizer.step()
        held = sum(state[m].numel() for state in optimizer.state.values() for m in zero.MOMENTS)
        return layers.state_dict(), norms, copy_of(layers, optimizer), held

    whole = model()
    plain = torch.optim.AdamW(groups_of(whole), lr=0.05)
    norms = []
    for step in range(3):
        plain.zero_grad()
        sum(whole(batch(member, step)).square().sum() for member in range(members)).backward()  # type: ignore[union-attr]
        norms.append(sum(float(p.grad.square().sum()) for p in whole.parameters()))  # type: ignore[union-attr]
        for parameter in whole.parameters():
            parameter.grad.mul_(0.5)  # type: ignore[union-attr]
        plain.step()
    parts = each_of(members, of_member)
    expected = copy_of(whole, plain)
    numbers = sum(parameter.numel() for parameter in whole.parameters())
    for weights, squares, copies, held in parts:
        assert squares == pytest.approx(norms, rel=1e-12)
        for name, weight in whole.state_dict().items():
            torch.testing.assert_close(weights[name], weight, rtol=1e-12, atol=1e-13)
            assert torch.equal(weights[name], parts[0][0][name])  # replicas do not drift apart
        assert copies.keys() == expected.keys()
        for name, tensor in expected.items():
            torch.testing.assert_close(copies[name], tensor, rtol=1e-12, atol=1e-13)
        assert held == pytest.approx(2 * numbers / members, abs=6)  # two for each of three buckets
    assert sum(held for *_, held in parts) == 2 * numbers


def test_two_replicas_train_to_the_same_bits_and_resume_on_other_layouts(tmp_path: Path) -> None:
    """A checkpoint of shared states is that of whole ones; each resumes with the other, on other stages."""
    of = {**NEAR, "dtype": "fp64"}
    plain, sharing = (
        run(tmp_path, f"zero {on}", **of, zero=on, checkpoint={"dir": str(tmp_path / str(on)), "every": 2})
        for on in (0, 1)
    )
    assert sharing["params_sha256"] == plain["params_sha256"]
    assert sharing["losses"] == plain["losses"]
    assert sharing["grad_norms"] == pytest.approx(plain["grad_norms"], rel=1e-12)  # shards add their squares
    whole, shared = (next((tmp_path / on).glob("step-000000002*")) for on in ("0", "1"))
    layers = [path.name for path in whole.glob("layer-*")]
    assert len(layers) == 5
    for name in layers:
        assert (whole / name).read_bytes() == (shared / name).read_bytes()
    other = {"stages": 2, "dc_of_stage": [0, 0], "datacenters": [{"name": "north", "gpus": 6}], "links": []}
    for on, folder in ((0, shared), (1, whole)):
        cut = {**of, **other, "pipelines": 3, "microbatches": 2, "zero": on, "resume": str(folder)}
        result = run(tmp_path, f"on {on}", **cut)
        assert result["losses"] == pytest.approx(plain["losses"][2:], rel=1e-12)
        assert result["grad_norms"] == pytest.approx(plain["grad_norms"][2:], rel=1e-12)


def test_the_example_trains_as_one_process(tmp_path: Path) -> None:
    example = Path(__file__).parents[2] / "examples/zero.yaml"
    answer = CliRunner().invoke(train, [str(example), "--json"], standalone_mode=False)
    assert answer.return_value == 0, answer.output
    losses, norms, _ = reference(parse(TrainJob, load_document(example)))
    result = json.loads(answer.stdout)
    assert result["losses"] == pytest.approx(losses, rel=1e-5)
    assert result["grad_norms"] == pytest.approx(norms, rel=1e-5)


def run(folder: Path, name: str, **changes: Any) -> dict[str, Any]:
    return Run(job(**changes), str(folder / name)).result()


THREE = {
    "stages": 1,
    "dc_of_stage": None,
    "pipelines": 3,
    "microbatches": 2,
    "datacenters": [{"name": "north", "gpus": 2}, {"name": "south", "gpus": 1}],
    "devices": {"pipelines": [[0], [1], [2]]},
}
CHUNKS = {
    **{"policy": "zb-v", "stages": 2, "dc_of_stage": [0, 0], "pipelines": 2, "dtype": "bf16"},
    **{"datacenters": [{"name": "north", "gpus": 4}], "links": [], "accumulation": 2},
    "model": {"family": "llama", "layers": 4, "hidden": 32, "heads": 4, "kv_heads": 2, "seq": 16},
}
TIED = {
    "stages": 2,
    "dc_of_stage": [0, 1],
    "model": {**model_of("qwen2", num_hidden_layers=2), "seq": 16},
}


@pytest.mark.parametrize(
    "changes",
    [THREE, pytest.param(CHUNKS, marks=pytest.mark.long), pytest.param(TIED, marks=pytest.mark.long)],
    ids=["two data centres", "chunks in bf16", "tied"],
)
def test_not_a_bit_of_a_weight_or_a_moment_differs(changes: dict[str, Any], tmp_path: Path) -> None:
    """Replicas in two data centres, of which two share a state; two chunks a stage, with W apart; a matrix at
    both ends of the model.
    """
    saves = {"dir": str(tmp_path / "saved"), "every": 3}
    plain, sharing = (
        run(tmp_path, f"{on}", **{**NEAR, **changes}, zero=on, checkpoint=saves) for on in (0, 1)
    )
    for name in ("params_sha256", "losses"):
        assert sharing[name] == plain[name]
    assert sharing["grad_norms"] == pytest.approx(plain["grad_norms"], rel=1e-6)
    one, other = (sorted(folder.glob("layer-*")) for folder in (tmp_path / "saved").glob("step-*"))
    assert len(one) == len(other) >= 4
    assert all(a.read_bytes() == b.read_bytes() for a, b in zip(one, other, strict=True))


@pytest.mark.long
def test_a_killed_rank_goes_on_with_its_shards(tmp_path: Path) -> None:
    of = {"dtype": "fp64", "steps": 12, "zero": 1}
    undisturbed = run(tmp_path, "undisturbed", **of)
    with Machines(job(**of, recovery={}), tmp_path, [range(6)]) as machines:
        machines.at_step(3)
        machines.kill_rank(4)
        result = machines.result()
    assert [row["from"] for row in result["recoveries"]] == ["memory"]
    for name in ("params_sha256", "losses", "grad_norms"):
        assert result[name] == undisturbed[name]


def test_a_lost_machine_takes_its_shards_with_it() -> None:
    """No replica has them, so that the run goes back to its checkpoint; without ZeRO-1 a replica gives."""
    held = {rank: (5, 6) for rank in range(6) if rank not in (3, 4)}
    saved = Saved(step=4, where="/saved/4")
    points = [
        restart_point(single_machine(job(recovery={}, zero=on), run="x", log_dir=""), held, saved)
        for on in (0, 1)
    ]
    assert [(point.source, point.step) for point in points] == [("peer", 6), ("checkpoint", 4)]
    spec = single_machine(job(zero=1), run="x", log_dir="")
    assert restart_point(spec, dict.fromkeys(range(6), (5, 6)), saved).source == "memory"
    assert roles(spec) == {r: (r % 3, 3, r // 3, 2) for r in range(6)}


@pytest.mark.parametrize("pipelines", [1, 2, 3])
def test_memory_is_counted_as_it_is_held(pipelines: int) -> None:
    """Of every parameter of a stage the two moments, in fp32, by the number of replicas."""
    of = {"datacenters": [{"name": "north", "gpus": 6}, {"name": "south", "gpus": 3}], "pipelines": pipelines}
    whole, sharing = (stage_memory(job(**of, zero=on)) for on in (0, 1))
    for stage, (one, other) in enumerate(zip(whole, sharing, strict=True)):
        numbers = sum(p.numel() for p in Stage(job(**of), stage).parameters())
        saved = 2 * 4 * numbers * (1 - 1 / pipelines)
        assert one.state_bytes - other.state_bytes == pytest.approx(saved, abs=1)
        assert one.activation_bytes == other.activation_bytes
    placed = {**THREE, "policy": "1f1b"}  # the one in the south shares with nobody
    assert stage_memory(job(**placed, zero=1)) == stage_memory(job(**placed))


@pytest.mark.parametrize(
    ("job_of", "changes", "why"),
    [
        (job, {"zero": 2}, "zero: 2"),
        (job, {"zero": 1, "tp": 2, "stages": 1, "dc_of_stage": None}, "zero: 1: must be 0 with tp = 2"),
        (swap_jobs.job, {"zero": 1}, "zero: 1: must be left out or 0"),
    ],
    ids=["stage 2", "tp", "swap"],
)
def test_what_shares_nothing_is_refused_by_name(
    job_of: Callable[..., TrainJob], changes: dict[str, Any], why: str
) -> None:
    with pytest.raises(InputError) as error:
        job_of(**changes)
    assert why in str(error.value)
