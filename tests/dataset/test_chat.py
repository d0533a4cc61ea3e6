"""Chat templates and what the assistant wrote, against transformers."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from engine.dataset.chat import ChatError, _unmarked
from engine.dataset.tokenizer import TextTokenizer
from engine.errors import InputError
from tests.dataset.tokenizers import CHAT, EOS, MARKED, byte_folder

MESSAGES = [
    {"role": "user", "content": "naïve?\n"},
    {"role": "assistant", "content": "Yes 漢字."},
    {"role": "user", "content": "{{ more }} <eos>"},
    {"role": "assistant", "content": "No"},
]
TEMPLATES = {
    "marked": MARKED,
    "plain": CHAT,
    "break": "{% for m in messages %}{% if loop.last %}{% break %}{% endif %}{{ m.content }}{% endfor %}",
    "tojson": "{% for m in messages %}{{ m.content | tojson }}\n{% endfor %}",
    "tools": "{% if tools is not none %}T{% endif %}{{ bos_token is defined }}{{ messages[0].content }}",
    "year": "{{ strftime_now('%Y') }}{{ messages[0].content }}",
    "blocks": "  {% for m in messages %}\n{{ m.role }}\n  {% endfor %}\nend\n",
}


def theirs(folder: str, **how: Any) -> Any:
    """What transformers makes of the messages with the chat template of the folder."""
    from transformers import PreTrainedTokenizerFast  # half a second, which one worker of all spends

    return PreTrainedTokenizerFast.from_pretrained(folder).apply_chat_template(MESSAGES, **how)


@pytest.mark.parametrize("name", TEMPLATES)
def test_text_is_that_of_transformers(name: str, tmp_path: Path) -> None:
    folder = byte_folder(tmp_path, TEMPLATES[name])
    template = TextTokenizer(folder).chat_template()
    assert _unmarked(template._text(MESSAGES))[0] == theirs(folder, tokenize=False)


def test_marked_generation_is_that_of_transformers(tmp_path: Path) -> None:
    folder = byte_folder(tmp_path, MARKED)
    tokenizer = TextTokenizer(folder)
    (ids,) = tokenizer.of_chats([tokenizer.chat_template().rendered(MESSAGES)])
    answer = theirs(folder, return_dict=True, return_assistant_tokens_mask=True)
    assert ids.tokens.tolist() == answer["input_ids"]
    assert ids.counts is not None
    assert ids.counts.astype(int).tolist() == answer["assistant_masks"]


def test_all_tokens_of_the_last_character_count(tmp_path: Path) -> None:
    tokenizer = TextTokenizer(byte_folder(tmp_path, MARKED.replace("{{ eos_token }}", "")))
    (ids,) = tokenizer.of_chats([tokenizer.chat_template().rendered(MESSAGES[:2])])
    assert ids.counts is not None
    assert bytes(ids.tokens[:-1][ids.counts[:-1]].tolist()).decode() == "Yes 漢字."
    (ids,) = tokenizer.of_chats([("q漢", [(1, 2)])])
    assert ids.counts is not None
    assert ids.counts.tolist() == [False, True, True, True, True]


def test_unmarked_answers_are_what_their_messages_add(tmp_path: Path) -> None:
    tokenizer = TextTokenizer(byte_folder(tmp_path, CHAT))
    text, spans = tokenizer.chat_template().rendered(MESSAGES)
    assert [text[a:b] for a, b in spans] == ["Yes 漢字.\n", "No\n"]
    (ids,) = tokenizer.of_chats([(text, spans)])
    assert ids.counts is not None
    assert bytes(ids.tokens[:-1][ids.counts[:-1]].tolist()).decode() == "Yes 漢字.\nNo\n"
    assert ids.tokens[-1] == EOS
    assert ids.counts[-1], "the end of the last answer is to be learnt"
    (ended_by_user,) = tokenizer.of_chats([tokenizer.chat_template().rendered(MESSAGES[:3])])
    assert ended_by_user.counts is not None
    assert not ended_by_user.counts[-1]


@pytest.mark.parametrize(
    ("template", "messages", "message"),
    [
        (
            "{{ messages | length }}{{ messages[0].content }}",
            MESSAGES,
            "message 2: the template changes earlier",
        ),
        ("{{ raise_exception('roles must alternate') }}", MESSAGES, "roles must alternate"),
        ("{{ raise_exception('') }}", MESSAGES, r"refuses it \(TemplateError\)"),
        (CHAT, MESSAGES[:1], "no message has role assistant"),
        ("{{ messages[0].content }}", MESSAGES, "leaves out what the assistant says"),
        (CHAT, "text", "must be a list of messages"),
        (CHAT, [{"content": "x"}], "message 1 must be an object with a role"),
        (CHAT, [{"role": "assistant", "content": "\ufdd0"}], "U\\+FDD0"),
        ("{{ ''.__class__.__mro__ }}", MESSAGES, "refuses it"),
    ],
)
def test_refused_chats(template: str, messages: Any, message: str, tmp_path: Path) -> None:
    with pytest.raises(ChatError, match=message):
        TextTokenizer(byte_folder(tmp_path, template)).chat_template().rendered(messages)


def test_refused_tokenizers(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"tokenizer\.json cannot be read"):
        TextTokenizer(tmp_path)
    with pytest.raises(InputError, match="has no chat_template"):
        TextTokenizer(byte_folder(tmp_path / "none")).chat_template()
    with pytest.raises(InputError, match="is not a valid template"):
        TextTokenizer(byte_folder(tmp_path / "bad", "{% for %}")).chat_template()
    (tmp_path / "none" / "tokenizer_config.json").write_text('{"eos_token": "</s>"}')
    with pytest.raises(InputError, match="must name an eos_token"):
        TextTokenizer(tmp_path / "none")


def test_texts_end_with_eos(tmp_path: Path) -> None:
    tokenizer = TextTokenizer(byte_folder(tmp_path))
    texts = ["naïve", "two\n"]
    assert [ids.tokens.tolist() for ids in tokenizer.of_texts(texts)] == [[*t.encode(), EOS] for t in texts]
    assert tokenizer.dtype == np.dtype("<u2")
