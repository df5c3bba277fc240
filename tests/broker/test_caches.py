"""The match caches of all accounts of a process together are bounded: each has its bound, and accounts may be many."""

from __future__ import annotations

import gc
import itertools

import pytest

from gnatswarm.broker import rules
from gnatswarm.broker.fanout import Fanout
from gnatswarm.broker.mesh import Mesh
from gnatswarm.probes.sublist import all_caches, fill_cache

NUMBERS = itertools.count(0, 4)  # of subjects
LONG = 30_000  # bytes of a subject, to fill much with few
_BYTES_NOW, MOST, LEFT = all_caches()


@pytest.fixture
def mesh() -> Mesh:
    gc.collect()  # those of other tests
    return Mesh(Fanout(), 0)


def fill(mesh: Mesh, accounts: list[bytes]) -> None:
    """More than all may have, in equal parts, of ever new subjects."""
    for first in NUMBERS:
        for name in accounts:
            fill_cache(mesh.account(name), first, 4, LONG)
            if all_caches()[0] > MOST:
                return


def test_what_is_too_much_is_forgotten_a_little_at_a_time(mesh: Mesh) -> None:
    accounts = [b"%d" % number for number in range(200)]
    fill(mesh, accounts)
    least, step = MOST, True
    while step:
        step = mesh.trim_caches()
        assert mesh.is_trimming == step
        least = min(least, all_caches()[0])
    assert LEFT * 0.9 < least <= LEFT
    assert not mesh.trim_caches() and not mesh.is_trimming
    emptied = [name for name in accounts if not mesh.account(name).cache_count]
    assert 0.03 * len(accounts) < len(emptied) < 0.1 * len(accounts)


def test_one_account_may_have_all_that_its_own_bound_allows(mesh: Mesh) -> None:
    sublist, elsewhere = mesh.account(b"$G"), all_caches()[0]
    sublist.set_rules([rules.Mapping(b"m.*", [(b"n.{{wildcard(1)}}", 100)])], [])
    fill_cache(sublist, 0, 3000, LONG)
    assert sublist.cache_count < 3000  # its bound
    fill_cache(sublist, 0, 300_000, 1)
    assert all_caches()[0] - elsewhere < MOST


def test_an_emptied_cache_is_small_and_fills_again(mesh: Mesh) -> None:
    elsewhere = all_caches()[0]
    crowded, others = (
        mesh.account(b"crowded"),
        [mesh.account(b"other"), mesh.account(b"another"), mesh.account(b"third")],
    )
    fill_cache(crowded, 0, 200_000, 1)
    wide = all_caches()[0] - elsewhere - crowded.cache_bytes
    steps = 0
    while crowded.cache_count:
        fill(mesh, [b"other", b"another", b"third"])
        before = crowded.cache_count
        while mesh.trim_caches():
            assert before - crowded.cache_count <= 8192
            before = crowded.cache_count
            steps += 1
    assert steps > 10
    assert all_caches()[0] - elsewhere - sum(other.cache_bytes for other in others) < wide / 4
    fill_cache(crowded, 0, 1000, 1)
    assert crowded.cache_count > 900


def test_caches_of_rules_are_emptied_too(mesh: Mesh) -> None:
    """Each subject that is published where there are mappings has an entry there as well."""
    accounts = [b"a", b"b", b"c", b"d", b"e", b"f"]
    for name in accounts:
        mesh.account(name).set_rules([rules.Mapping(b"m.*", [(b"n.{{wildcard(1)}}", 100)])], [])
    for _round in range(10):
        fill(mesh, accounts)
        while mesh.trim_caches():
            pass
        assert all_caches()[0] <= LEFT


def test_what_is_gone_counts_no_more() -> None:
    gc.collect()
    before = all_caches()[0]
    mesh = Mesh(Fanout(), 0)
    fill_cache(mesh.account(b"a"), 0, 10_000, 1)
    fill(mesh, [b"a", b"b", b"c", b"d"])
    while mesh.trim_caches():
        pass
    del mesh
    gc.collect()
    assert all_caches()[0] == before
