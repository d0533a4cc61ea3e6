"""`meridian profile --swap`: layers as measured, which `meridian swap` takes."""

import json
import time
from pathlib import Path

import pytest
import torch
from click.testing import CliRunner
from hypothesis import given
from hypothesis import strategies as st

from engine.commands import profile, swap
from engine.errors import InputError
from engine.inputs import parse
from engine.job.swap.planned import layers_of_job
from engine.nn.model import Chunk
from engine.plan.swap.plan import plan_swap
from engine.plan.swap.request import SwapRequest
from engine.train.swap.profiling import SwapProfileRequest, covered, profile_layers
from tests.runtime.swap_jobs import job

MODEL = {"layers": 2, "hidden": 64, "heads": 4, "seq": 64}
ASKED = {"model": MODEL, "repeats": 2, "micro_batch": 2}


@pytest.mark.parametrize("family", ["gpt", "llama"])
@pytest.mark.parametrize("gradients", ["host", "device"])
def test_layers_are_those_that_a_run_is_planned_with(family: str, gradients: str) -> None:
    """The planner computes what is measured here: bytes are equal, and torch keeps no more than it counts."""
    model = {**MODEL, "family": family}
    measured = profile_layers(parse(SwapProfileRequest, {**ASKED, "model": model, "gradients": gradients}))
    of = job(model=model, dtype="fp32", swap={"gpu": {"memory_bytes": 1e9}, "gradients": gradients})
    computed = layers_of_job(of)
    assert [layer.name for layer in measured.layers] == [layer.name for layer in computed]
    for here, there in zip(measured.layers, computed, strict=True):
        assert here.parameter_bytes == there.parameter_bytes
        assert here.cut_bytes == there.cut_bytes
        copies = 2 if gradients == "host" else 1
        working = here.memory_bytes - copies * here.parameter_bytes
        # what came in and what goes on are buffers of the run: two activations, and tokens for the embedding
        spare = 3 * of.tensor_bytes + 2 * 2 * 64 * 8
        assert 0 < working <= there.memory_bytes - copies * there.parameter_bytes + spare, here.name
        assert min(here.forward_s, here.backward_s, here.load_s) > 0
    total = sum(layer.parameter_bytes for layer in measured.layers)
    assert measured.load_bytes_per_s == pytest.approx(total / sum(la.load_s for la in measured.layers))


