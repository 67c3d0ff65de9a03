"""The index against a naive map of contents: a plain dict of whole token texts, searched from end to end.

A program caches texts block by block, removes blocks and asks for texts; texts are of two tokens, so that most of them
begin alike. Every answer must be the naive one, whatever the hash does.
"""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pagedlab.core.errors import InvariantError
from pagedlab.core.request import Request, Sequence
from pagedlab.prefix_cache.base import PREFIX_CACHES, Match, PrefixCache
from pagedlab.prefix_cache.digest import Digest

KINDS = ("hash_chain", "radix")


def make(kind, size, bits=128, model="") -> PrefixCache:
    return PREFIX_CACHES[kind](size, Digest(bits=bits), model)


def sequence(tokens, prompt=None, salt="", adapter="") -> Sequence:
    """A request with these tokens, of which the first `prompt` are its prompt and the others were generated."""
    prompt = len(tokens) if prompt is None else min(prompt, len(tokens))
    request = Request(0, np.array(tokens[:prompt], dtype=np.int32), 99, cache_salt=salt, adapter=adapter)
    return Sequence(request, output=list(tokens[prompt:]))


class Naive:
    """By identity and whole text up to the end of a block: the node that holds its last block."""

    def __init__(self, index: PrefixCache):
        self.index, self.size = index, index.block_size
        self.texts: dict[tuple, dict[tuple, object]] = {}
        self.next_block = 0

    def of(self, seq: Sequence) -> dict[tuple, object]:
        return self.texts.setdefault((seq.request.cache_salt, seq.request.adapter), {})

    def cache(self, seq: Sequence, tail: bool) -> None:
        """All of the text, as far as keys do not collide."""
        tokens, texts = seq.token_ids().tolist(), self.of(seq)
        parent = self.index.chain(seq).root
        for block, start in enumerate(range(0, len(tokens), self.size)):
            text = tuple(tokens[: start + self.size])
            full = len(text) == start + self.size
            if not full and not tail:
                return
            if text not in texts:
                piece = self.index.tokens(seq, block)
                key = self.index.key(seq, block) if full else self.index.digest.next(parent.key, piece)
                node = self.index.insert(key, parent, piece, self.next_block)
                if node is None:  # two contents of one key
                    assert key in self.index.nodes
                    return
                texts[text] = node
                self.next_block += 1
            parent = texts[text]

    def remove(self, choice: int) -> None:
        cached = [(texts, text) for texts in self.texts.values() for text in texts]
        if not cached:
            return
        texts, text = cached[choice % len(cached)]
        behind = {other for other in texts if other[: len(text)] == text and len(text) % self.size == 0} | {text}
        gone = self.index.remove(texts[text])
        assert {id(node) for node in gone} == {id(texts[other]) for other in behind}
        assert len(gone) == len(behind)
        assert not any(node.cached for node in gone)
        for other in behind:
            del texts[other]

    def match(self, seq: Sequence) -> Match:
        tokens, texts = tuple(seq.token_ids().tolist()), self.of(seq)
        asked = tokens[:-1]  # something is to be computed
        nodes = []
        while (text := asked[: (len(nodes) + 1) * self.size]) in texts and len(text) == (len(nodes) + 1) * self.size:
            nodes.append(texts[text])
        start = len(nodes) * self.size
        best = 0
        for text in texts:
            if text[:start] == tokens[:start] and start < len(text) <= start + self.size:
                common = 0
                while common < min(len(text), len(asked)) - start and text[start + common] == asked[start + common]:
                    common += 1
                best = max(best, common)
        return Match(nodes, copied=best) if self.index.keeps_tails else Match(nodes, lost=best)


texts = st.lists(st.integers(1, 2), min_size=1, max_size=14)
salts = st.sampled_from(["", "", "tenant"])
actions = st.one_of(
    st.tuples(st.just("cache"), texts, st.integers(0, 14), salts, st.sampled_from(["", "lora"])),
    st.tuples(st.just("ask"), texts, st.integers(0, 14), salts, st.sampled_from(["", "lora"])),
    st.tuples(st.just("remove"), st.integers(0, 99)),
)


