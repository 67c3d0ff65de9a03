"""What the workload tests share: a tokenizer of bytes, and one call for each workload."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from pagedlab.core.request import Request
from pagedlab.settings import ArrivalSettings, LengthSettings, SamplingSettings, ShareGPTSettings, SyntheticSettings
from pagedlab.workload.base import WORKLOADS

ROLE_IDS = {"system": 256, "user": 257, "assistant": 258}
END = 259


class ByteTokenizer:
    """One id a byte; a message is its role's id, its bytes, END."""

    vocab_size = 260

    def encode(self, text: str) -> list[int]:
        return list(text.encode())

    def message(self, role: str, content: str) -> list[int]:
        return [ROLE_IDS[role], *self.encode(content), END]

    def reply_header(self) -> list[int]:
        return [ROLE_IDS["assistant"]]


GREEDY = SamplingSettings(temperature=0.0, top_p=1.0, top_k=0, ignore_eos=True)
NO_LIMITS = ShareGPTSettings(
    name="sharegpt",
    path=None,
    multi_turn=True,
    num_requests=None,
    max_tokens=1_000_000,
    min_prompt_tokens=None,
    max_prompt_tokens=None,
    min_output_tokens=None,
    max_total_tokens=None,
    pin_system=False,
    clients=1,
    priorities=[0],
    arrival=ArrivalSettings("at_once"),
)
TEN_OF_TEN = SyntheticSettings(
    name="synthetic",
    num_requests=10,
    prompt=LengthSettings("fixed", mean=10),
    output=LengthSettings("fixed", mean=10),
    max_tokens=None,
    shared_prefix_tokens=0,
    shared_prefix_groups=1,
    pin_shared_prefix=False,
    cache_priorities=[35],
    tenants=1,
    clients=1,
    priorities=[0],
    arrival=ArrivalSettings("at_once"),
)

Build = Callable[..., list[Request]]


@pytest.fixture(scope="session")
def tokenizer() -> ByteTokenizer:
    return ByteTokenizer()


@pytest.fixture(scope="session")
def sharegpt(tokenizer: ByteTokenizer) -> Build:
    """sharegpt(path, seed=..., sampling=..., <setting>=...): every limit is off unless given."""

    def build(path: Path | None, seed: int = 0, sampling: SamplingSettings = GREEDY, **changes: Any) -> list[Request]:
        settings = replace(NO_LIMITS, path=None if path is None else str(path), **changes)
        return WORKLOADS["sharegpt"](settings, sampling, tokenizer, seed)

    return build


@pytest.fixture(scope="session")
def synthetic(tokenizer: ByteTokenizer) -> Build:
    """synthetic(seed=..., sampling=..., <setting>=...): ten requests of ten tokens each way unless changed."""

    def build(seed: int = 0, sampling: SamplingSettings = GREEDY, **changes: Any) -> list[Request]:
        return WORKLOADS["synthetic"](replace(TEN_OF_TEN, **changes), sampling, tokenizer, seed)

    return build


@pytest.fixture(scope="session")
def talks(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Path]:
    """talks(("id", "a question", "a reply", ...), ...): a ShareGPT file; messages written "gpt: ..." name a role."""

    def write(*conversations: tuple[str, ...]) -> Path:
        entries = []
        for id, *texts in conversations:
            messages = []
            for i, text in enumerate(texts):
                role, colon, said = text.partition(": ")
                messages.append(
                    {"from": role, "value": said} if colon else {"from": ("human", "gpt")[i % 2], "value": text}
                )
            entries.append({"id": id, "conversations": messages})
        path = tmp_path_factory.mktemp("talks") / "talks.json"
        path.write_text(json.dumps(entries), encoding="utf-8")
        return path

    return write
