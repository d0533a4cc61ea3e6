"""Whatever the schedule, a pipelined iteration computes what one plain pass over the whole batch computes."""

from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.utils._python_dispatch import TorchDispatchMode

from engine.job.job import TrainJob
from engine.job.planned import schedule_of
from engine.nn.device import CpuDevice, Moment, Tell
from engine.schedule.registry import SEARCHING
from engine.schedule.scenario import POLICIES
from tests.runtime.cells import Answer, Cell, far, whole
from tests.runtime.jobs import job

EXACT = {"fp32": 1e-5, "fp64": 1e-9}
LLAMA = {"family": "llama", "layers": 6, "hidden": 32, "heads": 4, "kv_heads": 2, "seq": 16}
GPT = {"layers": 6, "hidden": 32, "heads": 2, "seq": 16}


def of(**changes: Any) -> TrainJob:
    """A job of three stages in two DCs whose model has a layer for each of two chunks."""
    return job(**{"model": GPT, "microbatches": 4, "dtype": "fp64", "time_limit_s": 2, **changes})


def check(train_job: TrainJob) -> Cell:
    cell = Cell(train_job)
    answer = cell.run()
    assert far(answer, whole(train_job)) < EXACT[train_job.device.dtype]
    for (pipeline, stage), notes in cell.notes.items():
        assert notes.ops == [str(op) for op in cell.schedule.order(pipeline, stage)]
    return cell


SEARCHES = [pytest.param(policy, marks=pytest.mark.long) for policy in SEARCHING]
OTHERS = [policy for policy in POLICIES if policy not in SEARCHING]


@pytest.mark.parametrize("policy", [*OTHERS, *SEARCHES])
def test_every_policy_computes_the_gradients_of_one_pass(policy: str) -> None:
    check(of(policy=policy))
    check(of(policy=policy, recompute=False, model=LLAMA))


@pytest.mark.parametrize(
    ("policy", "layers"),
    [("1f1b", [3, 1, 2]), ("atlas", [1, 1, 4]), ("zb-v", [2, 4, 3]), ("interleaved", [4, 2, 3])],
)
@pytest.mark.parametrize("dtype", ["fp32", "bf16"])
def test_losses_and_gradients_are_to_the_bit_those_of_even_layers(
    policy: str, layers: list[int], dtype: str
) -> None:
    train_job = {"policy": policy, "dtype": dtype, "model": {**LLAMA, "layers": sum(layers)}}
    even, by_hand = Cell(of(**train_job)), Cell(of(**train_job, layers_per_stage=layers))
    blocks = {stage: by_hand.stages[0, stage].numbers for stage in range(3)}
    assert [len(set(blocks[stage]) - {0, sum(layers) + 1}) for stage in range(3)] == layers
    one, two = even.run(), by_hand.run()
    assert one.loss == two.loss
    assert one.gradients.keys() == two.gradients.keys()
    for number, gradients in one.gradients.items():
        assert all(map(torch.equal, gradients, two.gradients[number])), number


@pytest.mark.parametrize("policy", ["crosspipe-wave", "zb-v", "interleaved", "atlas"])
def test_in_single_precision(policy: str) -> None:
    check(of(policy=policy, dtype="fp32", pipelines=1, sharing="temporal"))


SPLIT = ("zb-h1", "zb-v", "crosspipe-ud")


class Products(TorchDispatchMode):
    """Counts matrix products on this thread."""

    def __init__(self) -> None:
        super().__init__()
        self.count = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.count += func.overloadpacket in (torch.ops.aten.mm, torch.ops.aten.addmm)
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize("policy", SPLIT)
def test_split_backward_computes_nothing_twice(policy: str) -> None:
    one = {"stages": 1, "pipelines": 1, "dc_of_stage": [0], "recompute": False, "dtype": "fp32"}
    products = {}
    for name in (policy, "gpipe"):
        cell = Cell(of(**one, policy=name))
        with Products() as counted:
            cell.executors[0, 0].run(0)
        products[name] = counted.count
        assert ("W0" in cell.notes[0, 0].ops) == (name == policy)
    # Six blocks of four matrices and the head's: forward once, backward for input and for weight.
    assert products == {policy: 3 * 25 * 4, "gpipe": 3 * 25 * 4}


def test_what_is_held_is_within_the_limit() -> None:
    for policy in ("1f1b", "zb-h1", "crosspipe-wave"):
        cell = check(of(policy=policy, recompute=False, memory_limit=3, microbatches=6))
        for notes in cell.notes.values():
            assert notes.most_held <= 3 * cell.schedule.chunks
            assert not notes.executor._saved
            assert not notes.executor._inputs
            assert not notes.executor._gradients_in


