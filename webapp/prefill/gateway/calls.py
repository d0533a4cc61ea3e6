"""What clients may ask for: the bodies of OpenAI's completions and chat, as far as a prefill coordinator can
do it.

Errors name the field and what is allowed, never what stood in it.
"""

import json
from dataclasses import dataclass
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field, model_validator

from engine.errors import InputError
from engine.inputs import Count, Document, Flag, Index, Number, Whole, parse
from engine.prefill.handover import DecodeReceiver
from engine.prefill.messages import Sampling, Turn, Verbatim
from webapp.prefill.answers import ApiError, unknown_field
from webapp.prefill.gateway.receivers import require_allowed

Kind = Literal["completion", "chat"]
MOST_COMPLETION = 4_096
CHAT_TOKENS = 256  # where a chat does not say how many
# that a chat's template may add to each message, in the estimate before the coordinator counts
TURN_TOKENS = 16
# Fields of OpenAI, and of servers that load generators know, that a prefill coordinator cannot do: allowed
# only as what they are anyway. Numbers are compared by value: 1.0 is 1.
REFUSED: dict[str, tuple[Any, ...]] = {
    "n": (1,),
    "best_of": (1,),
    "logprobs": (False,),
    "top_logprobs": (0,),
    "echo": (False,),
    "suffix": ("",),
    "presence_penalty": (0,),
    "frequency_penalty": (0,),
    "repetition_penalty": (1,),
    "top_k": (0, -1),
    "min_p": (0,),
    "logit_bias": ({},),
    "tools": ([],),
    "tool_choice": ("none", "auto"),
    "functions": ([],),
    "function_call": ("none", "auto"),
    "response_format": ({"type": "text"},),
    "modalities": (["text"],),
    "audio": (),
    "prediction": (),
    "reasoning_effort": (),
    "verbosity": (),
    "web_search_options": (),
    "store": (False,),
    "moderation": (),
}
# Fields that change no answer here.
IGNORED = frozenset(
    {
        "user",
        "metadata",
        "safety_identifier",
        "prompt_cache_key",
        "prompt_cache_retention",
        "prompt_cache_options",
        "service_tier",
        "parallel_tool_calls",
    }
)
# Where a field may be one of several things, what pydantic says of one of them misleads.
SAID = {
    "prompt": "prompt must be text or a list of token ids, not empty, with one prompt per request.",
    "stop": "stop must be text, or a list of at most 4 texts.",
}
Text = Annotated[str, Field(min_length=1)]
Ids = Annotated[tuple[Index, ...], Field(min_length=1)]
Nothing = tuple[()] | None
TOOL_ROLES = ("tool", "function")


def _switch(value: Any) -> Any:
    """0 and 1 as false and true: clients of other languages write switches so."""
    return bool(value) if isinstance(value, int | float) and value in (0, 1) else value


Switch = Annotated[Flag, BeforeValidator(_switch)]


class StreamOptions(Document):
    include_usage: Switch = False
    include_obfuscation: Switch = False
    continuous_usage_stats: Switch = False  # vLLM's: usage so far in every piece


class RemoteDecode(Document):
    """The client decodes by itself: it wants to know where the KV cache lies, or have it sent (`decode`)."""

    do_remote_decode: Annotated[Literal[True], BeforeValidator(_switch)]
    do_remote_prefill: Annotated[Literal[False], BeforeValidator(_switch)] = False
    remote_engine_id: None = None
    remote_block_ids: None = None
    remote_host: None = None
    remote_port: None = None
    decode: DecodeReceiver | None = None


class _Body(Verbatim):
    model: Annotated[str, Field(min_length=1, max_length=200)]
    max_tokens: Annotated[Count, Field(le=MOST_COMPLETION)] | None = None
    max_completion_tokens: Annotated[Count, Field(le=MOST_COMPLETION)] | None = None
    temperature: Annotated[Number, Field(ge=0, le=2)] | None = None
    top_p: Annotated[Number, Field(gt=0, le=1)] | None = None
    seed: Whole | None = None
    ignore_eos: Switch | None = None
    stop: str | Annotated[tuple[str, ...], Field(max_length=4)] | None = None
    stream: Switch | None = None
    stream_options: StreamOptions | None = None
    kv_transfer_params: RemoteDecode | None = None


