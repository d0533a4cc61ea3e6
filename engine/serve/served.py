"""Whether a machine can prefill what a job asks for: the checkpoint, its tokenizer, memory."""

from collections.abc import Sequence
from pathlib import Path

from engine.errors import InputError
from engine.job.memory import machine_bytes
from engine.job.prefill.config import LlamaConfig
from engine.job.prefill.settings import PrefillSettings, check_checkpoint
from engine.serve.decoding import can_decode
from engine.serve.in_rank import BLOCK_TOKENS
from engine.serve.kv_pool import KvShape
from engine.serve.tokenizing import tokenizer_of
from engine.serve.weights import Part


def examine(settings: PrefillSettings, *, stages: Sequence[int]) -> LlamaConfig:
    """The model of `settings`, of which each rank of this machine is to hold one of `stages`.

    Raises
    ------
    InputError
        No Llama is there, it has fewer layers than stages, or a budget or this machine's memory is too small,
        with the figures.
    """
    folder = Path(settings.checkpoint).expanduser()
    config = check_checkpoint(folder)
    degree, layers = settings.pp_degree, config.num_hidden_layers
    if degree > layers:
        raise InputError("prefill.pp_degree", degree, f"at most {layers}, the layers of the model")
    parts = [Part(config=config, stage=stage, stages=degree) for stage in range(degree)]
    try:
        for part in parts:
            part.check_budget(settings.dtype, settings.weight_budget_bytes)
    except InputError as error:
        raise InputError(f"prefill.{error.field}", error.value, error.allowed) from None
    tokenizer_of(folder, vocab=config.vocab_size)
    block_bytes = cache_shape(config, settings).block_bytes
    if settings.kv_budget_bytes < block_bytes:
        allowed = f"at least {block_bytes / 1e9:g}: a block of {BLOCK_TOKENS} tokens"
        raise InputError("prefill.kv_budget_gb", settings.kv_budget_gb, allowed)
    needed = sum(_memory_bytes(parts[stage], settings) for stage in stages)
    there = machine_bytes()
    if needed > there:
        allowed = (
            f"{len(stages)} ranks here need {needed:,} bytes for weights, KV caches and hidden states; "
            f"the machine has {there:,}"
        )
        raise InputError("prefill.kv_budget_gb", settings.kv_budget_gb, allowed)
    return config


def _memory_bytes(part: Part, settings: PrefillSettings) -> int:
    """What a rank takes at most: weights, KV caches, hidden states that came and that are to go on."""
    shape = KvShape.of(part.config, part.blocks, dtype=settings.dtype, block_tokens=BLOCK_TOKENS)
    hidden = shape.tokens_within(settings.kv_budget_bytes) * part.hidden_bytes(settings.dtype)
    ways = (not part.is_first) + (not part.is_last)
    return part.weight_bytes(settings.dtype) + settings.kv_budget_bytes + ways * hidden


def cache_shape(config: LlamaConfig, settings: PrefillSettings) -> KvShape:
    """Of the caches that a rank of the first stage holds: no stage has more layers."""
    layers = Part(config=config, stage=0, stages=settings.pp_degree).blocks
    return KvShape.of(config, layers, dtype=settings.dtype, block_tokens=BLOCK_TOKENS)


def warm() -> None:
    """Import and load, before the host forks, what coordinators need: compiled code, transformers if found.

    A coordinator that starts again is then there at once, and no import takes time from training.
    """
    from engine.prefill.bubbles import TrainingPattern
    from engine.prefill.index import BubbleIndex, Fleet
    from engine.prefill.latency import Hop, LatencyModel

    pattern = TrainingPattern(period_ms=1.0, busy=((((0.0, 0.5),),),), dc_of_stage=(0,))
    latency = LatencyModel(a_ms=0.0, b_ms=1.0, c_ms=0.0)
    fleet = Fleet(pattern=pattern, phase_ms=(0.0,))
    BubbleIndex(fleet, latency, Hop(), chunk=1, guard_ms=0.0, horizon_ms=2.0)
    if can_decode():
        import transformers.models.llama.modeling_llama  # noqa: F401
