"""What a swap job's document says, what it refuses by name, and the plan that follows from it."""

from typing import Any

import numpy as np
import pytest
import torch
from torch.autograd.graph import saved_tensors_hooks

from engine.errors import InputError
from engine.inputs import parse
from engine.job.job import TrainJob
from engine.job.launch import LaunchSpec, single_machine
from engine.job.sections.device import BYTES_OF_PARAMETER
from engine.job.swap.planned import layers_of_job, planned
from engine.nn.model import Chunk, loss_of
from engine.plan.swap.profile import Rates, layers_of
from engine.train.corpus import corpus_of
from tests.runtime.swap_jobs import EMULATED, GPU, document, job
from webapp.planning.document import pinned_document

REFUSED: list[tuple[dict[str, Any], str]] = [
    ({"swap": None}, "swap.*required"),
    ({"swap": {}}, "swap.gpu.*required"),
    ({"swap": {"gpu": {"host_to_device_gb_s": 1}}}, "swap.gpu.memory_bytes.*required"),
    ({"swap": {"gpu": {**GPU, "tflops": 3}}}, "swap.gpu.tflops.*times_ms"),
    ({"swap": {"gpu": GPU, "gradient": "host"}}, "did you mean 'gradients'"),
    ({"swap": {"gpu": {**GPU, "memory_bytes": 100_000}}}, "strategy.gpu.memory_bytes.*infeasible: layer 1"),
    ({"stages": 2}, "stages.*whole model"),
    ({"policy": "atlas"}, "policy.*left out"),
    ({"dc_of_stage": [0]}, "dc_of_stage.*devices"),
    ({"chunks": 2}, "chunks.*left out"),
    ({"sharing": "temporal"}, "sharing.*left out"),
    ({"contention": "fifo"}, "contention.*left out"),
    ({"recompute_rule": "jit"}, "recompute_rule.*left out"),
    ({"traversal": "loop"}, "traversal.*left out"),
    ({"memory_limit": 3}, "memory_limit.*swap.gpu.memory_bytes"),
    ({"full_limit": 3}, "full_limit.*swap.gpu.memory_bytes"),
    ({"schedule": "microbatches 3"}, "schedule.*left out"),
    ({"time_limit_s": 5}, "time_limit_s.*left out"),
    ({"activation_bytes": 10**6, **EMULATED}, "activation_bytes.*left out"),
    ({"validation": {"every": 2}}, "validation.*not available"),
    ({"recompute": False}, "recompute.*must be true"),
    ({"pipelines": 6}, "pipelines.*have 5"),
    ({"devices": {"pipelines": [[0], [1], [7]]}}, r"devices.pipelines\[2\]\[0\]"),
    ({"devices": {"pipelines": [[0], [1], [3]]}, "links": []}, "links.*no link joins"),
    ({"swap": {"gpu": GPU, "joins": [{"after_step": 0, "device": 1}]}}, r"swap.joins\[0\].after_step"),
    ({"swap": {"gpu": GPU, "joins": [{"after_step": 1, "device": 5}]}}, r"swap.joins\[0\].device"),
    ({"swap": {"gpu": GPU, "joins": [{"after_step": 1, "device": 4}]}, "links": []}, "links"),
    ({"swap": {"gpu": GPU, "leaves": [{"after_step": 1, "worker": 3}]}}, r"swap.leaves\[0\].worker"),
    (
        {
            "swap": {
                "gpu": GPU,
                "joins": [{"after_step": 3, "device": 4}],
                "leaves": [{"after_step": 2, "worker": 3}],
            }
        },
        r"leaves\[0\].after_step.*more than 3",
    ),
    (
        {"pipelines": 1, "swap": {"gpu": GPU, "leaves": [{"after_step": 1, "worker": 0}]}},
        "leaves no worker to train",
    ),
    ({**EMULATED, "times_ms": {"forward": 5, "recompute": 5, "backward": 9}}, "times_ms.forward.*at least 1"),
    ({"device": "emulated"}, "times_ms.*required"),
]