class CompletionBody(_Body):
    prompt: Text | Ids | tuple[Text] | tuple[Ids]


class TextPart(Verbatim):
    type: Literal["text"]
    text: str


class Message(Verbatim):
    """Fields that clients send back from an answer, apart from its text, are accepted if they have no
    effect. An answer without text has `content` null, or none.
    """

    role: Literal["system", "developer", "user", "assistant"]
    content: str | tuple[TextPart, ...] | None = None
    name: str | None = None
    refusal: None = None
    audio: None = None
    function_call: None = None
    tool_calls: Nothing = None
    annotations: Nothing = None

    @model_validator(mode="after")
    def _has_text(self) -> "Message":
        if self.content is None and self.role != "assistant":
            raise InputError("content", None, "required, but missing")
        return self

    @property
    def turn(self) -> Turn:
        content = self.content or ""
        text = content if isinstance(content, str) else "".join(part.text for part in content)
        return Turn(role="system" if self.role == "developer" else self.role, content=text)


class ChatBody(_Body):
    messages: Annotated[tuple[Message, ...], Field(min_length=1, max_length=4_096)]


@dataclass(frozen=True, slots=True, kw_only=True)
class CompletionCall:
    """A valid call of the API: what goes into its PrefillRequest, and what its answer looks like.

    fields : of its PrefillRequest.  most_tokens : that its prompt can have.
    include_usage, continuous_usage : of a stream: tokens in a last piece; tokens so far in every piece.
    """

    kind: Kind
    model: str
    fields: dict[str, Any]
    most_tokens: int
    stream: bool
    include_usage: bool
    continuous_usage: bool

    @property
    def field(self) -> str:
        """The field that holds its prompt."""
        return "messages" if self.kind == "chat" else "prompt"


def read(kind: Kind, given: dict[str, Any]) -> CompletionCall:
    """What the body of a completion or of a chat asks for. Raises ApiError."""
    model: type[_Body] = CompletionBody if kind == "completion" else ChatBody
    _require_characters(given)
    fields = _supported(given, model)
    _refuse_tools(fields.get("messages"))
    try:
        body: Any = parse(model, fields)
        request = _prompt(body) | _limits(body)
    except InputError as error:
        name = error.field.partition("[")[0]
        message = SAID.get(name, f"{error.field}: {error.allowed}.")
        param = name if name in SAID else error.field
        raise ApiError(400, "invalid_value", message, param=param or None) from None
    options = body.stream_options or StreamOptions()
    return CompletionCall(
        kind=kind,
        model=body.model,
        fields=request,
        most_tokens=_most_tokens(request),
        stream=bool(body.stream),
        include_usage=options.include_usage,
        continuous_usage=options.include_usage and options.continuous_usage_stats,
    )


def _supported(fields: dict[str, Any], model: type[_Body]) -> dict[str, Any]:
    """The fields that `model` knows. What would change the answer and cannot be done is refused by name."""
    supported = {}
    for name, value in fields.items():
        if name in model.model_fields:
            supported[name] = value
        elif name in REFUSED:
            if value is not None and not any(_equal(value, one) for one in REFUSED[name]):
                text = f"{name} is not supported here{_only(REFUSED[name])}."
                raise ApiError(400, "unsupported_field", text, param=name)
        elif name not in IGNORED:
            raise unknown_field(name, model.model_fields)
    return supported


def _equal(value: Any, allowed: Any) -> bool:
    """Whether both are one value: as a number, whatever its type, or as a switch, which 0 and 1 may be.

    A number of log-probabilities is no switch: 0 asks for those of the tokens themselves, and is not allowed
    by false. True is no number.
    """
    if isinstance(allowed, bool):
        return isinstance(value, bool) and value == allowed
    return not isinstance(value, bool) and bool(value == allowed)