@settings(max_examples=200, deadline=None)
@given(st.sampled_from(KINDS), st.integers(1, 4), st.sampled_from([128, 8, 2]), st.lists(actions, max_size=25))
def test_every_answer_is_that_of_a_naive_map_of_contents(kind, size, bits, program):  # I20, I21
    index = make(kind, size, bits)
    naive = Naive(index)
    for what, *with_ in program:
        if what == "cache":
            naive.cache(sequence(*with_), index.keeps_tails)
        elif what == "remove":
            naive.remove(*with_)
        else:
            seq = sequence(*with_)
            before = (dict(index.nodes), index.version)
            got, want = index.match(seq), naive.match(seq)
            assert (dict(index.nodes), index.version) == before  # it is pure
            assert [id(node) for node in got.nodes] == [id(node) for node in want.nodes]
            assert (got.copied, got.lost) == (want.copied, want.lost)
            assert got.num_tokens(size) < seq.num_tokens  # I08
            hit = b"".join(node.tokens for node in got.nodes)
            if got.partial is not None:
                hit += got.partial.tokens[: 4 * got.copied]
            assert hit == seq.token_ids()[: got.num_tokens(size)].astype(">u4").tobytes()
        index.audit()
    assert len(index.nodes) == sum(map(len, naive.texts.values()))


def cached(kind, *tokens, **identity) -> PrefixCache:
    index = make(kind, 4)
    naive = Naive(index)
    for text in tokens:
        naive.cache(sequence(text, **identity), index.keeps_tails)
    return index


EIGHT = [1, 2, 3, 4, 5, 6, 7, 8]


@pytest.mark.parametrize(
    ("kind", "asked", "hit", "lost"),
    [
        ("hash_chain", EIGHT, 4, 3),  # E23: at least one token is computed
        ("radix", EIGHT, 7, 0),
        ("hash_chain", [*EIGHT, 9], 8, 0),  # E24
        ("radix", [*EIGHT, 9], 8, 0),
        ("hash_chain", [1, 2, 3, 9, 9], 0, 3),
        ("radix", [1, 2, 3, 9, 9], 3, 0),
        ("hash_chain", [9, 9, 9, 9, 5, 6, 7, 8, 9], 0, 0),  # E17: the same block behind another one
        ("radix", [9, 9, 9, 9, 5, 6, 7, 8, 9], 0, 0),
        ("radix", [1], 0, 0),
    ],
)
def test_what_is_hit_of_eight_cached_tokens(kind, asked, hit, lost):
    match = cached(kind, EIGHT).match(sequence(asked))
    assert (match.num_tokens(4), match.lost) == (hit, lost)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("other", [{"salt": "b"}, {"adapter": "lora"}, {"salt": "b", "adapter": "lora"}], ids=str)
def test_e18_other_salt_or_adapter_hits_nothing_and_the_same_does(kind, other):
    index = cached(kind, EIGHT, salt="a")
    asked = [*EIGHT, 9]
    assert index.match(sequence(asked, **({"salt": "a"} | other))).num_tokens(4) == 0
    assert index.match(sequence(asked)).num_tokens(4) == 0
    assert index.match(sequence(asked, salt="a")).num_tokens(4) == 8


def test_e19_keys_of_another_model_or_revision_are_others():
    keys = {make("hash_chain", 4, model=model).key(sequence(EIGHT), 0) for model in ("m|1", "m|2", "n|1")}
    assert len(keys) == 3


@pytest.mark.parametrize("kind", KINDS)
def test_e16_where_every_key_is_the_same_nothing_wrong_is_hit(kind):
    index = make(kind, 4, bits=0)
    Naive(index).cache(sequence(EIGHT), index.keeps_tails)
    assert len(index.nodes) == 1  # its second block has the key of the first
    assert index.match(sequence([9, 8, 7, 6, 5])).num_tokens(4) == 0
    assert index.match(sequence([*EIGHT, 9])).num_tokens(4) == 4


def test_a_block_is_not_removed_twice():
    index = cached("radix", EIGHT)
    node = next(iter(index.nodes.values()))
    index.remove(node)
    with pytest.raises(InvariantError, match="is removed from the index twice"):
        index.remove(node)


def test_audit_names_what_is_wrong():
    index = cached("hash_chain", EIGHT)
    first, second = index.nodes.values()
    second.key = 5
    with pytest.raises(InvariantError, match="block 1 is indexed under"):
        index.audit()
    second.key = next(key for key, node in index.nodes.items() if node is second)
    first.drop(second)
    with pytest.raises(InvariantError, match="block 1 is not behind the block that it continues"):
        index.audit()
    first.add(second)
    index.audit()
    second.tokens = second.tokens[:8]
    with pytest.raises(InvariantError):
        index.audit()
