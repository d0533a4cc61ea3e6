"""Reading a Hugging Face config.json: a field that nobody read, and that could change a figure, is refused.

Defaults are those of transformers' config classes. What was taken by default is kept, so that an answer can
say what the config left out.
"""

from collections.abc import Iterable, Mapping
from typing import Any

from engine.errors import InputError
from engine.inputs import nearest, whole

LARGEST = 1_000_000_000  # any one dimension
MOST_LAYERS = 100_000
# Fields that change none of our figures: how numbers are computed, not how many.
_NO_COUNTS = """
    _attn_implementation _name_or_path activation activation_dropout activation_function architectures
    attention_dropout attn_logit_softcapping attn_pdrop aux_loss_alpha auto_map bos_token_id
    cache_implementation
    chunk_size_feed_forward classifier_dropout dropout dtype embd_pdrop embedding_dropout eos_token_id ep_size
    final_logit_softcapping hidden_act hidden_activation hidden_dropout id2label init_std initializer_factor
    initializer_range is_decoder is_encoder_decoder keys_to_ignore_at_inference label2id layer_norm_eps
    layer_norm_epsilon layerdrop n_ctx n_group norm_eps norm_topk_prob num_nextn_predict_layers
    original_max_position_embeddings output_attentions output_hidden_states output_router_logits pad_token_id
    partial_rotary_factor prefix pretraining_tp problem_type quantization_config query_pre_attn_scalar
    reorder_and_upcast_attn resid_pdrop return_dict rms_norm_eps rope_interleave rope_local_base_freq
    rope_parameters rope_scaling rope_theta rope_type rotary_emb_base rotary_pct routed_scaling_factor
    router_aux_loss_coef router_jitter_noise scale_attn_by_inverse_layer_idx scale_attn_weights scoring_func
    seq_aux summary_activation summary_first_dropout summary_proj_to_labels summary_type summary_use_proj
    task_specific_params topk_group topk_method torch_dtype torchscript transformers_version unsloth_fixed
    unsloth_version use_bidirectional_attention use_bfloat16 use_cache use_parallel_residual
"""
HARMLESS = frozenset(_NO_COUNTS.split())
REQUIRED = object()


class Config:
    """The fields of one config, each read once by name.

    model_type : the family.  assumed : what was taken by default, by field.
    """

    def __init__(self, values: Mapping[str, Any]) -> None:
        self._values = values
        self._read = {"model_type", "seq"}
        self.model_type = str(values.get("model_type"))
        self.assumed: dict[str, Any] = {}

    def count(
        self, *names: str, default: Any = REQUIRED, least: int = 1, most: int = LARGEST, null: Any = None
    ) -> int:
        """A whole number. `names`: the field, and others by which it may be called; `null` stands for null.

        Raises InputError where it is missing without a default, or is no number from `least` to `most`.
        """
        name, value = self._found(names, default)
        if value is None and null is not None:
            return int(null)
        value = whole(value)
        if not isinstance(value, int) or isinstance(value, bool) or not least <= value <= most:
            raise InputError(name, value, f"a whole number from {least:,} to {most:,}")
        return value

    def flag(self, name: str, *, default: bool) -> bool:
        """True or false."""
        _, value = self._found((name,), default)
        if not isinstance(value, bool):
            raise InputError(name, value, "true or false")
        return value

    def number(self, name: str, *, default: float) -> float:
        """A number of at least 0."""
        _, value = self._found((name,), default)
        if isinstance(value, bool) or not isinstance(value, int | float) or not value >= 0:
            raise InputError(name, value, "a number of at least 0")
        return float(value)

    def numbers(self, name: str, *, most: int) -> frozenset[int]:
        """A list of whole numbers from 0 to before `most`; none where it is missing or null."""
        _, value = self._found((name,), None)
        values = [] if value is None else value
        whole_numbers = isinstance(values, list) and all(
            isinstance(each, int) and not isinstance(each, bool) and 0 <= each < most for each in values
        )
        if not whole_numbers:
            raise InputError(name, value, f"a list of whole numbers from 0 to {most - 1:,}")
        return frozenset(values)

    def optional(self, *names: str, default: Any = None, most: int = LARGEST) -> int:
        """A whole number, 0 where it is null, or missing without a default."""
        return self.count(*names, default=default, least=0, most=most, null=0)

    def only(self, name: str, *allowed: Any) -> None:
        """Refuse values of a field other than these and null: the others count otherwise."""
        _, value = self._found((name,), None)
        if value is not None and value not in allowed:
            choices = " or ".join("none" if value == [] else repr(value) for value in allowed)
            raise InputError(name, value, f"{choices}: anything else is not counted by meridian")

    def words(self, name: str, known: Iterable[str], *, count: int) -> list[str] | None:
        """A list of `count` words, each of `known`; None where it is missing or null."""
        _, value = self._found((name,), None)
        if value is None:
            return None
        known = list(known)
        if not isinstance(value, list) or len(value) != count or any(each not in known for each in value):
            raise InputError(name, value, f"a list of {count} of {', '.join(known)}: one for each layer")
        return value

    def unused(self, *names: str) -> None:
        """These change nothing in this family."""
        self._read.update(names)

    def end(self) -> None:
        """Raise InputError for a field that nobody read."""
        for name, value in self._values.items():
            if name not in self._read and name not in HARMLESS and value is not None:
                reason = f"not known of {self.model_type}, and it may change what is counted"
                raise InputError(str(name), value, f"{reason}; {nearest(str(name), sorted(self._read))}")

    def _found(self, names: tuple[str, ...], default: Any) -> tuple[str, Any]:
        self._read.update(names)
        given = [name for name in names if name in self._values]
        if len(given) > 1 and self._values[given[0]] != self._values[given[1]]:
            raise InputError(
                given[1], self._values[given[1]], f"the same as {given[0]}, which it is a name of"
            )
        if given:
            return given[0], self._values[given[0]]
        if default is REQUIRED:
            raise InputError(names[0], None, "required, but missing")
        if default is not None:
            self.assumed[names[0]] = default
        return names[0], default
