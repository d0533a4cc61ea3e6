"""Layers of any dense decoder of transformers: slices of its own model, by number.

The model is built once, on `meta`. Layer 0 is that model without its decoder layers and its last norm.
Layer n is its n-th decoder layer. Layer L + 1 is its last norm and output matrix, with what its forward pass
does to logits. Only the layers that are asked for are made real.

What the model gives its decoder layers beside the hidden states (masks, rotary positions) is recorded from
its own forward pass: no family needs code for them here. Attention is torch's, or transformers' plain one
where scores are capped. Dropout is off: a recomputed pass must repeat the first one.
"""

import copy
import json
from collections.abc import Callable, Iterable
from functools import lru_cache
from typing import Any

import torch
from torch import Tensor, nn

from engine.errors import InputError
from engine.job.model_document import ConfigModel
from engine.nn.layers import Linear

# Where a family without a `base_model_pp_plan` has its decoder layers and its last norm, in its base model.
_PATHS = {"gpt2": ("h", "ln_f"), "opt": ("decoder.layers", "decoder.final_layer_norm")}
# Names of parameters that are others in files (transformers.conversion_mapping).
_IN_FILES = {"gpt_neox": {"lm_head.weight": "embed_out.weight"}}
# Fields of a config that say nothing of the model, or name code that is not transformers' own.
_NOT_ASKED = ("model_type", "architectures", "auto_map", "_attn_implementation")
_DROPOUTS = ("dropout", "pdrop", "layerdrop")  # how names of such fields end
MOST_INPUTS = 8  # shapes and types of a batch that are known at once: training's, validation's


class Slice(nn.Module):
    """A layer: a `part` of the model whose parameters have `prefix` before their names in the whole one.

    tied : name of the parameter, if any, whose values are also in the layer at the other end of the model.
    tp_plan : of a decoder layer, how its modules are cut for tensor parallelism, as transformers names it.
    original : in the layer with the copy, the name that it has at the other end, in layer 0.
    """

    tied: str | None = None
    original: str | None = None
    tp_plan: dict[str, str] | None = None

    def __init__(self, part: nn.Module, prefix: str) -> None:
        super().__init__()
        self.part, self.prefix = part, prefix

    def name_in_model(self, name: str) -> str:
        """The name that transformers gives a parameter of this layer."""
        return self.prefix + name.removeprefix("part.")


class EmbeddingSlice(Slice):
    """Tokens (batch, seq) int64 → what the first decoder layer takes, (batch, seq, hidden)."""

    def forward(self, tokens: Tensor) -> Tensor:
        output: Tensor = self.part(input_ids=tokens, use_cache=False).last_hidden_state
        return output


class DecoderSlice(Slice):
    """A decoder layer, (batch, seq, hidden) → the same; `number` is its own from 0."""

    def __init__(self, part: nn.Module, prefix: str, inputs: "LayerInputs", number: int) -> None:
        super().__init__(part, prefix)
        self._inputs, self._number = inputs, number

    def forward(self, x: Tensor) -> Tensor:
        args, kwargs = self._inputs.of(x)[self._number]
        output = self.part(x, *args, **kwargs)
        return output[0] if isinstance(output, tuple) else output


class HeadSlice(Slice):
    """Last norm and logits: (batch, seq, hidden) → (batch, seq, vocabulary)."""

    def forward(self, x: Tensor) -> Tensor:
        output: Tensor = self.part(inputs_embeds=x, use_cache=False).logits
        return output