def test_accumulation_is_the_schedule_again_with_other_microbatches() -> None:
    for policy in ("atlas", "crosspipe-loop"):
        cell = check(of(policy=policy, accumulation=2, microbatches=2))
        assert cell.schedule.microbatches == 4
        first = [str(op) for op in schedule_of(of(policy=policy, microbatches=2)).order(1, 2)]
        assert cell.notes[1, 2].ops[: len(first)] == first
    assert whole(of(accumulation=2, microbatches=2)).loss == whole(of(microbatches=4)).loss


def test_a_schedule_given_as_text_runs() -> None:
    train_job = of(policy="crosspipe-wave", pipelines=1)
    text = str(schedule_of(train_job))
    given_text = of(policy="gpipe", pipelines=1, schedule=text)
    assert str(check(given_text).schedule) == text


def test_the_same_job_twice_gives_the_same_bits() -> None:
    one, two = Cell(of(policy="zb-v")).run(), Cell(of(policy="zb-v")).run()
    assert one.loss == two.loss
    for number, gradients in one.gradients.items():
        assert all(map(torch.equal, gradients, two.gradients[number]))


def test_half_precision_is_that_of_one_pass() -> None:
    # Rows are computed alike whatever the batch, and gradients add up in fp32: what is left is rounding.
    for model in (GPT, LLAMA):
        train_job = of(policy="crosspipe-wave", dtype="bf16", model=model)
        cell = Cell(train_job)
        assert far(cell.run(), whole(train_job)) < 0.02
        assert {p.grad.dtype for s in cell.stages.values() for p in s.parameters()} == {torch.float32}


cells = st.fixed_dictionaries(
    {
        "policy": st.sampled_from(OTHERS),
        "stages": st.integers(1, 4),
        "pipelines": st.integers(1, 3),
        "microbatches": st.integers(1, 5),
        "recompute": st.booleans(),
        "sharing": st.sampled_from(["spatial", "temporal"]),
        "model": st.sampled_from([{**GPT, "layers": 8, "hidden": 8}, {**LLAMA, "layers": 9, "hidden": 16}]),
    }
)


def any_cell(request: dict[str, Any], draw_dc: int) -> TrainJob:
    stages = request["stages"]
    return of(
        **request,
        dtype="fp64",
        dc_of_stage=[int(s >= draw_dc) for s in range(stages)],
        datacenters=[{"name": "north", "gpus": 12}, {"name": "south", "gpus": 12}],
    )


@settings(max_examples=8, deadline=None, derandomize=True)
@given(request=cells, draw_dc=st.integers(0, 4))
def test_any_cell(request: dict[str, Any], draw_dc: int) -> None:
    check_if_divisible(any_cell(request, draw_dc))


@pytest.mark.long
@settings(max_examples=100, deadline=None)
@given(request=cells, draw_dc=st.integers(0, 4))
def test_any_cell_many(request: dict[str, Any], draw_dc: int) -> None:
    check_if_divisible(any_cell(request, draw_dc))


def check_if_divisible(train_job: TrainJob) -> None:
    if (
        train_job.pipeline_strategy.policy == "interleaved"
        and train_job.cell.microbatches % train_job.cell.stages
    ):
        return  # no schedule of that policy
    check(train_job)


class Deferring(CpuDevice):
    """Tells when ops were only once it is asked to wait for them, as a GPU does."""

    def __init__(self, log: list[str]) -> None:
        self._log, self._untold = log, []

    def tell(self, start: Moment, end: Moment, to: Tell) -> None:
        self._log.append("queued")
        self._untold.append((start, end, to))

    def settle(self) -> None:
        for start, end, to in self._untold:
            self._log.append("done")
            to(start, end)
        self._untold.clear()


class LoggingBorrower:
    """Stands in for the prefill worker: says when it gets the GPU."""

    def __init__(self, log: list[str]) -> None:
        self._log = log

    def begin(self, iteration: int) -> None: ...

    def take(self) -> float:
        self._log.append("taken")
        return float("-inf")

    def give(self, start: float, end: float) -> None:
        assert start <= end
        self._log.append("given")


def test_prompts_get_a_gpu_when_the_op_is_done_and_not_when_it_is_queued() -> None:
    cell = Cell(of(stages=1, pipelines=1, dc_of_stage=[0], policy="1f1b", microbatches=2))
    executor, log = cell.executors[0, 0], []
    executor._device, executor._prefill_worker = Deferring(log), LoggingBorrower(log)  # type: ignore[assignment]
    executor.run(0)
    assert log == ["taken", "queued", "done", "given"] * len(cell.schedule.order(0, 0))
    assert far(Answer(loss=executor.loss, gradients=cell.gradients(), notes={}), whole(cell.job)) < 1e-9
