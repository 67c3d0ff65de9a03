"""Conversations of the lengths of Fig. 11: each request asks with all that was said before."""

from __future__ import annotations

import numpy as np

from pagedlab.paper.bench import SHORTEST
from pagedlab.settings import LengthSettings
from pagedlab.workload.assemble import Draft
from pagedlab.workload.lengths import draw_lengths

# ShareGPT's published turns: 4.6 a conversation on average. Their number is drawn geometric.
MEAN_ROUNDS = 4.6
# So many conversations are under way at once; whose turn is next is drawn.
OPEN = 64
_LENGTHS = LengthSettings("paper_sharegpt", low=SHORTEST)


class Chats:
    """(count, seed) -> drafts. longest_prompt: of what was said before and the question only the last so many tokens
    are fed. longest_output: of tokens. vocabulary: ids are below it."""

    def __init__(self, longest_prompt: int, longest_output: int, vocabulary: int):
        self.longest_prompt = longest_prompt
        self.longest_output = longest_output
        self.vocabulary = vocabulary

    def __call__(self, count: int, seed: int) -> list[Draft]:
        rng = np.random.default_rng((seed, 17))
        asked = draw_lengths(_LENGTHS, "input", count, rng)
        answered = np.minimum(draw_lengths(_LENGTHS, "output", count, rng), self.longest_output)
        said: list[np.ndarray] = [np.empty(0, dtype=np.int32)] * OPEN
        drafts: list[Draft] = []
        for question, answer in zip(asked.tolist(), answered.tolist(), strict=True):
            who = int(rng.integers(OPEN))
            new = rng.integers(self.vocabulary, size=question + answer, dtype=np.int32)
            prompt = np.concatenate([said[who], new[:question]])[-self.longest_prompt :]
            drafts.append(Draft(prompt, answer, answer, f"chat#{len(drafts)}"))
            ends = rng.random() < 1 / MEAN_ROUNDS
            said[who] = said[who][:0] if ends else np.concatenate([prompt, new[question:]])
        return drafts
