"""The prefix cache contract: which content lies in which block, found by the tokens that a request begins with."""

from __future__ import annotations

from abc import ABC, abstractmethod
from bisect import bisect_left
from collections.abc import Iterator
from dataclasses import dataclass, field

import numpy as np

from pagedlab.core.errors import InvariantError
from pagedlab.core.registry import Registry
from pagedlab.core.request import Sequence
from pagedlab.prefix_cache.digest import Digest

_TOKEN = 4  # bytes


class Node:
    """The content of one cached block: its tokens after those of the nodes before it.

    key: an int that names it, unique among what is cached. tokens: as bytes, 4 a token, the most significant first, so
    that they sort like the tokens. depth: blocks before it. cached: false once its block is cached no longer.
    """

    __slots__ = ("_behind", "_sorted", "block", "cached", "depth", "key", "parent", "tokens")

    def __init__(self, key: int, parent: Node | None, tokens: bytes, block: int):
        self.key, self.parent, self.tokens, self.block = key, parent, tokens, block
        self.depth: int = 0 if parent is None else parent.depth + 1
        self.cached = True
        self._behind: dict[bytes, Node] = {}
        self._sorted: list[bytes] = []

    @property
    def num_tokens(self) -> int:
        return len(self.tokens) // _TOKEN

    def child(self, tokens: bytes) -> Node | None:
        return self._behind.get(tokens)

    def children(self) -> list[Node]:
        return list(self._behind.values())

    def add(self, child: Node) -> None:
        self._behind[child.tokens] = child
        self._sorted.insert(bisect_left(self._sorted, child.tokens), child.tokens)

    def drop(self, child: Node) -> None:
        del self._behind[child.tokens]
        del self._sorted[bisect_left(self._sorted, child.tokens)]

    def nearest(self, tokens: bytes) -> tuple[Node | None, int]:
        """The child that begins with the most of these tokens, and with how many: it is next to their place in the
        order. (None, 0) where none begins with the first."""
        best, most = None, 0
        place = bisect_left(self._sorted, tokens)
        for other in self._sorted[max(0, place - 1) : place + 1]:
            if (common := _common(other, tokens)) > most:
                best, most = self._behind[other], common
        return best, most


def _common(a: bytes, b: bytes) -> int:
    """How many tokens both begin with."""
    length = min(len(a), len(b))
    differ = np.frombuffer(a[:length], np.uint32) != np.frombuffer(b[:length], np.uint32)
    return int(differ.argmax()) if differ.any() else length // _TOKEN


def as_bytes(tokens: np.ndarray) -> bytes:
    return tokens.astype(">u4").tobytes()


@dataclass(slots=True)
class Chain:
    """What is known of a sequence's content: the keys of its full blocks, and the nodes of those of its
    blocks that are cached. Kept on the sequence, so that nothing is hashed twice."""

    root: Node
    keys: list[int] = field(default_factory=list)
    nodes: list[Node] = field(default_factory=list)

    def copy(self) -> Chain:
        return Chain(self.root, list(self.keys), list(self.nodes))


@dataclass(frozen=True, slots=True)
class Match:
    """What of a sequence's known tokens is cached. nodes: its first full blocks, to be shared. partial: a block of
    whose tokens the next `copied` are the sequence's: to be copied. lost: tokens behind what is hit that are cached as
    well and of no use, since blocks are shared whole and one token at least is to be computed. below: names of
    the tiers below the device that hold the full blocks after `nodes`, one for each."""

    nodes: list[Node]
    partial: Node | None = None
    copied: int = 0
    lost: int = 0
    below: tuple[str, ...] = ()

    def num_tokens(self, block_size: int) -> int:
        return (len(self.nodes) + len(self.below)) * block_size + self.copied


NOTHING = Match([])