class Decoder:
    """A model of transformers on `meta`, and its layers by number.

    Raises
    ------
    InputError
        transformers is not installed, does not know the model, or the model is not built like a decoder.
    """

    def __init__(self, config: dict[str, Any]) -> None:
        self.model = _on_meta(config)
        self._layers, self._norm = self._paths()
        self.count = len(self.model.get_submodule(self._layers))
        # The module whose forward pass runs the layers: the base model, or its decoder.
        self._inner, _, self._layers_name = self._layers.rpartition(".")
        layers = self.model.get_submodule(self._layers).children()
        self._inputs = LayerInputs(self.model, self._without_layers(), self._layers_name, layers)
        embedding, output = self.model.get_input_embeddings(), self.model.get_output_embeddings()
        self._tied = [self._name_of(end) for end in (embedding, output) if embedding.weight is output.weight]

    def on_meta(self, number: int) -> Slice:
        """Layer `number`, its parameters without values."""
        if 0 < number <= self.count:
            path = f"{self._layers}.{number - 1}"
            part = copy.deepcopy(self.model.get_submodule(path))
            decoder = DecoderSlice(_with_own_products(part), f"{path}.", self._inputs, number - 1)
            plan, start = self.model.config.base_model_tp_plan or {}, f"{self._layers_name}.*."
            decoder.tp_plan = {name.removeprefix(start): style for name, style in plan.items()}
            return decoder
        layer: Slice
        if number == 0:
            layer = EmbeddingSlice(self._without_layers(), f"{self._inner}.")
        else:
            model = copy.deepcopy(self.model)
            model.set_submodule(self._inner, _LastNorm(self.model.get_submodule(self._inner), self._norm))
            layer = HeadSlice(_with_own_products(model), "")
        if self._tied:
            names = (name for name, _ in layer.named_parameters())
            layer.tied = next(name for name in names if layer.name_in_model(name) in self._tied)
            if number:
                layer.original = "part." + self._tied[0].removeprefix(f"{self._inner}.")
        return layer

    @torch.no_grad()
    def drawn(self, number: int, seed_of: Callable[[int], int]) -> Slice:
        """Layer `number` with weights by the model's own rule. `seed_of(number)` gives each layer's seed."""
        layer = self.on_meta(number).to_empty(device="cpu")
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed_of(number))
            layer.apply(self.model._init_weights)
        if layer.tied and layer.original:
            layer.get_parameter(layer.tied).copy_(self.drawn(0, seed_of).get_parameter(layer.original))
        return layer

    def saved_name(self, layer: Slice, name: str) -> str:
        """The name under which a parameter of a layer is saved: a tied one once, as the embedding."""
        return self._in_files(self._tied[0] if name == layer.tied else layer.name_in_model(name))

    @property
    def saved_names(self) -> set[str]:
        """The names under which all parameters may be saved, a tied one under both of its own."""
        return {self._in_files(name) for name, _ in self.model.named_parameters(remove_duplicate=False)}

    def _in_files(self, name: str) -> str:
        return _IN_FILES.get(self.model.config.model_type, {}).get(name, name)

    def _paths(self) -> tuple[str, str]:
        """Where the decoder layers are in the model, and the name of the last norm next to them."""
        base, config = self.model.base_model_prefix, self.model.config
        plan = getattr(config, "base_model_pp_plan", None)
        if config.model_type in _PATHS:
            layers, norm = _PATHS[config.model_type]
        elif plan:
            base_model, names = self.model.base_model, list(plan)
            lists = [name for name in names if isinstance(getattr(base_model, name), nn.ModuleList)]
            after = names[names.index(lists[0]) + 1 :] if len(lists) == 1 else []
            if len(after) != 1:
                raise _refused(config.model_type, "its plan for pipelines is not embedding, layers, norm")
            layers, norm = lists[0], after[0]
        else:
            raise _refused(config.model_type, "it has no plan for pipelines")
        return f"{base}.{layers}", norm.rpartition(".")[2]

    def _name_of(self, module: nn.Module) -> str:
        """Name in the model of the weight of one of its modules."""
        return next(f"{name}.weight" for name, each in self.model.named_modules() if each is module)

    def _without_layers(self) -> Any:
        """A copy of the module that runs the layers, with none of them and no last norm."""
        inner = copy.copy(self.model.get_submodule(self._inner))
        inner._modules = dict(inner._modules)
        setattr(inner, self._layers_name, nn.ModuleList())
        setattr(inner, self._norm, nn.Identity())
        return copy.deepcopy(inner)


