"""A swap job as the planner sees it: its chain of layers, its sub-models, and what a step should take.

The layers are those that the runtime can cut between (embedding, blocks, head); memory, bytes and FLOPs of
each are the planner's own operators (engine.plan.swap.profile) added up, so a plan here is one of `meridian
swap`. On the emulated device a mini-batch takes `times_ms`, shared out over the layers by FLOPs.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from engine.errors import InputError
from engine.inputs import parse
from engine.job.all_reduce import ALLREDUCE_BYTES_PER_S, ALLREDUCE_FLOOR_S
from engine.job.job import TrainJob
from engine.job.sections.device import BYTES_OF_PARAMETER
from engine.plan.swap.layers import Layer, SubModel
from engine.plan.swap.plan import device_of, plan_swap
from engine.plan.swap.profile import LAYERS_PER_BLOCK, Rates, layers_of
from engine.plan.swap.request import SwapRequest
from engine.plan.swap.result import SwapResult

SHORTEST_OP_MS = 1.0  # of a sub-model on the emulated device: below it the overshoot of sleeping is too large


@dataclass(frozen=True, slots=True, kw_only=True)
class SwapPlan:
    """The plan that the workers of a job follow.

    times_s : of one mini-batch by sub-model and kind of op (F, R, B).
    """

    result: SwapResult
    times_s: tuple[dict[str, float], ...]

    @property
    def subs(self) -> tuple[SubModel, ...]:
        return self.result.subs

    @property
    def round_s(self) -> float:
        """Seconds of one step of the planner: all sub-models forward and backward, C mini-batches each."""
        assert self.result.step is not None
        return self.result.step.step_s

    @property
    def gradients_stay(self) -> bool:
        """Whether gradients are on the device until all steps of a batch are done."""
        return self.result.gradients == "device" or len(self.subs) == 1

    @property
    def gradients_out_s(self) -> float:
        """Seconds in which the gradients that are on the device after the last step leave it."""
        leaving = self.subs if self.gradients_stay else self.subs[:1]
        return sum(sub.parameter_bytes for sub in leaving) / self.result.host_bytes_per_s

    @property
    def update_s(self) -> float:
        """Seconds of transfers that no step hides: the last gradients out, the updated first sub-model in."""
        return self.subs[0].load_s + self.gradients_out_s


def planned(job: TrainJob) -> SwapPlan:
    """The sub-models of a swap job; where loading is not covered they are there too, with a reason.

    Raises
    ------
    InputError
        The model does not fit the device, however it is cut, or its ops are too short to emulate.
    """
    assert job.swap_strategy is not None
    layers = layers_of_job(job)
    request = parse(
        SwapRequest,
        {
            "layers": [_given(layer) for layer in layers],
            "gpu": job.swap_strategy.gpu.model_dump(exclude_none=True),
            "accumulation": job.cell.microbatches,
            "gradients": job.swap_strategy.gradients,
            "spans": False,
        },
        at="strategy",
    )
    result = plan_swap(request)
    if not result.subs:
        field = "strategy.gpu.memory_bytes" if job.swap_strategy.gpu.memory_bytes else "strategy.gpu.name"
        value = job.swap_strategy.gpu.memory_bytes or job.swap_strategy.gpu.name
        raise InputError(field, value, f"infeasible: {result.reason}")
    plan = SwapPlan(result=result, times_s=tuple(_times_s(job, sub) for sub in result.subs))
    _check_emulable(job, plan)
    return plan


def layers_of_job(job: TrainJob) -> tuple[Layer, ...]:
    """Embedding, blocks and head as the planner's layers: bytes, and seconds of one mini-batch."""
    strategy = job.swap_strategy
    assert strategy is not None
    forward_ms, recompute_ms, backward_ms = _whole_ms(job)
    gpu = device_of(strategy.gpu, SwapRequest.model_construct(mfu=None, dtype_bytes=4, layers=[], model=None))
    rates = Rates(
        flops_per_s=1.0,
        host_bytes_per_s=gpu.host_bytes_per_s,
        dtype_bytes=BYTES_OF_PARAMETER[job.device.dtype],
        sequences=job.cell.micro_batch,
        recompute=True,
        gradients_in_layer=strategy.gradients == "host",
    )
    fine = layers_of(job.model.shape, rates)
    blocks = [fine[i : i + LAYERS_PER_BLOCK] for i in range(1, len(fine) - 1, LAYERS_PER_BLOCK)]
    rows = [fine[:1], *blocks, fine[-1:]]
    flops = sum(layer.forward_s for layer in fine)
    return tuple(
        _joined(
            row,
            name=_name(number, len(rows)),
            share=sum(layer.forward_s for layer in row) / flops,
            forward_s=forward_ms / 1e3,
            backward_s=(recompute_ms + backward_ms) / 1e3,
            cut_bytes=job.tensor_bytes if number < len(rows) - 1 else 0,
            unfused_bytes=_unfused_bytes(job, block=len(row) == LAYERS_PER_BLOCK),
        )
        for number, row in enumerate(rows)
    )


