"""Bodies that OpenAI's clients and load generators send: by their value, whatever type a number has."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from webapp.prefill.answers import ApiError, json_object
from webapp.prefill.gateway.batches import Answer
from webapp.prefill.gateway.calls import CompletionCall, read

CASES = Path(__file__).parent / "cases" / "api"
ASK = {"model": "llama-tiny", "prompt": "hi"}
CHAT = {"model": "llama-tiny", "messages": [{"role": "user", "content": "hi"}]}


def asked(name: str) -> CompletionCall:
    body = json_object((CASES / f"{name}.json").read_bytes())
    return read("chat" if "messages" in body else "completion", body)


def refusal(body: dict[str, Any]) -> ApiError:
    with pytest.raises(ApiError) as caught:
        read("chat" if "messages" in body else "completion", body)
    assert caught.value.status == 400
    return caught.value


@pytest.mark.parametrize(
    "name",
    ["penalty_float_zero", "assistant_content_null", "seed_minus_one", "vllm_bench", "context_exceeded_413"],
)
def test_what_clients_send_makes_sense(name: str) -> None:
    assert asked(name).model == "llama-tiny"


def test_an_answer_without_text_is_an_empty_turn() -> None:
    turns = asked("assistant_content_null").fields["turns"]
    assert [(turn.role, turn.content) for turn in turns] == [
        ("user", "hi"),
        ("assistant", ""),
        ("user", "hi"),
    ]
    bare = {**CHAT, "messages": [{"role": "assistant"}, *CHAT["messages"]]}  # type: ignore[misc]
    assert read("chat", bare).fields["turns"][0].content == ""
    assert refusal({**CHAT, "messages": [{"role": "user", "content": None}]}).param == "messages[0].content"


# Each with the values of a field that mean the same, and one that does not.
SAME: dict[str, tuple[tuple[Any, ...], Any]] = {
    "n": ((1, 1.0, None), 2),
    "best_of": ((1, 1.0), 2.0),
    "frequency_penalty": ((0, 0.0, -0.0), 0.5),
    "presence_penalty": ((0, 0.0), -1),
    "repetition_penalty": ((1, 1.0), 1.1),
    "top_k": ((0, -1, -1.0), 40),
    "min_p": ((0, 0.0), 0.1),
    "top_logprobs": ((0, 0.0), 5),
    "echo": ((False,), True),
    "logprobs": ((False, None), 0),
    "store": ((False,), True),
    "max_tokens": ((4, 4.0), 4.5),
    "max_completion_tokens": ((4, 4.0), 0),
    "seed": ((-1, 7, 7.0, 1 - 2**63), 1.5),
    "stream": ((False, True, 0, 1), 2),
    "ignore_eos": ((False, True, 1, 0.0), "yes"),
    "temperature": ((1, 1.0, 0), True),
    "top_p": ((1, 1.0), 0),
}


def values() -> Iterator[tuple[str, Any]]:
    yield from ((name, value) for name, (same, _) in SAME.items() for value in same)


@pytest.mark.parametrize(("name", "value"), [*values()])
def test_a_value_is_a_value_whatever_its_type(name: str, value: Any) -> None:
    for kind, body in (("completion", ASK), ("chat", CHAT)):
        request = read(kind, {**body, name: value})  # type: ignore[arg-type]
        assert json.dumps(request.fields["max_tokens"]) in ("4", "16", "256")


@pytest.mark.parametrize("name", SAME)
def test_another_value_is_refused_at_its_field(name: str) -> None:
    error = refusal({**ASK, name: SAME[name][1]})
    assert error.param == name
    assert name in error.message


@pytest.mark.parametrize("name", ["n", "frequency_penalty", "max_tokens", "top_k", "seed"])
def test_true_is_no_number(name: str) -> None:
    assert refusal({**ASK, name: True}).param == name


def test_ids_of_tokens_are_numbers_too() -> None:
    assert read("completion", {**ASK, "prompt": [1.0, 2]}).fields["prompt"] == (1, 2)
    assert refusal({**ASK, "prompt": [1.5]}).param is not None


def test_max_completion_tokens_goes_before_max_tokens() -> None:
    assert read("completion", {**ASK, "max_tokens": 9, "max_completion_tokens": 3}).fields["max_tokens"] == 3


def test_seed_and_ignore_eos_reach_the_sampling() -> None:
    sampling = read("completion", {**ASK, "seed": -1, "ignore_eos": True}).fields["sampling"]
    assert (sampling.seed, sampling.ignore_eos) == (-1, True)
    assert not asked("vllm_bench").fields["sampling"].ignore_eos


def test_tools_are_refused_by_name() -> None:
    error = refusal(json.loads((CASES / "tool_history.json").read_text()))
    assert (error.code, error.param) == ("unsupported_field", "messages[2].role")
    calls = {"role": "assistant", "content": "x", "tool_calls": [{"id": "1", "type": "function"}]}
    error = refusal({**CHAT, "messages": [calls]})
    assert error.param == "messages[0].tool_calls"
    assert "tools are not supported" in error.message
    for role in ("tool", "function"):
        error = refusal({**CHAT, "messages": [*CHAT["messages"], {"role": role, "content": "x"}]})  # type: ignore[misc]
        assert (error.code, error.param) == ("unsupported_field", "messages[1].role")
        assert f"the role '{role}' is not supported" in error.message


def test_half_a_surrogate_is_named() -> None:
    with pytest.raises(ApiError) as caught:
        asked("lone_surrogate")
    assert (caught.value.param, caught.value.code) == ("prompt", "invalid_value")
    assert "half of a surrogate pair, U+D83D" in caught.value.message


HALF = "\ud83d"


@pytest.mark.parametrize(
    "change",
    [
        {"prompt": [HALF]},
        {"stop": ["x", HALF]},
        {"user": HALF},
        {"model": HALF},
        {HALF: 1},
        {"metadata": {HALF: "x"}},
        {"messages": [{"role": "user", "content": HALF}]},
        {"messages": [{"role": "user", "content": [{"type": "text", "text": HALF}]}]},
    ],
)
def test_half_a_surrogate_is_refused_wherever_it_stands(change: dict[str, Any]) -> None:
    error = refusal({**ASK, **change})
    assert "U+D83D" in error.message
    answer = Answer(custom_id="1", request="r", status=400, body=error.body)
    assert json.loads(answer.line)["response"]["body"]["error"]["code"] == "invalid_value"


@pytest.mark.parametrize(("name", "field"), [("two_prompts", "prompt"), ("echo_logprobs", "echo")])
def test_what_comes_with_batching_is_refused_by_name(name: str, field: str) -> None:
    with pytest.raises(ApiError) as caught:
        asked(name)
    assert (caught.value.status, caught.value.param) == (400, field)
    assert field in caught.value.message
