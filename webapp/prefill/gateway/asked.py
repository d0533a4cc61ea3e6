"""What clients may ask for: the bodies of OpenAI's completions and chat, as far as a prefill coordinator can
do it.

Errors name the field and what is allowed, never what stood in it.
"""

import json
from dataclasses import dataclass
from typing import Annotated, Any, Literal

from pydantic import Field

from engine.errors import InputError
from engine.inputs import Count, Document, Flag, Index, Number, parse
from engine.prefill.desk import Sampling, Turn, Verbatim
from webapp.prefill.answers import ApiError, unknown_field

Kind = Literal["completion", "chat"]
MOST_COMPLETION = 4_096
CHAT_TOKENS = 256  # where a chat does not say how many
# that a chat's template may add to each message, in the estimate before the coordinator counts
TURN_TOKENS = 16
# Fields of OpenAI that a prefill coordinator cannot do: allowed only as what they are anyway.
REFUSED: dict[str, tuple[Any, ...]] = {
    "n": (1,), "best_of": (1,), "logprobs": (False,), "top_logprobs": (0,), "echo": (False,), "suffix": ("",),
    "presence_penalty": (0,), "frequency_penalty": (0,), "logit_bias": ({},), "tools": ([],),
    "tool_choice": ("none", "auto"), "functions": ([],), "function_call": ("none", "auto"),
    "response_format": ({"type": "text"},), "modalities": (["text"],), "audio": (), "prediction": (),
    "reasoning_effort": (), "verbosity": (), "web_search_options": (), "store": (False,), "moderation": (),
}  # fmt: skip
# Fields that change no answer here.
IGNORED = frozenset(
    {
        "user", "metadata", "safety_identifier", "prompt_cache_key", "prompt_cache_retention",
        "prompt_cache_options", "service_tier", "parallel_tool_calls",
    }
)  # fmt: skip
# Where a field may be one of several things, what pydantic says of one of them misleads.
SAID = {
    "prompt": "prompt must be text or a list of token ids, not empty, with one prompt per request.",
    "stop": "stop must be text, or a list of at most 4 texts.",
}
Text = Annotated[str, Field(min_length=1)]
Ids = Annotated[tuple[Index, ...], Field(min_length=1)]
Nothing = tuple[()] | None


class StreamOptions(Document):
    include_usage: Flag = False
    include_obfuscation: Flag = False


class RemoteDecode(Document):
    """The client decodes by itself: it wants to know where the KV cache lies."""

    do_remote_decode: Literal[True]
    do_remote_prefill: Literal[False] = False
    remote_engine_id: None = None
    remote_block_ids: None = None
    remote_host: None = None
    remote_port: None = None


class _Body(Verbatim):
    model: Annotated[str, Field(min_length=1, max_length=200)]
    max_tokens: Annotated[Count, Field(le=MOST_COMPLETION)] | None = None
    temperature: Annotated[Number, Field(ge=0, le=2)] | None = None
    top_p: Annotated[Number, Field(gt=0, le=1)] | None = None
    seed: Index | None = None
    stop: str | Annotated[tuple[str, ...], Field(max_length=4)] | None = None
    stream: Flag | None = None
    stream_options: StreamOptions | None = None
    kv_transfer_params: RemoteDecode | None = None


class CompletionBody(_Body):
    prompt: Text | Ids | tuple[Text] | tuple[Ids]


class TextPart(Verbatim):
    type: Literal["text"]
    text: str


class Message(Verbatim):
    """Fields that clients send back from an answer, apart from its text, are accepted if they have no
    effect.
    """

    role: Literal["system", "developer", "user", "assistant"]
    content: str | tuple[TextPart, ...]
    name: str | None = None
    refusal: None = None
    audio: None = None
    function_call: None = None
    tool_calls: Nothing = None
    annotations: Nothing = None

    @property
    def turn(self) -> Turn:
        content = self.content
        text = content if isinstance(content, str) else "".join(part.text for part in content)
        return Turn(role="system" if self.role == "developer" else self.role, content=text)


class ChatBody(_Body):
    messages: Annotated[tuple[Message, ...], Field(min_length=1, max_length=4_096)]
    max_completion_tokens: Annotated[Count, Field(le=MOST_COMPLETION)] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """A request that makes sense. what : the fields of an Ask.  most_tokens : that its prompt can have."""

    kind: Kind
    model: str
    what: dict[str, Any]
    most_tokens: int
    stream: bool
    include_usage: bool


def document(body: bytes) -> dict[str, Any]:
    """The JSON object that `body` is. Raises ApiError."""
    try:
        asked = json.loads(body)
    except (ValueError, RecursionError):
        raise ApiError(400, "invalid_json", "The body must be one JSON object.") from None
    if not isinstance(asked, dict):
        raise ApiError(400, "invalid_json", "The body must be one JSON object.")
    return asked


def read(kind: Kind, asked: dict[str, Any]) -> Asked:
    """What the body of a completion or of a chat asks for. Raises ApiError."""
    model: type[_Body] = CompletionBody if kind == "completion" else ChatBody
    fields = _supported(asked, model)
    try:
        body: Any = parse(model, fields)
        what = _prompt(body) | _limits(body)
    except InputError as error:
        name = error.field.partition("[")[0]
        said = SAID.get(name, f"{error.field}: {error.allowed}.")
        raise ApiError(400, "invalid_value", said, param=error.field or None) from None
    return Asked(
        kind=kind,
        model=body.model,
        what=what,
        most_tokens=_most_tokens(what),
        stream=bool(body.stream),
        include_usage=body.stream_options is not None and body.stream_options.include_usage,
    )


def _supported(asked: dict[str, Any], model: type[_Body]) -> dict[str, Any]:
    """The fields that `model` knows. What would change the answer and cannot be done is refused by name."""
    known = {}
    for name, value in asked.items():
        if name in model.model_fields:
            known[name] = value
        elif name in REFUSED:
            if value is not None and not any(
                value == one and type(value) is type(one) for one in REFUSED[name]
            ):
                text = f"{name} is not supported here{_only(REFUSED[name])}."
                raise ApiError(400, "unsupported_field", text, param=name)
        elif name not in IGNORED:
            raise unknown_field(name, model.model_fields)
    return known


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
    most = getattr(body, "max_completion_tokens", None) or body.max_tokens
    hand_over = body.kv_transfer_params is not None
    default = CHAT_TOKENS if isinstance(body, ChatBody) else 16
    if hand_over and (most not in (None, 1) or body.stream):
        raise InputError("max_tokens", most, "must be 1, without stream, if kv_transfer_params is given")
    stop = body.stop
    return {
        "max_tokens": 1 if hand_over else most or default,
        "stop": () if stop is None else (stop,) if isinstance(stop, str) else stop,
        "sampling": Sampling(
            temperature=1.0 if body.temperature is None else body.temperature,
            top_p=1.0 if body.top_p is None else body.top_p,
            seed=body.seed,
        ),
        "hand_over": hand_over,
    }


def _most_tokens(what: dict[str, Any]) -> int:
    """Text has at most as many tokens as bytes."""
    if "turns" in what:
        return sum(_bytes(turn.content) + TURN_TOKENS for turn in what["turns"]) + TURN_TOKENS
    prompt = what["prompt"]
    return _bytes(prompt) + 1 if isinstance(prompt, str) else len(prompt)  # 1: a begin of text


def _bytes(text: str) -> int:
    return len(text.encode(errors="surrogatepass"))
