"""Routers: where each request goes, by what a router in front of servers can know."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from pagedlab.core.request import Request
from pagedlab.router.base import ROUTERS
from pagedlab.settings import LeastLoadedSettings, NameOnlySettings, PrefixAwareSettings

BLOCK = 4
AWARE = PrefixAwareSettings("prefix_aware", cache_threshold=0.5, balance_requests=3, balance_ratio=1.5)


def router(name, replicas=3, settings=None, blocks=100, seed=0):
    return ROUTERS[name](settings or NameOnlySettings(name), replicas, BLOCK, blocks, seed)


def request(id, tokens=8, new=4, **more):
    prompt = tokens if isinstance(tokens, list) else [100 * id + i for i in range(tokens)]
    return Request(id, np.array(prompt, dtype=np.int32), new, **more)


def test_round_robin_goes_around():
    chosen = router("round_robin")
    assert [chosen.route(request(i)) for i in range(7)] == [0, 1, 2, 0, 1, 2, 0]


def test_random_is_even_and_goes_by_the_seed_and_the_id_alone():
    routed = [router("random").route(request(i)) for i in range(3000)]
    assert routed == [router("random").route(request(i)) for i in range(3000)]
    assert routed != [router("random", seed=1).route(request(i)) for i in range(3000)]
    # Each a third: the standard deviation of a count is 26.
    assert all(abs(routed.count(replica) - 1000) < 110 for replica in range(3))


def test_the_least_loaded_by_requests_has_the_fewest_that_have_not_come_back():
    chosen = router("least_loaded", settings=LeastLoadedSettings("least_loaded", "requests"))
    asked = [request(i) for i in range(8)]
    assert [chosen.route(one) for one in asked[:6]] == [0, 1, 2, 0, 1, 2]
    chosen.answered(1, asked[4])
    assert chosen.route(asked[6]) == 1
    assert chosen.route(asked[7]) == 0
    assert (chosen.requests, chosen.tokens) == ([3, 2, 2], [36, 24, 24])


def test_the_least_loaded_by_tokens_counts_prompts_and_what_clients_declare():
    chosen = router("least_loaded", settings=LeastLoadedSettings("least_loaded", "tokens"))
    sizes = [(50, 50), (8, 4), (8, 4), (30, 6), (2, 1)]  # 100, 12, 12, 36 and 3 tokens
    assert [chosen.route(request(i, *size)) for i, size in enumerate(sizes)] == [0, 1, 2, 1, 2]


def test_prefix_aware_sends_what_begins_alike_to_one_replica():
    chosen = router("prefix_aware", settings=AWARE)
    beginnings = [[10 * k + i for i in range(8)] for k in range(3)]
    routed = {}
    for i in range(9):
        routed.setdefault(i % 3, []).append(chosen.route(request(i, [*beginnings[i % 3], 200 + i])))
    assert routed == {0: [0] * 3, 1: [1] * 3, 2: [2] * 3}


def test_prefix_aware_takes_a_short_match_for_none():
    chosen = router("prefix_aware", settings=AWARE)
    assert chosen.route(request(0, 16)) == 0
    # Half of the prompt was seen, which is not more than half: the replica that has seen the least.
    assert chosen.route(request(1, [*range(8), *range(900, 908)])) == 1
    assert chosen.route(request(2, [*range(12), *range(800, 804)])) == 0


def test_prefix_aware_goes_by_load_where_that_is_uneven():
    chosen = router("prefix_aware", replicas=2, settings=AWARE)
    alike = [request(i, list(range(8))) for i in range(6)]
    # Four more than none is more than three apart. From then on both have seen it, and the other has less to do.
    assert [chosen.route(one) for one in alike] == [0, 0, 0, 0, 1, 1]


def test_prefix_aware_remembers_as_much_as_a_pool_holds():
    chosen = router("prefix_aware", replicas=2, blocks=4, settings=replace(AWARE, balance_requests=99))
    first = list(range(8))
    assert chosen.route(request(0, first)) == 0
    assert chosen.route(request(1, list(range(100, 112)))) == 1
    assert chosen.route(request(2, list(range(200, 216)))) == 0  # which forgets what it had seen before
    assert chosen.route(request(3, first)) == 1  # new to both, and the other one remembers less


def test_prefix_aware_keeps_tenants_apart():
    chosen = router("prefix_aware", replicas=2, settings=AWARE)
    assert chosen.route(request(0, list(range(8)), cache_salt="a")) == 0
    assert chosen.route(request(1, list(range(8)), cache_salt="b")) == 1
    assert chosen.route(request(2, list(range(8)), cache_salt="a")) == 0


@pytest.mark.parametrize("name", list(ROUTERS))
def test_a_single_replica_gets_everything(name):
    settings = {"least_loaded": LeastLoadedSettings(name, "requests"), "prefix_aware": AWARE}.get(name)
    chosen = router(name, replicas=1, settings=settings)
    assert {chosen.route(request(i)) for i in range(20)} == {0}
