"""The latest are kept, as many as are allowed by number and by size."""

from __future__ import annotations

from gnatswarm.shards.clients.latest import Latest


def test_no_more_than_so_many():
    latest: Latest[int] = Latest(3, 1000)
    for n in range(5):
        latest.add(n, 10)
    assert (list(latest), len(latest), latest.bytes) == ([2, 3, 4], 3, 30)
    assert (latest.oldest, latest.newest) == (2, 4)


def test_no_more_than_so_many_bytes():
    latest: Latest[str] = Latest(100, 1000)
    for name, size in (("a", 400), ("b", 300), ("c", 300), ("d", 1)):
        latest.add(name, size)
    assert (list(latest), latest.bytes) == (["b", "c", "d"], 601)


def test_the_newest_is_kept_whatever_it_takes():
    latest: Latest[str] = Latest(100, 1000)
    latest.add("small", 10)
    latest.add("large", 5000)
    assert list(latest) == ["large"]
    latest.add("small", 10)
    assert (list(latest), latest.bytes) == (["small"], 10)


def test_other_bounds_hold_at_once():
    latest: Latest[int] = Latest(100, 1000)
    for n in range(10):
        latest.add(n, 10)
    latest.bound(8, 1000)
    assert list(latest) == [2, 3, 4, 5, 6, 7, 8, 9]
    latest.bound(8, 35)
    assert list(latest) == [7, 8, 9]
    latest.drop_oldest()
    assert (list(latest), latest.bytes) == ([8, 9], 20)