def _require_characters(fields: dict[str, Any]) -> None:
    """Refuse half a surrogate pair, which JSON can write (\\ud83d) and no text has. Raises ApiError."""
    lone_half = _half(fields, "")
    if lone_half is not None:
        path, code = lone_half
        text = (
            f"{path}: holds half of a surrogate pair, U+{code:04X}, which is no character; send both halves."
        )
        raise ApiError(400, "invalid_value", text, param=path.partition(".")[0].partition("[")[0] or None)


def _half(value: Any, path: str) -> tuple[str, int] | None:
    """(where, which) the first half of a surrogate pair in `value` is; a name that has one is not quoted."""
    if isinstance(value, str):
        return next(((path, ord(one)) for one in value if "\ud800" <= one <= "\udfff"), None)
    if isinstance(value, list):
        return next((half for i, one in enumerate(value) if (half := _half(one, f"{path}[{i}]"))), None)
    if isinstance(value, dict):
        for name, one in value.items():
            if half := _half(name, f"the name of a field{f' of {path}' if path else ''}"):
                return half
            if half := _half(one, f"{path}.{name}" if path else name):
                return half
    return None


def _refuse_tools(messages: Any) -> None:
    """Say of calls of tools, and of their results, that they are not supported. Raises ApiError."""
    parts = [one if isinstance(one, dict) else {} for one in (messages if isinstance(messages, list) else ())]
    roles = [(i, "role") for i, one in enumerate(parts) if one.get("role") in TOOL_ROLES]
    calls = [
        (i, name) for i, one in enumerate(parts) for name in ("tool_calls", "function_call") if one.get(name)
    ]
    for i, name in (*roles, *calls):
        what = f"the role {parts[i][name]!r} is" if name == "role" else "tools are"
        text = (
            f"messages[{i}].{name}: {what} not supported here. Send messages with text of the roles system, "
            "developer, user and assistant."
        )
        raise ApiError(400, "unsupported_field", text, param=f"messages[{i}].{name}")


def _only(values: tuple[Any, ...]) -> str:
    return f" but as {' or '.join(json.dumps(value) for value in values)}" if values else ""


def _prompt(body: Any) -> dict[str, Any]:
    if isinstance(body, ChatBody):
        return {"turns": tuple(message.turn for message in body.messages)}
    prompt = body.prompt
    if isinstance(prompt, tuple) and len(prompt) == 1 and isinstance(prompt[0], str | tuple):
        prompt = prompt[0]  # a list of one prompt
    return {"prompt": prompt}


def _limits(body: Any) -> dict[str, Any]:
    most = body.max_completion_tokens or body.max_tokens
    hand_over = body.kv_transfer_params is not None
    default = CHAT_TOKENS if isinstance(body, ChatBody) else 16
    if hand_over and (most not in (None, 1) or body.stream):
        raise InputError("max_tokens", most, "must be 1, without stream, if kv_transfer_params is given")
    decode = body.kv_transfer_params.decode if hand_over else None
    if decode is not None:
        require_allowed(decode.host)
    stop = body.stop
    return {
        "max_tokens": 1 if hand_over else most or default,
        "stop": () if stop is None else (stop,) if isinstance(stop, str) else stop,
        "sampling": Sampling(
            temperature=1.0 if body.temperature is None else body.temperature,
            top_p=1.0 if body.top_p is None else body.top_p,
            seed=body.seed,
            ignore_eos=bool(body.ignore_eos),
        ),
        "hand_over": hand_over,
        "decode": decode,
    }


def _most_tokens(fields: dict[str, Any]) -> int:
    """Text has at most as many tokens as bytes."""
    if "turns" in fields:
        return sum(_bytes(turn.content) + TURN_TOKENS for turn in fields["turns"]) + TURN_TOKENS
    prompt = fields["prompt"]
    return _bytes(prompt) + 1 if isinstance(prompt, str) else len(prompt)  # 1: a begin of text


def _bytes(text: str) -> int:
    return len(text.encode(errors="surrogatepass"))