class LayerInputs:
    """What the forward pass of a model gives each decoder layer beside the hidden states.

    Recorded once for each shape, type and device of them: tensors that no weight goes into.

    inner : the module whose forward pass runs the layers, without them; `name` is where it has them.
    """

    def __init__(self, model: Any, inner: Any, name: str, layers: Iterable[nn.Module]) -> None:
        self._inner = inner
        self._recorders = [_Recorder(layer) for layer in layers]
        for path, module in list(inner.named_modules()):
            if isinstance(module, nn.Embedding):
                inner.set_submodule(path, _Zeros(model.config.hidden_size))
        setattr(inner, name, nn.ModuleList(self._recorders))
        inner.to_empty(device="cpu").apply(model._init_weights)
        self.of_shape = lru_cache(maxsize=MOST_INPUTS)(self._recorded)

    def of(self, x: Tensor) -> list[tuple[tuple[Any, ...], dict[str, Any]]]:
        """The further arguments of each layer for hidden states like `x`."""
        return self.of_shape(x.shape[0], x.shape[1], x.dtype, x.device)

    @torch.no_grad()
    def _recorded(
        self, batch: int, seq: int, dtype: torch.dtype, device: torch.device
    ) -> list[tuple[tuple[Any, ...], dict[str, Any]]]:
        for module in self._inner.modules():
            if isinstance(module, _Zeros):
                module.dtype = dtype
        self._inner.to(device)
        self._inner(input_ids=torch.zeros(batch, seq, dtype=torch.int64, device=device), use_cache=False)
        return [recorder.further for recorder in self._recorders]


class _Recorder(nn.Module):
    """Stands for a decoder layer: keeps what it is given beside the hidden states, and passes these on."""

    def __init__(self, layer: nn.Module) -> None:
        super().__init__()
        self._layer = (layer,)  # not as a module of this one
        self.further: tuple[tuple[Any, ...], dict[str, Any]] = ((), {})

    def __getattr__(self, name: str) -> Any:
        try:
            return super().__getattr__(name)
        except AttributeError:
            return getattr(self.__dict__["_layer"][0], name)

    def forward(self, x: Tensor, *args: Any, **kwargs: Any) -> Tensor:
        self.further = args, kwargs
        return x


class _Zeros(nn.Module):
    """Stands for an embedding of tokens or positions, whose values reach no mask."""

    dtype = torch.float32

    def __init__(self, hidden: int) -> None:
        super().__init__()
        self._hidden = hidden

    def forward(self, numbers: Tensor, *args: Any, **kwargs: Any) -> Tensor:
        return torch.zeros(*numbers.shape, self._hidden, dtype=self.dtype, device=numbers.device)


class _LastNorm(nn.Module):
    """Stands for the base model in front of the output matrix: the last norm alone, under its own name."""

    def __init__(self, inner: nn.Module, name: str) -> None:
        super().__init__()
        self._name = name
        setattr(self, name, copy.deepcopy(getattr(inner, name)))

    def forward(self, *args: Any, inputs_embeds: Tensor, **kwargs: Any) -> Any:
        from transformers.modeling_outputs import BaseModelOutputWithPastAndCrossAttentions as Output

        norm = getattr(self, self._name)  # None in an OPT that norms after its layers
        return Output(last_hidden_state=inputs_embeds if norm is None else norm(inputs_embeds))


def decoder_of(model: ConfigModel) -> Decoder:
    """The model of a document, on `meta`. Raises as `Decoder`."""
    return _decoder(json.dumps(model.config, sort_keys=True))


@lru_cache(maxsize=2)
def _decoder(config: str) -> Decoder:
    return Decoder(json.loads(config))


def _on_meta(values: dict[str, Any]) -> Any:
    try:
        from transformers import AutoConfig, AutoModelForCausalLM  # takes seconds: only where it is trained
    except ImportError:
        why = "transformers is not installed here (pip install meridian[decode])"
        raise _refused(values["model_type"], why) from None
    without = {name: value for name, value in values.items() if name not in _NOT_ASKED}
    try:
        config = AutoConfig.for_model(values["model_type"], **without)
        for name, value in config.to_dict().items():
            if name.endswith(_DROPOUTS) and value:
                setattr(config, name, 0.0)
        capped = getattr(config, "attn_logit_softcapping", None)  # torch's attention does not know it
        with torch.device("meta"):
            return AutoModelForCausalLM.from_config(
                config, attn_implementation="eager" if capped else "sdpa", dtype=torch.float32
            )
    except (TypeError, ValueError, KeyError, AttributeError) as error:
        raise _refused(values["model_type"], f"transformers cannot build it: {error}") from None


def _with_own_products(part: nn.Module) -> nn.Module:
    """The part with linear layers whose gradients may be kept in a wider type (engine.nn.products)."""
    for module in part.modules():
        if type(module) is nn.Linear:
            module.__class__ = Linear
    return part


def _refused(model_type: str, why: str) -> InputError:
    return InputError("model.config", model_type, f"a model that this machine can train: {why}")
