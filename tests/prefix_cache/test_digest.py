"""Keys of content: chained, the same in every process, and of all that the content depends on."""

import hashlib

import numpy as np
import pytest
import xxhash
from hypothesis import given
from hypothesis import strategies as st

from pagedlab.prefix_cache.base import as_bytes
from pagedlab.prefix_cache.digest import HASHES, Digest

TOKENS = as_bytes(np.array([1, 2, 3, 4], dtype=np.int32))


def test_the_bytes_of_tokens_sort_like_the_tokens():
    assert list(TOKENS) == [0, 0, 0, 1, 0, 0, 0, 2, 0, 0, 0, 3, 0, 0, 0, 4]
    assert as_bytes(np.array([255], dtype=np.int32)) < as_bytes(np.array([256], dtype=np.int32))


@pytest.mark.parametrize(
    ("name", "of_nothing"),
    [("xxh3_128", 0x99AA06D3014798D86001C324468D497F), ("sha256", 0xE3B0C44298FC1C149AFBF4C8996FB924)],
)
def test_the_hashes_are_the_published_ones(name, of_nothing):
    assert Digest(name).root(()) == of_nothing


def test_a_key_is_the_hash_of_the_key_before_it_and_the_tokens():
    parent = 0x0102
    data = bytes(14) + b"\x01\x02" + TOKENS
    assert Digest("sha256").next(parent, TOKENS) == int(hashlib.sha256(data).hexdigest()[:32], 16)
    assert Digest().next(parent, TOKENS) == int(xxhash.xxh3_128_hexdigest(data), 16)


@pytest.mark.parametrize("name", HASHES)
def test_one_key_depends_on_every_token_on_their_order_and_on_the_parent(name):
    digest = Digest(name)
    tokens = [[1, 2, 3, 4], [1, 2, 4, 3], [0, 2, 3, 4], [1, 2, 3, 5], [1, 2, 3], [1, 2, 3, 4, 0]]
    keys = {digest.next(parent, as_bytes(np.array(t, dtype=np.int32))) for parent in (0, 1, 2**127) for t in tokens}
    assert len(keys) == 3 * len(tokens)
    assert all(0 <= key < 2**128 for key in keys)


@given(st.lists(st.text(max_size=4), max_size=3), st.lists(st.text(max_size=4), max_size=3))
def test_identities_are_told_apart_however_their_texts_are_cut(a, b):
    assert (Digest().root(tuple(a)) == Digest().root(tuple(b))) == (a == b)


def test_fewer_bits_are_the_last_of_all():
    full, cut = Digest(), Digest(bits=8)
    assert cut.root(("m", "", "")) == full.root(("m", "", "")) & 0xFF
    assert cut.next(7, TOKENS) == full.next(7, TOKENS) & 0xFF
