"""Answers as OpenAI's clients read them: whole, and in the pieces of a stream."""

import json
import time
from dataclasses import dataclass, field
from typing import Any

from engine.prefill.messages import Done, Token
from webapp.prefill.gateway.calls import Kind

LAST = b"data: [DONE]\n\n"


@dataclass(frozen=True, slots=True, kw_only=True)
class Shape:
    """How the answers to one request look. model : as the client named it."""

    kind: Kind
    request: str
    model: str
    created: int = field(default_factory=lambda: int(time.time()))

    def whole(self, text: str, done: Done) -> dict[str, Any]:
        """The answer in one piece."""
        message: dict[str, Any] = {"text": text}
        if self.kind == "chat":
            message = {"message": {"role": "assistant", "content": text, "refusal": None}}
        body = self._object(
            "chat.completion" if self.kind == "chat" else "text_completion",
            [self._choice(message, done.finish)],
        )
        body["usage"] = usage(done.prompt_tokens, done.completion_tokens)
        if done.kv_transfer_params is not None:
            body["kv_transfer_params"] = done.kv_transfer_params.model_dump(mode="json")
        if done.handed_over is not None:
            body["kv_transfer_params"] = done.handed_over.model_dump(mode="json")
        return body

    def piece(self, token: Token, *, first: bool) -> dict[str, Any]:
        """One token of a stream."""
        if self.kind == "chat":
            role = {"role": "assistant"} if first else {}
            return self._chunk([self._choice({"delta": {**role, "content": token.text}}, None)])
        return self._chunk([self._choice({"text": token.text}, None)])

    def end(self, done: Done) -> dict[str, Any]:
        """The piece after the last token."""
        empty: dict[str, Any] = {"delta": {}} if self.kind == "chat" else {"text": ""}
        return self._chunk([self._choice(empty, done.finish)])

    def totals(self, done: Done) -> dict[str, Any]:
        """The piece with the usage, where it was asked for."""
        return {**self._chunk([]), "usage": usage(done.prompt_tokens, done.completion_tokens)}

    def _choice(self, what: dict[str, Any], finish: str | None) -> dict[str, Any]:
        return {"index": 0, **what, "logprobs": None, "finish_reason": finish}

    def _chunk(self, choices: list[dict[str, Any]]) -> dict[str, Any]:
        return self._object("chat.completion.chunk" if self.kind == "chat" else "text_completion", choices)

    def _object(self, name: str, choices: list[dict[str, Any]]) -> dict[str, Any]:
        prefix = "chatcmpl-" if self.kind == "chat" else "cmpl-"
        number = self.request.removeprefix("req_")
        return {
            "id": prefix + number,
            "object": name,
            "created": self.created,
            "model": self.model,
            "choices": choices,
        }


def usage(prompt: int, completion: int) -> dict[str, int]:
    """Tokens; the prompt's are those that are charged."""
    return {"prompt_tokens": prompt, "completion_tokens": completion, "total_tokens": prompt + completion}


def event(data: dict[str, Any]) -> bytes:
    """One server-sent event."""
    return b"data: " + json.dumps(data, ensure_ascii=False).encode() + b"\n\n"