def predicted_iteration_s(
    job: TrainJob, plan: SwapPlan, *, allreduce_s: float | None = None, optimizer_s: float = 0.0
) -> float:
    """Seconds of one global batch: its steps, the transfers between two batches, all-reduce, optimizer."""
    if allreduce_s is None:
        n = job.cell.pipelines
        payload = job.model.shape.parameters * BYTES_OF_PARAMETER[job.device.dtype] * 2 * (n - 1) / n
        allreduce_s = ALLREDUCE_FLOOR_S + payload / ALLREDUCE_BYTES_PER_S if n > 1 else 0.0
    return job.cell.accumulation * plan.round_s + plan.update_s + allreduce_s + optimizer_s


def _whole_ms(job: TrainJob) -> tuple[float, float, float]:
    """Milliseconds of a mini-batch through the whole model: forward, recompute, backward."""
    times = job.times
    values = [times.forward, times.recompute, times.backward, times.weight]
    forward, recompute, backward, weight = (v[0] if isinstance(v, list) else v for v in values)
    return forward, recompute, backward + weight


def _times_s(job: TrainJob, sub: SubModel) -> dict[str, float]:
    _, recompute, backward = _whole_ms(job)
    return {
        "F": sub.forward_s,
        "R": sub.backward_s * recompute / (recompute + backward),
        "B": sub.backward_s * backward / (recompute + backward),
    }


def _check_emulable(job: TrainJob, plan: SwapPlan) -> None:
    if job.device.kind != "emulated":
        return
    shortest = min(sub.forward_s for sub in plan.subs)
    if shortest * 1e3 < SHORTEST_OP_MS:
        allowed = (
            f"the shortest of {len(plan.subs)} sub-models has {shortest * 1e3:.3g} ms of a microbatch's "
            f"forward pass: at least {SHORTEST_OP_MS:g} ms on device emulated; give more time or more memory"
        )
        raise InputError("device.times_ms.forward", _whole_ms(job)[0], allowed)


def _joined(
    row: Sequence[Layer],
    *,
    name: str,
    share: float,
    forward_s: float,
    backward_s: float,
    cut_bytes: int,
    unfused_bytes: int,
) -> Layer:
    return Layer(
        name=name,
        memory_bytes=sum(layer.memory_bytes for layer in row) + unfused_bytes,
        forward_s=share * forward_s,
        backward_s=share * backward_s,
        load_s=sum(layer.load_s for layer in row),
        cut_bytes=cut_bytes,
        parameter_bytes=sum(layer.parameter_bytes for layer in row),
    )


def _unfused_bytes(job: TrainJob, *, block: bool) -> int:
    """What torch keeps of one microbatch in a layer beyond the planner's fused kernels.

    Statistics of norms and attention; in a Llama block of queries and keys a second copy, from turning them
    by their positions, with the angles, and the gate's activation.
    """
    shape = job.model.shape
    numbers = job.cell.micro_batch * shape.seq * (shape.heads + 4)
    if block and shape.family == "llama":
        numbers += job.cell.micro_batch * shape.seq * (shape.hidden + shape.kv_width + shape.ffn)
        numbers += 2 * shape.seq * (shape.hidden // shape.heads)
    return numbers * BYTES_OF_PARAMETER[job.device.dtype]


def _name(number: int, count: int) -> str:
    return {0: "embedding", count - 1: "head"}.get(number, f"block {number - 1}")


def _given(layer: Layer) -> dict[str, object]:
    return {name: getattr(layer, name) for name in Layer.__slots__}
