"""What a job may ask for, and what is said of what it may not; text to ids and back."""

import json
from datetime import date
from pathlib import Path
from typing import Any

import pytest
import torch
from click.testing import CliRunner

from engine.commands import train
from engine.errors import InputError
from engine.job.prefill.settings import check_checkpoint
from engine.prefill.messages import Sampling, Turn
from engine.run.tiny import write_tiny
from engine.serve.answer_text import AnswerText
from engine.serve.sampling import draw
from engine.serve.served import examine
from engine.serve.tokenizing import TOKENIZER, tokenizer_of
from tests.runtime import swap_jobs
from tests.runtime.jobs import Run, document, job
from tests.runtime.prefill.live import prefill
from tests.runtime.test_devices import MIXED


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    where = tmp_path_factory.mktemp("served") / "tiny"
    write_tiny(where, steps=0)
    return where


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"prefill": {"pp_degree": 2}}, r"prefill.pp_degree: 2: must divide cells = 1"),
        ({"prefill": {"latency": {}}}, r"prefill.latency: give either points"),
        ({"prefill": {"latency": {"a_ms": 1, "b_ms": 0, "c_ms": 0}}}, r"prefill.latency.b_ms: 0"),
        ({"prefill": {"latency": {"points": [[128, 5.0]]}}}, r"at least three different lengths"),
        ({"prefill": {"pause_slowdown": 0}}, r"prefill.pause_slowdown: 0"),
        ({"prefill": {"guard": 3}}, r"prefill.guard: .*guard_ms"),
        ({"devices": MIXED, "dc_of_stage": None, "policy": "1f1b"}, r"prefill: .*through different data"),
    ],
)
def test_what_is_not_built_or_wrong_is_refused_by_its_field(changes: dict[str, Any], message: str) -> None:
    given = prefill(Path("/models/x"), **changes.get("prefill", {}))
    with pytest.raises(InputError, match=message):
        job(**{**changes, "prefill": given})


def test_swap_is_refused() -> None:
    with pytest.raises(InputError, match=r"strategy: 'swap': not with strategy swap"):
        swap_jobs.job(prefill=prefill(Path("/models/x")))


def test_without_prefill_a_job_says_nothing_of_it() -> None:
    assert "prefill" not in job().model_dump(mode="json", exclude_none=True)


def settings(folder: Path, **changes: Any) -> Any:
    return job(prefill=prefill(folder, **changes)).prefill


def test_too_little_memory_is_refused_with_the_figures(folder: Path) -> None:
    examine(settings(folder), stages=[0] * 6)
    with pytest.raises(InputError, match=r"prefill.weight_budget_bytes: 100000: .* 525,568 bytes in fp32"):
        examine(settings(folder, weight_budget_gb=1e-4), stages=[0] * 6)
    with pytest.raises(InputError, match=r"prefill.kv_budget_gb: 1e-06: at least 1.6384e-05"):
        examine(settings(folder, kv_budget_gb=1e-6), stages=[0] * 6)
    with pytest.raises(InputError, match=r"6 ranks here need .* the machine has"):
        examine(settings(folder, kv_budget_gb=1e6), stages=[0] * 6)


def test_what_is_missing_or_no_llama_is_bad_input(tmp_path: Path) -> None:
    (tmp_path / "job.json").write_text(json.dumps(document(prefill=prefill(tmp_path))))
    answer = CliRunner().invoke(train.command, [str(tmp_path / "job.json")])
    assert isinstance(answer.exception, InputError)
    assert answer.exception.field == "prefill.checkpoint"
    (tmp_path / "config.json").write_text('{"model_type": "gpt2"}')
    with pytest.raises(InputError, match=r"prefill.model_type: 'gpt2': allowed: llama"):
        check_checkpoint(tmp_path)


@pytest.mark.long
def test_a_node_without_the_checkpoint_fails_the_run_and_says_so(tmp_path: Path) -> None:
    run = Run(job(prefill=prefill(tmp_path)), str(tmp_path / "log"))
    assert run.group.wait(60)
    details = {event["detail"] for event in run.of_kind("rank") if event["state"] == "failed"}
    assert len(details) == 1
    assert "prefill.checkpoint" in details.pop()