def test_gradients_are_those_of_the_ops_that_are_timed(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is timed as a backward pass is one: each parameter of each layer gets a gradient from it."""
    grown: list[bool] = []
    backward = torch.autograd.backward

    def noted(tensors: tuple[torch.Tensor, ...], gradients: tuple[torch.Tensor, ...]) -> None:
        backward(tensors, gradients)
        grown.append(tensors[0].grad_fn is not None)

    monkeypatch.setattr(torch.autograd, "backward", noted)
    profile_layers(parse(SwapProfileRequest, ASKED))
    assert len(grown) == (2 + 2) * (3 + 2 + 1), "of each layer: warm-up, repeats, and one for its gaps"
    assert all(grown)


def test_time_without_a_kernel_is_a_gap(monkeypatch: pytest.MonkeyPatch) -> None:
    """A layer that sleeps 10 ms in each of its two forward passes has gaps of 20 ms at least."""
    forward = Chunk.forward

    def slow(self: Chunk, x: torch.Tensor) -> torch.Tensor:
        time.sleep(0.01)
        return forward(self, x)

    monkeypatch.setattr(Chunk, "forward", slow)
    model = {"layers": 1, "hidden": 8, "heads": 1, "seq": 4}
    for layer in profile_layers(parse(SwapProfileRequest, {"model": model, "repeats": 1})).layers:
        assert 0.6 * 0.02 < layer.gap_s <= layer.forward_s + layer.backward_s, layer.name


@given(st.lists(st.tuples(st.integers(0, 30), st.integers(0, 8)), max_size=8))
def test_overlapping_kernels_count_once(drawn: list[tuple[int, int]]) -> None:
    intervals = [(start, start + length) for start, length in drawn]
    assert covered(intervals) == len({t for start, end in intervals for t in range(start, end)})


def test_gaps_lower_the_utilization_of_a_plan() -> None:
    """Two layers, no stalls: of 2 · (1 + 2) s in ops, gaps of 0.2 and 0.4 s leave 5.4 s of kernels."""
    layer = {"name": "a", "memory_bytes": 1, "forward_s": 1, "backward_s": 2, "load_s": 0.1}
    layers = [{**layer, "gap_s": 0.2}, {**layer, "gap_s": 0.4}]
    document = {"layers": layers, "gpu": {"memory_bytes": 2}, "accumulation": 3}
    answer = plan_swap(parse(SwapRequest, document)).as_dict()
    assert answer["utilization"] == 1
    assert answer["kernel_utilization"] == pytest.approx(5.4 / 6)
    without = plan_swap(parse(SwapRequest, {**document, "layers": [layer, layer]})).as_dict()
    assert "kernel_utilization" not in without
    with pytest.raises(InputError, match=r"layers\[0\].gap_s.*at most forward_s \+ backward_s, 3"):
        parse(SwapRequest, {**document, "layers": [{**layer, "gap_s": 3.5}]})


def test_a_plan_of_the_measured_layers(tmp_path: Path) -> None:
    def run(command: object, document: dict, *flags: str) -> dict:
        done = CliRunner().invoke(
            command, ["-", *flags, "--json"], input=json.dumps(document), catch_exceptions=False
        )
        return json.loads(done.stdout)

    answer = run(profile.command, ASKED, "--swap")
    assert {"device": "cpu", "dtype": "fp32", "micro_batch": 2, "gradients": "host"}.items() <= answer.items()
    file = tmp_path / "layers.json"
    file.write_text(json.dumps(answer))
    memory = max(layer["memory_bytes"] for layer in answer["layers"])
    plan = run(swap.command, {"layers": str(file), "gpu": {"memory_bytes": 3 * memory}})
    parts = plan["sub_models"]
    assert parts[0]["first"] == 0
    assert parts[-1]["last"] == len(answer["layers"]) - 1
    for name in ("memory_bytes", "forward_s", "backward_s", "load_s"):
        assert sum(part[name] for part in parts) == pytest.approx(
            sum(layer[name] for layer in answer["layers"])
        )


def test_the_table_has_a_row_for_each_layer() -> None:
    done = CliRunner().invoke(
        profile.command, ["-", "--swap"], input=json.dumps(ASKED), catch_exceptions=False
    )
    assert "host to device" in done.stdout
    assert all(name in done.stdout for name in ("embedding", "block 0", "block 1", "head", "MB"))


@pytest.mark.parametrize(
    ("changes", "field"),
    [({"stages": 2}, "stages"), ({"recompute": False}, "recompute"), ({"split": True}, "split")],
)
def test_fields_of_stages_are_refused(changes: dict, field: str) -> None:
    with pytest.raises(InputError, match=f"{field}.*layers are measured one by one"):
        parse(SwapProfileRequest, {**ASKED, **changes})


@pytest.mark.parametrize(
    ("profiled", "document", "message"),
    [
        ({"rows": []}, {}, "layers.*must have the field layers"),
        ({"layers": [], "gradients": "device"}, {}, "gradients.*must be device"),
        ({"layers": []}, {"layers": "nowhere.json"}, "nowhere.json"),
    ],
)
def test_a_file_that_does_not_fit_is_refused(
    profiled: dict, document: dict, message: str, tmp_path: Path
) -> None:
    file = tmp_path / "layers.json"
    file.write_text(json.dumps(profiled))
    with pytest.raises(InputError, match=message):
        swap.with_layers({"layers": str(file), **document})