class PrefixCache(ABC):
    """An index of content. It holds no blocks: the allocator does, and tells it what is cached.

    A node is found only behind the very nodes that its content continues, and by equal tokens: whatever the hash does,
    a hit is never of other content. A request never sees content of another salt or adapter, or of another model.
    `match` is pure.
    """

    def __init__(self, block_size: int, digest: Digest, model: str = ""):
        """model: what tells this model's keys and values from those of any other (name, revision, dtype)."""
        self.block_size = block_size
        self.digest = digest
        self.model = model
        self.nodes: dict[int, Node] = {}  # by key
        self.version = 0  # counts changes
        self._roots: dict[tuple[str, str], Node] = {}

    # ---- what an option decides -------------------------------------------------------------------------------

    @abstractmethod
    def find(self, parent: Node, key: int, tokens: bytes) -> Node | None:
        """The cached full block behind `parent` that holds these tokens."""

    @abstractmethod
    def rest(self, node: Node, tokens: bytes) -> Match:
        """What is cached of the tokens behind the last full block that was found."""

    keeps_tails = False
    """Whether blocks that never became full are cached as well, once nobody writes to them."""

    # ---- shared -----------------------------------------------------------------------------------------------

    def chain(self, seq: Sequence) -> Chain:
        chain: Chain | None = seq.chain
        if chain is None:
            chain = seq.chain = Chain(self._root(seq))
        return chain

    def _root(self, seq: Sequence) -> Node:
        identity = (seq.request.cache_salt, seq.request.adapter)
        root = self._roots.get(identity)
        if root is None:
            root = self._roots[identity] = Node(self.digest.root((self.model, *identity)), None, b"", -1)
            root.depth = -1
        return root

    def key(self, seq: Sequence, block: int) -> int:
        """Of a full block of the sequence's known tokens."""
        chain = self.chain(seq)
        while len(chain.keys) <= block:
            parent = chain.keys[-1] if chain.keys else chain.root.key
            chain.keys.append(self.digest.next(parent, self.tokens(seq, len(chain.keys))))
        return chain.keys[block]

    def tokens(self, seq: Sequence, block: int, end: int | None = None) -> bytes:
        """Those of one block of the sequence, up to the token `end` where that comes first."""
        start = block * self.block_size
        end = start + self.block_size if end is None else min(end, start + self.block_size)
        prompt = seq.request.prompt
        if end <= len(prompt):
            return as_bytes(prompt[start:end])
        generated = np.array(seq.output[max(0, start - len(prompt)) : end - len(prompt)], dtype=np.int64)
        return as_bytes(np.concatenate([prompt[start:], generated]))

    def match(self, seq: Sequence) -> Match:
        """The longest cached beginning of the sequence's known tokens, less one token: something is to be computed."""
        limit = seq.num_tokens - 1
        node = self.chain(seq).root
        nodes: list[Node] = []
        while (len(nodes) + 1) * self.block_size <= limit:
            block = len(nodes)
            found = self.find(node, self.key(seq, block), self.tokens(seq, block))
            if found is None:
                break
            nodes.append(found)
            node = found
        rest = self.rest(node, self.tokens(seq, len(nodes), limit))
        return Match(nodes, rest.partial, rest.copied, rest.lost)

    def insert(self, key: int, parent: Node, tokens: bytes, block: int) -> Node | None:
        """`block` holds these tokens now, and nobody will write to it. None where `key` names other content: a
        collision, which leaves it uncached."""
        if key in self.nodes:
            return None
        node = Node(key, parent, tokens, block)
        self.nodes[key] = node
        parent.add(node)
        self.version += 1
        return node

    def remove(self, node: Node) -> list[Node]:
        """Cached no longer; nor are the blocks behind it, which could not be found any more. Returns all of them."""
        assert_cached(node)
        gone = list(_all_behind(node))
        for one in gone:
            one.cached = False
            del self.nodes[one.key]
        if node.parent is not None:
            node.parent.drop(node)
        self.version += 1
        return gone

    def audit(self) -> None:
        """InvariantError names the first fault: keys and nodes name each other, each node is behind a cached one."""
        for key, node in self.nodes.items():
            parent = node.parent
            if node.key != key or not node.cached or parent is None or not parent.cached:
                raise InvariantError(f"block {node.block} is indexed under {key}, its key is {node.key}")
            if parent.child(node.tokens) is not node:
                raise InvariantError(f"block {node.block} is not behind the block that it continues")
            if node.num_tokens != self.block_size and (not self.keeps_tails or node.children()):
                raise InvariantError(f"block {node.block} is cached with {node.num_tokens} of {self.block_size} tokens")
        behind = sum(len(node.children()) for node in (*self.nodes.values(), *self._roots.values()))
        if behind != len(self.nodes):
            raise InvariantError(f"{behind} blocks follow others, {len(self.nodes)} are cached")


def assert_cached(node: Node) -> None:
    if not node.cached:
        raise InvariantError(f"block {node.block} is removed from the index twice")


def _all_behind(node: Node) -> Iterator[Node]:
    stack = [node]
    while stack:
        one = stack.pop()
        yield one
        stack += one.children()


PREFIX_CACHES: Registry[type[PrefixCache]] = Registry("prefix_cache", "pagedlab.prefix_cache", ("hash_chain", "radix"))
