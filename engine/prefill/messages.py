"""Messages of a prefill coordinator, which takes prompts for one run in one data centre and returns tokens.

The prefill coordinator is a process next to the ranks of a run. It owns the controller of the bubbles of its
data centre, and decodes what was prefilled. The gateway that tenants call holds one connection to each
coordinator and sends each `PrefillRequest` there, many at the same time. Later messages name their request.
A prompt is only ever in memory: on its way, at the coordinator and in the ranks.
"""

from typing import Annotated, Literal

from pydantic import Field, model_validator

from engine.errors import InputError
from engine.inputs import Count, Document, Flag, Id, Index, NonNegative, Number, Positive, Whole
from engine.prefill.handover import DecodeReceiver, HandedOver, KvLink, KvTransferParams
from engine.prefill.placement import Reason

RequestId = Annotated[str, Field(min_length=1, max_length=128)]
Finish = Literal["stop", "length"]


class Verbatim(Document):
    """A document whose strings keep the white space around them: prompts and pieces of text."""

    model_config = Document.model_config | {"str_strip_whitespace": False}


class Turn(Verbatim):
    """One message of a chat."""

    role: Literal["system", "user", "assistant"]
    content: str


class Sampling(Document):
    """How tokens are drawn; temperature 0 takes the likeliest.

    ignore_eos : the model does not end the answer: it goes on past its end of text, up to max_tokens or a
        stop text.
    """

    temperature: Annotated[Number, Field(ge=0, le=2)] = 0.0
    top_p: Annotated[Number, Field(gt=0, le=1)] = 1.0
    seed: Whole | None = None
    ignore_eos: Flag = False


class PrefillRequest(Verbatim):
    """A prompt on its way: exactly one of `prompt` (text or token ids) and `turns`.

    request : its id.
    max_tokens : most tokens to make; 1 is prefill alone.  stop : texts that end the answer.
    ttft_objective_ms : from the coordinator's receipt to the first token.  None: as soon as may be, for
        batches.
    longest_prompt : most tokens that its tenancy may send.  hand_over : the tenant decodes by itself: `Done`
    says where the KV cache lies, and max_tokens must be 1.  decode : the cache is sent there before the
    first token is answered.  link : to the decode GPU's data centre; None: it is in this one.
    quote : `Accepted` or `Refused` says what would be; nothing is kept.
    """

    kind: Literal["prefill_request"] = "prefill_request"
    request: RequestId
    prompt: str | tuple[Id, ...] | None = None
    turns: tuple[Turn, ...] | None = None
    max_tokens: Count = 16
    stop: tuple[str, ...] = ()
    sampling: Sampling = Sampling()
    ttft_objective_ms: Positive | None = None
    longest_prompt: Count
    priority: int = 0
    hand_over: bool = False
    decode: DecodeReceiver | None = None
    link: KvLink | None = None
    quote: bool = False

    @model_validator(mode="after")
    def _one_prompt(self) -> "PrefillRequest":
        if (self.prompt is None) == (self.turns is None):
            raise InputError("prompt", None, "give exactly one of prompt and turns")
        if self.hand_over and self.max_tokens != 1:
            raise InputError("max_tokens", self.max_tokens, "must be 1 where the cache is handed over")
        if self.decode is not None and not self.hand_over:
            raise InputError("hand_over", False, "must be true where decode names a receiver")
        return self


class Withdraw(Document):
    """The client is gone: what the request still holds is freed. No answer but `Failed` (cancelled)."""

    kind: Literal["withdraw"] = "withdraw"
    request: RequestId


class Accepted(Document):
    """It has its place: the first token is due within `ttft_ms` of the receipt."""

    kind: Literal["accepted"] = "accepted"
    request: RequestId
    prompt_tokens: Count
    queue_ms: NonNegative
    ttft_ms: NonNegative


class Refused(Document):
    """It has no place. `reason` is the controller's, or the request's own fault (`prompt_too_long`: over
    longest_prompt; `context_length_exceeded`: the model's; `invalid_prompt`, with `message`).

    retry_after_ms : None where waiting does not help.  prompt_tokens : None where they were not counted.
    """

    kind: Literal["refused"] = "refused"
    request: RequestId
    reason: Reason | Literal["prompt_too_long", "context_length_exceeded", "invalid_prompt"]
    retry_after_ms: NonNegative | None = None
    prompt_tokens: Index | None = None
    message: str = ""


class Token(Verbatim):
    """One more token. `text` may be empty while a character is not complete.

    ttft_ms : of the first token, from the receipt of the request, measured.
    """

    kind: Literal["token"] = "token"
    request: RequestId
    token: Index
    text: str
    ttft_ms: NonNegative | None = None


class Done(Document):
    """All tokens have been sent."""

    kind: Literal["done"] = "done"
    request: RequestId
    finish: Finish
    prompt_tokens: Count
    completion_tokens: Index
    ttft_ms: NonNegative
    kv_transfer_params: KvTransferParams | None = None
    handed_over: HandedOver | None = None


class Failed(Document):
    """An accepted request that will not be answered, and why.

    `training`: late training took its place and no other was found. `cancelled`: withdrawn. `decode`: the
    cache or the decoder was lost. `stopped`: the run ends, or begins again after a failure.
    """

    kind: Literal["failed"] = "failed"
    request: RequestId
    reason: Literal["training", "cancelled", "decode", "stopped"]
    message: str = ""


MOST_ACCOUNTED = 500  # requests of one `Account`
# How far a request is, or how it ended: as `Failed` says, `done`, or not known here.
Fate = Literal["unknown", "open", "done", "training", "cancelled", "decode", "stopped"]


class Account(Document):
    """What was delivered of these requests? One `Accounted` answers for each."""

    kind: Literal["account"] = "account"
    requests: Annotated[tuple[RequestId, ...], Field(min_length=1, max_length=MOST_ACCOUNTED)]


class Accounted(Document):
    """What the prefill coordinator sent of a request, by its own count.

    tokens : of the answer.  ttft_ms : None where nothing was sent.
    """

    kind: Literal["accounted"] = "accounted"
    request: RequestId
    fate: Fate
    prompt_tokens: Index
    tokens: Index
    ttft_ms: NonNegative | None = None

    @property
    def is_delivered(self) -> bool:
        """Whether it is charged: its first token was sent, and the run did not break it off afterwards."""
        return self.fate == "done" or (self.fate == "cancelled" and self.tokens > 0)


def context_exceeded(context: int, prompt: int, most: int) -> str:
    """The sentence that OpenAI's clients know for a request beyond the model's context; counts in tokens."""
    return (
        f"This model's maximum context length is {context} tokens. However, you requested {prompt + most} "
        f"tokens ({prompt} in the prompt, {most} for the completion)."
    )
