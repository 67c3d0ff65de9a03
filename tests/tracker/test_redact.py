from __future__ import annotations

from typing import Any

import pytest

from pagedlab.recorder.redact import redact, redact_argv, redact_text

HARMLESS: dict[str, Any] = {
    "max_tokens": 128,
    "num_tokens": 5,
    "min_prompt_tokens": 1,
    "max_num_batched_tokens": 2048,
    "shared_prefix_tokens": 64,
    "eos_token_id": [2, 3],
    "bos_token_id": 1,
    "pad_token_id": "0",
    "decoder_start_token_id": 0,
    "image_token_index": 32000,
    "token_s": 0.001,
    "eos_token": "</s>",
    "add_bos_token": True,
    "tokenizer": "byte",
    "tokenizer_class": "LlamaTokenizer",
    "output_tokens_per_s": 12.5,
    "kv_token_states_fraction": 0.9,
    "normalized_latency_s_per_token": {"mean": 0.1, "p50": 0.05},
    "authors": ["A. Person"],
    "use_auth": False,
    "password": None,
    "path": "model/dir:8080",
    "url": "https://host:8080/a?b=c@d",
    "ssh": "ssh://git@host/repo",
    "chat_template": "{% if token == eos_token %}{{ bos_token }}{% endif %}",
}


def test_what_is_no_secret_stays() -> None:
    assert redact(HARMLESS) == HARMLESS
    words = [f"workload.{key}={value}" for key, value in HARMLESS.items() if not isinstance(value, (dict, list))]
    assert redact_argv(words) == words


@pytest.mark.parametrize(
    "key",
    ["api_key", "apikey", "API-KEY", "hf_token", "token", "accessToken", "client_secret", "password", "passwd",
     "credentials", "auth", "Authorization", "private_key", "aws_access_key_id"],
)  # fmt: skip
def test_a_secret_key_hides_its_value_at_any_depth(key: str) -> None:
    assert redact({key: "abc"}) == {key: "***"}
    assert redact({"a": [{key: ["abc", "def"]}]}) == {"a": [{key: ["***", "***"]}]}
    assert redact_argv([f"+a.{key}=abc", f"--{key}=abc=def"]) == [f"+a.{key}=***", f"--{key}=***"]


def test_everything_below_a_secret_key_is_hidden_numbers_too() -> None:
    assert redact({"credentials": {"user": "me", "pin": 1234, "on": True}}) == {
        "credentials": {"user": "***", "pin": "***", "on": True}
    }


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("https://user:pass@host/x", "https://user:***@host/x"),
        ("https://user:p@ss@host/x", "https://user:***@host/x"),
        ("s3 at http://:pass@host and http://u:v@w", "s3 at http://:***@host and http://u:***@w"),
        ("https://ghp_0123456789abcdef@github.com/x", "https://***@github.com/x"),
        ("http://host/f?api_key=abc&n=1", "http://host/f?api_key=***&n=1"),
        ("{model_type: llama, hf_token: abc, eos_token_id: 2}", "{model_type: llama, hf_token: ***, eos_token_id: 2}"),
        ("refused: Authorization: Bearer abc.def", "refused: Authorization: ***"),
        ("password='a b' rest", "password=*** rest"),
    ],
)
def test_a_secret_inside_a_text_is_hidden(text: str, expected: str) -> None:
    assert redact_text(text) == expected
    assert redact_text(expected) == expected
    assert redact({"a": [text]}) == {"a": [expected]}
    assert redact_argv([f"note={text}", text])[0] == f"note={expected}"


def test_the_value_of_a_secret_variable_is_hidden_wherever_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SOME_API_KEY", "longsecret")
    monkeypatch.setenv("OTHER_TOKEN", "longsecret-and-more")
    monkeypatch.setenv("SHORT_TOKEN", "short")
    monkeypatch.setenv("MAX_TOKENS", "harmless-value")
    assert redact({"a": "x/longsecret-and-more/longsecret/short/harmless-value"}) == {
        "a": "x/***/***/short/harmless-value"
    }
    assert redact_argv(["longsecret", "a=longsecret"]) == ["***", "a=***"]


def test_the_original_is_not_changed() -> None:
    config = {"a": {"token": "abc"}, "b": ["https://u:p@h"]}
    redact(config)
    assert config == {"a": {"token": "abc"}, "b": ["https://u:p@h"]}