def test_text_comes_back_from_its_ids_with_a_tokenizer_and_without(folder: Path, tmp_path: Path) -> None:
    text = "naïve — 日本\n"
    for tokenizer in (tokenizer_of(folder, vocab=256), tokenizer_of(tmp_path, vocab=256)):
        ids = tokenizer.encode(text)
        assert ids == list(text.encode())
        pieces = tokenizer.pieces()
        assert "".join(pieces.add(i) for i in ids) == text
    assert tokenizer_of(folder, vocab=256).kind == TOKENIZER
    with pytest.raises(InputError, match="too small for bytes"):
        tokenizer_of(tmp_path, vocab=255)


# What transformers gives a template, of which those of Llama 3 and Qwen 3 make use.
AS_LIBRARIES_ALLOW = (
    "<s>{{ strftime_now('%Y') }}{% for m in messages %}{% if loop.index > 1 %}{% break %}{% endif %}"
    "{{ m | tojson }}{% endfor %}"
)


def test_a_chat_takes_the_form_of_its_template(folder: Path, tmp_path: Path) -> None:
    (tmp_path / TOKENIZER).write_text((folder / TOKENIZER).read_text())
    template = (
        "{% for m in messages %}{% if m.role == 'system' %}{{ raise_exception('no system') }}{% endif %}"
        "<{{ m.role }}>{{ m.content }}{% endfor %}{% if add_generation_prompt %}<assistant>{% endif %}"
    )
    (tmp_path / "tokenizer_config.json").write_text(json.dumps({"chat_template": template}))
    tokenizer = tokenizer_of(tmp_path, vocab=256)
    assert bytes(tokenizer.chat([Turn(role="user", content="a")])) == b"<user>a<assistant>"
    with pytest.raises(InputError, match="no system"):
        tokenizer.chat([Turn(role="system", content="a")])
    (tmp_path / "tokenizer_config.json").write_text(json.dumps({"chat_template": AS_LIBRARIES_ALLOW}))
    text = bytes(tokenizer_of(tmp_path, vocab=256).chat([Turn(role="user", content="a")]))
    assert text == f'<s>{date.today():%Y}{{"role": "user", "content": "a"}}'.encode()
    plain = tokenizer_of(folder, vocab=256)
    assert bytes(plain.chat([Turn(role="user", content="a")])) == b"user: a\nassistant:"


@pytest.mark.parametrize(
    ("stop", "sent", "stopped"),
    [
        ([], "one\n\ntwo", False),
        (["\n\n"], "one", True),
        (["\n\nx"], "one\n\ntwo", False),
        (["two!", "wo"], "one\n\nt", True),
    ],
)
def test_nothing_of_a_stop_text_is_sent(folder: Path, stop: list[str], sent: str, stopped: bool) -> None:
    text = AnswerText(tokenizer_of(folder, vocab=256).pieces(), stop)
    sent_text, given = "", b"one\n\ntwo"
    for i, token in enumerate(given):
        sent_text += text.add(token, last=i == len(given) - 1)
        assert sent.startswith(sent_text)
        if text.stopped:
            break
    assert (sent_text, text.stopped) == (sent, stopped)


def test_draws_follow_temperature_top_p_and_seed() -> None:
    logits = torch.tensor([0.0, 5.0, 4.0, -2.0])
    assert draw(logits, Sampling(), at=0) == 1
    drawn = [draw(logits, Sampling(temperature=2.0, seed=i), at=0) for i in range(200)]
    assert set(drawn) >= {0, 1, 2}
    assert {draw(logits, Sampling(temperature=2.0, top_p=0.5, seed=i), at=0) for i in range(50)} == {1}
    one = Sampling(temperature=2.0, seed=7)
    assert [draw(logits, one, at=k) for k in range(20)] == [draw(logits, one, at=k) for k in range(20)]
    assert len({draw(logits, one, at=k) for k in range(20)}) > 1
