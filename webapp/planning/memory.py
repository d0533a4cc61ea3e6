"""How much memory a GPU needs for its stage of a training job: an estimate from shapes, before anything runs.

The executor keeps fp32 (or fp64) weights, gradients and the two moments of AdamW: four numbers a parameter.
Per microbatch in flight it keeps what the backward pass needs of each block, counted after Korthikanti et al.
(2022, section 4): 34·s·b·h + 5·a·s²·b bytes, of 2-byte numbers and dropout masks. Without dropout these are
16·s·b·h + a·s²·b numbers a block; fused attention saves the second term, so this is the upper end. Where
activations are recomputed only the inputs stay, and one microbatch's whole set.
"""

from dataclasses import dataclass

import numpy as np

from engine.model.transformer import Transformer
from engine.runtime.job import BYTE_VOCABULARY, BYTES_OF_DTYPE, TrainJob
from engine.runtime.predict import schedule_of
from engine.simulate import time_schedule

NUMBERS_PER_PARAMETER = 4  # weight, gradient, AdamW's two moments
PER_TOKEN = 16  # numbers kept per token and hidden unit of a block
PER_PAIR = 1  # numbers kept per head and pair of tokens: the softmax


@dataclass(frozen=True, slots=True, kw_only=True)
class StageMemory:
    """Bytes that one GPU needs for its stage."""

    stage: int
    state_bytes: int
    activation_bytes: int
    in_flight: int

    @property
    def total_bytes(self) -> int:
        return self.state_bytes + self.activation_bytes


def stage_memory(job: TrainJob) -> list[StageMemory]:
    """The memory of each stage, in order; `in_flight` is the most microbatches that the schedule holds there.

    Raises
    ------
    InputError
        The job's limits leave no schedule.
    """
    peak = np.asarray(time_schedule(job.scenario, schedule_of(job)).peak_in_flight()).max(axis=0)
    return [_stage(job, stage, int(peak[stage])) for stage in range(job.stages)]


def shape(job: TrainJob) -> Transformer:
    """The job's model as the engine counts it: GPT over bytes, MLP four times as wide."""
    model = job.model
    return Transformer(
        layers=model.layers, hidden=model.hidden, heads=model.heads, kv_heads=model.heads,
        ffn=4 * model.hidden, vocab=BYTE_VOCABULARY, seq=model.seq,
    )  # fmt: skip


def _stage(job: TrainJob, stage: int, in_flight: int) -> StageMemory:
    model, width = shape(job), BYTES_OF_DTYPE[job.dtype]
    layers = len(job.layers_of_stage[stage])
    parameters = layers * model.layer_parameters
    parameters += model.embedding_parameters if stage == 0 else 0
    parameters += model.head_parameters if stage == job.stages - 1 else 0
    tokens = job.micro_batch * model.seq
    block = PER_TOKEN * tokens * model.hidden + PER_PAIR * model.heads * tokens * model.seq
    block_input = tokens * model.hidden
    whole = layers * block
    held = in_flight * layers * block_input + whole if job.recomputes else in_flight * whole
    return StageMemory(
        stage=stage,
        state_bytes=NUMBERS_PER_PARAMETER * parameters * width,
        activation_bytes=held * width,
        in_flight=in_flight,
    )
