"""Messages one by one are what the model's template writes of the whole conversation.

What transformers renders is the standard; left out is what a template puts before the first message.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from pathlib import Path

import pytest
from transformers import PreTrainedTokenizerFast

from pagedlab.model.tokenizer import load_tokenizer

CHATML = (
    "{% for message in messages %}<|im_start|>{{ message['role'] + '\n' + message['content'] }}<|im_end|>\n"
    "{{ '' }}{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)
DEFAULT_SYSTEM = (
    "{% if messages[0]['role'] != 'system' %}{{ '<|im_start|>system\nYou help.<|im_end|>\n' }}{% endif %}" + CHATML
)
LLAMA2 = """
{%- if messages[0]['role'] == 'system' %}
    {%- set system = '<<SYS>>\n' + messages[0]['content'] + '\n<</SYS>>\n\n' %}
    {%- set messages = messages[1:] %}
{%- else %}
    {%- set system = '' %}
{%- endif %}
{%- for message in messages %}
    {%- if (message['role'] == 'user') != (loop.index0 % 2 == 0) %}
        {{- raise_exception('roles must alternate user/assistant/user/assistant/...') }}
    {%- endif %}
    {%- if message['role'] == 'user' %}
        {{- bos_token + '[INST] ' + (system if loop.first else '') + message['content'].strip() + ' [/INST]' }}
    {%- else %}
        {{- ' ' + message['content'].strip() + ' ' + eos_token }}
    {%- endif %}
{%- endfor %}
"""
LLAMA3 = """
{{- bos_token }}
{%- if messages[0]['role'] == 'system' %}
    {%- set system = messages[0]['content'] | trim %}
    {%- set messages = messages[1:] %}
{%- else %}
    {%- set system = '' %}
{%- endif %}
{{- '<|start_header_id|>system<|end_header_id|>\n\n' }}
{%- if tools is not none %}{{- 'Environment: ipython\n' }}{%- endif %}
{{- 'Today Date: ' + strftime_now('%d %b %Y') + '\n\n' + system + '<|eot_id|>' }}
{%- for message in messages %}
    {{- '<|start_header_id|>' + message['role'] + '<|end_header_id|>\n\n' + message['content'] | trim + '<|eot_id|>' }}
{%- endfor %}
{%- if add_generation_prompt %}{{- '<|start_header_id|>assistant<|end_header_id|>\n\n' }}{%- endif %}
"""
NO_SYSTEM = """
{{- bos_token }}
{%- for message in messages %}
    {%- if message['role'] == 'system' %}{{- raise_exception('System role not supported') }}{%- endif %}
    {%- set role = 'model' if message['role'] == 'assistant' else message['role'] %}
    {{- '<start_of_turn>' + role + '\n' + message['content'] | trim + '<end_of_turn>\n' }}
{%- endfor %}
{%- if add_generation_prompt %}{{- '<start_of_turn>model\n' }}{%- endif %}
"""
# The last answer shows its thoughts, those before it do not.
THINKING = """
{%- for message in messages %}
    {%- if message['role'] == 'assistant' and loop.last %}
        {{- '<|im_start|>assistant\n<think>\n\n</think>\n\n' }}
        {%- generation %}{{- message['content'] + '<|im_end|>\n' }}{%- endgeneration %}
        {%- break %}
    {%- endif %}
    {{- '<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>\n' }}
{%- endfor %}
{%- if add_generation_prompt %}{{- '<|im_start|>assistant\n' }}{%- endif %}
"""
TURNS = [("user", "Hi there"), ("assistant", "Hello!"), ("user", "What is 2+2?"), ("assistant", "4"), ("user", "Ok")]

WriteFolder = Callable[..., Path]


def whole(folder: Path, template: str, chat: list[tuple[str, str]]) -> str:
    theirs = PreTrainedTokenizerFast(
        tokenizer_file=str(folder / "tokenizer.json"), bos_token="<s>", eos_token="</s>", chat_template=template
    )
    messages = [{"role": role, "content": content} for role, content in chat]
    text = theirs.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)
    return str(text)


def piecewise(folder: Path, chat: list[tuple[str, str]]) -> list[int]:
    tokenizer = load_tokenizer(folder, 512)
    return [id_ for role, content in chat for id_ in tokenizer.message(role, content)] + tokenizer.reply_header()


@pytest.mark.parametrize(
    ("template", "front"),
    [
        (CHATML, ""),
        (DEFAULT_SYSTEM, "<|im_start|>system\nYou help.<|im_end|>\n"),
        (LLAMA2, ""),
        (NO_SYSTEM, "<s>"),
        (THINKING, ""),
    ],
    ids=["chatml", "default_system", "llama2", "no_system", "thinking"],
)
def test_a_conversation_is_its_messages_and_the_header(
    tokenizer_folder: WriteFolder, caplog: pytest.LogCaptureFixture, template: str, front: str
) -> None:
    folder = tokenizer_folder(chat_template=template)
    ids = piecewise(folder, TURNS)
    tokenizer = load_tokenizer(folder, 512)
    assert front + tokenizer.decode(ids) == whole(folder, template, TURNS)
    assert tokenizer.encode(front) + ids == tokenizer.encode(whole(folder, template, TURNS))
    assert caplog.text == ""


@pytest.mark.parametrize(("template", "front"), [(CHATML, ""), (DEFAULT_SYSTEM, "")], ids=["chatml", "default_system"])
def test_a_system_message_too(tokenizer_folder: WriteFolder, template: str, front: str) -> None:
    folder = tokenizer_folder(chat_template=template)
    chat = [("system", "You are terse."), *TURNS]
    assert front + load_tokenizer(folder, 512).decode(piecewise(folder, chat)) == whole(folder, template, chat)


def test_a_bos_token_that_begins_every_message_is_kept(tokenizer_folder: WriteFolder) -> None:
    tokenizer = load_tokenizer(tokenizer_folder(chat_template=DEFAULT_SYSTEM, bos_token="<|im_start|>"), 512)
    for role in ("system", "user", "assistant"):
        assert tokenizer.decode(tokenizer.message(role, "Hi")) == f"<|im_start|>{role}\nHi<|im_end|>\n"


def test_a_line_break_between_messages_belongs_to_the_later_one(
    tokenizer_folder: WriteFolder, caplog: pytest.LogCaptureFixture
) -> None:
    template = (
        "{% for m in messages %}{{ m.role + ': ' + m.content }}{% if not loop.last %}{{ '\n' }}{% endif %}"
        "{% endfor %}{% if add_generation_prompt %}{{ '\nassistant:' }}{% endif %}"
    )
    folder = tokenizer_folder(chat_template=template)
    assert load_tokenizer(folder, 512).decode(piecewise(folder, TURNS)) == "\n" + whole(folder, template, TURNS)
    assert caplog.text == ""


def test_a_template_that_always_has_a_system_part_and_the_date(tokenizer_folder: WriteFolder) -> None:
    folder = tokenizer_folder(chat_template=LLAMA3)
    tokenizer = load_tokenizer(folder, 512)
    text = tokenizer.decode(piecewise(folder, TURNS))
    assert text.startswith("<|start_header_id|>user<|end_header_id|>\n\nHi there<|eot_id|>")
    assert whole(folder, LLAMA3, TURNS).endswith("\n\n<|eot_id|>" + text)
    # One date for all days: the same seed, the same tokens.
    assert tokenizer.decode(tokenizer.message("system", " You are terse. ")) == (
        "<|start_header_id|>system<|end_header_id|>\n\nToday Date: 26 Jul 2024\n\nYou are terse.<|eot_id|>"
    )


@pytest.mark.parametrize(
    ("template", "reason"),
    [(NO_SYSTEM, "System role not supported"), (LLAMA2, "differently when another stands before it")],
    ids=["no_system", "llama2"],
)
def test_a_system_message_the_template_has_no_place_for_is_plain_and_said_once(
    tokenizer_folder: WriteFolder, caplog: pytest.LogCaptureFixture, template: str, reason: str
) -> None:
    tokenizer = load_tokenizer(tokenizer_folder(chat_template=template), 512)
    for _ in range(3):
        assert tokenizer.decode(tokenizer.message("system", "Be kind.")) == "System: Be kind.\n"
    [record] = caplog.records
    assert record.levelno == logging.WARNING
    assert reason in record.getMessage()
    # The other roles stay as the template has them.
    assert "User:" not in tokenizer.decode(tokenizer.message("user", "Hi"))


@pytest.mark.parametrize(
    "template",
    [
        None,
        "{% for message in",
        "{{ raise_exception('no') }}",
        "{{ messages[0]['content'] + 1 }}",
        "{% for message in messages | reverse %}{{ message['content'] }}{% endfor %}",
        "nothing of what was said",
        "{{ ''.__class__.__mro__ }}{{ messages }}",
    ],
)
def test_a_template_that_is_of_no_use_gives_plain_text_and_a_warning(
    tokenizer_folder: WriteFolder, caplog: pytest.LogCaptureFixture, template: str | None
) -> None:
    folder = tokenizer_folder(**({} if template is None else {"chat_template": template}))
    text = load_tokenizer(folder, 512).decode(piecewise(folder, [("system", "S"), ("user", "U"), ("assistant", "A")]))
    assert text == "System: S\nUser: U\nAssistant: A\nAssistant:"
    assert "User: ..." in caplog.text
    assert all("\n" not in record.getMessage() for record in caplog.records)


def test_where_the_template_is_found(tokenizer_folder: WriteFolder) -> None:
    named = [{"name": "tool_use", "template": "no"}, {"name": "default", "template": CHATML}]
    folder = tokenizer_folder(chat_template=named)
    assert load_tokenizer(folder, 512).reply_header() == load_tokenizer(folder, 512).encode("<|im_start|>assistant\n")
    # A file of its own counts before tokenizer_config.json.
    (folder / "chat_template.jinja").write_text(LLAMA3)
    assert load_tokenizer(folder, 512).decode(load_tokenizer(folder, 512).reply_header()).startswith("<|start_header")


def test_a_template_sees_the_special_tokens(tokenizer_folder: WriteFolder) -> None:
    template = "{% for m in messages %}{{ bos_token + m.role + sep_token + m.content + eos_token }}{% endfor %}"
    folder = tokenizer_folder(chat_template=template)
    (folder / "special_tokens_map.json").write_text('{"bos_token": "[old]", "sep_token": {"content": "|"}}')
    tokenizer = load_tokenizer(folder, 512)
    assert tokenizer.decode(tokenizer.message("user", "Hi")) == "<s>user|Hi</s>"