FAMILIES = [{"family": "gpt"}, {"family": "llama"}, {"family": "llama", "kv_heads": 1}]


@pytest.mark.parametrize(("changes", "message"), REFUSED, ids=lambda v: str(v)[:50])
def test_refused_with_the_field(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        planned(job(**changes))


@pytest.mark.parametrize(
    "changes", [{"joins": [{"after_step": 1, "device": 4}]}, {"leaves": [{"after_step": 1, "worker": 0}]}]
)
def test_the_site_refuses_workers_that_come_and_go_as_planned(changes: dict[str, Any]) -> None:
    pinned_document(document())
    (field,) = changes
    with pytest.raises(InputError, match=rf"strategy.{field}.*meridian train"):
        pinned_document(document(swap={"gpu": GPU, **changes}))


def test_document_survives_a_launch() -> None:
    of = job(swap={"gpu": GPU, "joins": [{"after_step": 1, "device": 4}]})
    assert parse(TrainJob, of.model_dump(mode="json", exclude_none=True)) == of
    spec = single_machine(of, run="7", log_dir="/x")
    assert [(a.rank, a.dc_name) for a in spec.ranks] == [
        (0, "north"),
        (1, "north"),
        (2, "north"),
        (3, "south"),
    ]
    assert LaunchSpec.from_json(spec.to_json()) == spec


@pytest.mark.parametrize("family", FAMILIES, ids=str)
def test_layers_are_those_that_the_runtime_builds(family: dict[str, Any]) -> None:
    of = job(model={"layers": 2, "hidden": 32, "heads": 2, "seq": 16, **family})
    layers = layers_of_job(of)
    width = BYTES_OF_PARAMETER[of.device.dtype]
    for number, layer in enumerate(layers):
        parameters = sum(p.numel() for p in Chunk(of, [number]).parameters())
        assert layer.parameter_bytes == parameters * width, layer.name
        assert layer.load_s == pytest.approx(layer.parameter_bytes / 0.04e9)
    rates = Rates(
        flops_per_s=1,
        host_bytes_per_s=0.04e9,
        dtype_bytes=width,
        recompute=True,
        sequences=of.cell.micro_batch,
        gradients_in_layer=True,
    )
    fine = layers_of(of.model.shape, rates)
    assert sum(layer.memory_bytes for layer in layers) > sum(layer.memory_bytes for layer in fine)


@pytest.mark.parametrize("family", FAMILIES, ids=str)
@pytest.mark.parametrize("dtype", ["fp32", "fp64"])
def test_a_layer_keeps_no_more_than_the_plan_reckons_with(family: dict[str, Any], dtype: str) -> None:
    """What torch really keeps of one microbatch between a layer's forward and backward pass."""
    shape = {"layers": 2, "hidden": 64, "heads": 4, "seq": 64, **family}
    of = job(model=shape, dtype=dtype, swap={"gpu": {"memory_bytes": 1e8}})
    tokens, targets = (torch.from_numpy(a) for a in corpus_of(of).batch(0, 2, np.arange(2)))
    x: torch.Tensor = tokens
    for number, layer in enumerate(layers_of_job(of)):
        chunk = Chunk(of, [number])
        own = {p.untyped_storage().data_ptr() for p in chunk.parameters()}
        bytes_of: dict[int, int] = {}

        def note(
            tensor: torch.Tensor, own: set[int] = own, bytes_of: dict[int, int] = bytes_of
        ) -> torch.Tensor:
            storage = tensor.untyped_storage()
            if storage.data_ptr() not in own:
                bytes_of[storage.data_ptr()] = storage.nbytes()
            return tensor

        given = x if number == 0 else x.detach().requires_grad_()
        with saved_tensors_hooks(note, lambda tensor: tensor):
            x = chunk(given)
            if number == len(layers_of_job(of)) - 1:
                x = loss_of(x, targets)
        working = layer.memory_bytes - 2 * layer.parameter_bytes
        spare = tokens.nbytes + targets.nbytes + of.tensor_bytes
        assert sum(bytes_of.values()) <= working + spare, (layer.name, sum(bytes_of.values()), working)
