"""The models whose prefill the engine can foretell on one GPU, and what of them a request needs."""

from dataclasses import replace
from functools import cache

from engine.job.prefill.settings import PrefillSettings
from engine.model.presets import PRESETS
from engine.prefill.in_run import hand_over
from engine.prefill.latency import Hop, LatencyModel, covering
from engine.prefill.placement import Cache
from engine.prefill.profiles import shipped
from webapp.prefill.models import MOST_PROMPT_TOKENS

CACHE_BYTES = 2  # of a number in the KV cache: fp16


@cache
def latencies() -> dict[tuple[str, str], LatencyModel]:
    """{(model, GPU type): latency}, of one GPU that holds the model; never shorter than what was measured."""
    return {
        (p.model, p.gpu): covering(p.latency, p.points)
        for p in shipped()
        if p.tensor_parallel == 1 and p.model in PRESETS
    }


def models() -> list[str]:
    """Names of the models that can be asked for."""
    return sorted({model for model, _ in latencies()})


def gpu_types(model: str) -> list[str]:
    """GPU types on which the prefill of `model` has been measured."""
    return sorted(gpu for name, gpu in latencies() if name == model)


def context_tokens(model: str) -> int:
    """The longest prompt that `model` takes, in tokens. Of one that only a prefill coordinator knows, the
    most that is ever granted: the coordinator refuses what is too long for it."""
    return PRESETS[model].seq if model in PRESETS else MOST_PROMPT_TOKENS


def cache_of(model: str, lan_gbps: float) -> Cache:
    """Its KV cache, keys and values of every layer, and the LAN over which it leaves for the decode GPU."""
    shape = PRESETS[model]
    token_bytes = 2.0 * shape.layers * shape.kv_width * CACHE_BYTES
    return Cache(token_bytes=token_bytes, bytes_per_s=lan_gbps * 1e9 / 8)


def hop_between_stages(model: str, served: PrefillSettings | None) -> Hop:
    """How long the GPUs of a prompt take to hand its hidden states on; of a model that the engine does not
    describe, without their transfer."""
    width = 4 if served is not None and served.dtype == "fp32" else 2
    return hand_over(PRESETS[model].hidden * width if model in PRESETS else 0)


def cache_served(served: PrefillSettings, lan_gbps: float) -> Cache:
    """As `cache_of`, of the model that a run serves and within the run's budget.

    The site knows the shape of a model by its name alone: checkpoints lie on the nodes. Of another model
    neither the transfer of the cache nor its room on a GPU is counted.
    """
    if served.model not in PRESETS:
        return Cache(bytes_per_s=lan_gbps * 1e9 / 8)
    shape = cache_of(served.model, lan_gbps)
    wider = 2 if served.dtype == "fp32" else 1
    return replace(shape, token_bytes=shape.token_bytes * wider, budget_bytes=served.kv_budget_bytes)
