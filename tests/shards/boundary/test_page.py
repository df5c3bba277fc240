"""The shared page counts exactly, over processes, their deaths and their restarts."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from gnatswarm.broker.bounds import MOST_COUNTED_ACCOUNTS, MOST_PUBLISH_LIMITS
from gnatswarm.shards.boundary import page as page_module
from gnatswarm.shards.boundary.page import ACCOUNTS, PUBLISHERS, SLOTS, Page

# Adds and removes connections as fast as it can, for its slot, until it is killed.
_CHURN = """
import sys
from gnatswarm.shards.boundary.page import Page
page, shard = Page.attach(int(sys.argv[1])), int(sys.argv[2])
print("on", flush=True)
held = 0
while True:
    while held < 50 and page.try_add_connection(shard, 100):
        held += 1
    while held > 10:
        page.remove_connection(shard)
        held -= 1
"""

_IDS = """
import sys
from gnatswarm.shards.boundary.page import Page
page = Page.attach(int(sys.argv[1]))
ids = [page.next_client_id() for _ in range(20000)]
print(*ids)
"""

# The places of some accounts, each asked for at a time of its own.
_PLACES = """
import random, sys
from gnatswarm.shards.boundary.page import Page
page = Page.attach(int(sys.argv[1]))
names = [b"account %d" % number for number in range(3000)]
asked = random.Random(int(sys.argv[2])).sample(names, len(names))
places = {name: page.account_place(name) for name in asked}
print(*[places[name] for name in names])
"""


def attached(page: Page) -> Page:
    return Page.attach(os.dup(page.fd))


def test_the_next_client_id_is_read_without_taking_it() -> None:
    page = Page.create()
    assert [page.peek_client_id(), page.peek_client_id()] == [1, 1]
    assert page.next_client_id() == 1
    assert page.peek_client_id() == 2


def test_handshakes_are_counted_by_the_second_that_begins_with_the_first_of_them() -> None:
    page = Page.create()
    other = attached(page)
    assert [one.try_handshake(3, 5000 + after) for after, one in enumerate((page, other, page, other, page))] == [
        True,
        True,
        True,
        False,
        False,
    ]
    assert not other.try_handshake(3, 4999), "a clock that was read earlier begins no second"
    assert not other.try_handshake(3, 5999)
    assert [other.try_handshake(1, 6000), page.try_handshake(1, 6000)] == [True, False]
    assert page.try_handshake(1) and not other.try_handshake(1), "by the clock"


def test_two_mappings_show_the_same_page() -> None:
    page = Page.create()
    other = attached(page)
    assert [page.next_client_id(), other.next_client_id(), page.next_client_id()] == [1, 2, 3]
    assert other.created_us == page.created_us
    assert abs(page.created_us - time.time() * 1e6) < 10e6
    other.store(5, "in_msgs", 2**63)
    assert page.snapshot(5)["in_msgs"] == 2**63
    assert page.snapshot(4)["in_msgs"] == 0


@pytest.mark.parametrize("limit", [0, -1])
def test_no_limit(limit: int) -> None:
    page = Page.create()
    assert all(page.try_add_connection(0, limit) for _ in range(1000))
    assert page.connections == 1000


def test_the_limit_is_of_the_whole_broker_and_exact() -> None:
    page = Page.create()
    assert [page.try_add_connection(number % 3, 4) for number in range(6)] == [True] * 4 + [False] * 2
    page.remove_connection(1)
    assert page.try_add_connection(2, 4)
    assert not page.try_add_connection(2, 4)
    assert page.connections == 4
    assert [page.snapshot(shard)["connections"] for shard in range(3)] == [2, 0, 2]


def test_a_dead_shards_connections_are_taken_off_once() -> None:
    page = Page.create()
    for shard in (0, 0, 0, 1):
        page.try_add_connection(shard, 0)
    page.store(0, "subscriptions", 7)
    page.store(0, "in_msgs", 9)
    page.note_boot(0, 4711)
    assert page.forget_connections(0) == 3
    assert page.forget_connections(0) == 0
    assert page.connections == 1
    slot = page.snapshot(0)
    assert (slot["connections"], slot["subscriptions"], slot["pid"]) == (0, 0, 0)
    # Totals never fall.
    assert (slot["in_msgs"], slot["boots"]) == (9, 1)


def test_an_account_counts_who_moves_once_and_a_dead_shard_takes_its_clients_along() -> None:
    page = Page.create()
    place = page.account_place(b"A")
    assert [page.try_add_to_account(shard, place, 4) for shard in (0, 0, 1, 1, 2)] == [True] * 4 + [False]
    for shard, new in ((0, 1), (0, 2), (1, 2)):
        page.pass_to_account(shard, place)
        assert page.account_connections(place) == 4
        page.take_to_account(new, place)
        assert page.account_connections(place) == 4
    assert page.forget_connections(2) == 0  # two moved to it
    assert page.account_connections(place) == 2
    page.forget_connections(0)  # nobody is left there
    assert page.account_connections(place) == 2
    page.remove_from_account(1, place)
    page.forget_connections(1)
    assert page.account_connections(place) == 0
    assert page.try_add_to_account(0, place, 1) and not page.try_add_to_account(2, place, 1)


def test_who_is_lost_on_the_way_counts_for_an_account_until_nobody_is_on_the_way() -> None:
    page = Page.create()
    places = [page.account_place(name) for name in (b"A", b"B")]
    for place in places:
        for _ in range(2):
            page.try_add_connection(0, 0)
            page.try_add_to_account(0, place, 0)
    page.expect_connection(1)
    page.pass_connection(0)
    page.pass_to_account(0, places[0])
    page.doubt_connections()
    page.settle_connections()
    assert [page.account_connections(place) for place in places] == [2, 2]
    page.expect_no_more(1)
    page.settle_connections()
    assert [page.account_connections(place) for place in places] == [1, 2]
    assert page.connections == 3
    page.settle_connections()
    assert [page.account_connections(place) for place in places] == [1, 2]


def test_as_many_accounts_as_a_configuration_may_have_are_counted_apart() -> None:
    assert (ACCOUNTS, PUBLISHERS) == (MOST_COUNTED_ACCOUNTS, MOST_PUBLISH_LIMITS)
    page = Page.create()
    names = [b"account %d" % number for number in range(ACCOUNTS)]
    places = [page.account_place(name) for name in names]
    assert sorted(places) == list(range(ACCOUNTS))
    assert page.account_place(b"one more") == -1
    for place in places[::1000]:
        assert [page.try_add_to_account(shard, place, 1) for shard in (1, 0)] == [True, False]
    other = attached(page)
    assert [other.account_place(name) for name in names[::1000]] == places[::1000]
    page.forget_connections(1)
    assert {page.account_connections(place) for place in places} == {0}


def test_as_many_publishers_as_a_configuration_may_have_are_counted_apart() -> None:
    page = Page.create()
    words = {page.publisher_words(b"user %d" % number) for number in range(PUBLISHERS)}
    assert len(words) == PUBLISHERS
    assert page.publisher_words(b"one more") in words


def test_few_accounts_have_places_that_are_together() -> None:
    page = Page.create()
    assert [page.account_place(name) for name in (b"A", b"B", b"A", b"C")] == [0, 1, 0, 2]


def test_an_account_whose_shard_was_killed_before_it_had_a_place_has_one() -> None:
    page = Page.create()
    page_module.put_account_key(page, b"A")
    assert [page.account_place(name) for name in (b"B", b"A", b"A")] == [0, 1, 1]


def test_accounts_and_publishers_that_are_configured_no_more_make_room_for_others() -> None:
    page = Page.create()
    for first in range(0, 3 * ACCOUNTS, ACCOUNTS // 2):  # each reload has half of them anew
        names = [b"account %d" % number for number in range(first, first + ACCOUNTS)]
        page.keep_names(names, [])
        assert sorted(page.account_place(name) for name in names) == list(range(ACCOUNTS))
    for first in range(0, 3 * PUBLISHERS, PUBLISHERS):
        names = [b"user %d" % number for number in range(first, first + PUBLISHERS)]
        assert len({page.publisher_words(name) for name in names}) >= PUBLISHERS - 10
        kept = [page.publisher_words(name) for name in names[:10]]
        page.keep_names([], names[:10])
        page.keep_names([], names[:10])  # as each reload does: before shards are told, and when they have confirmed it
        assert [page.publisher_words(name) for name in names[:10]] == kept


def test_an_account_keeps_its_place_while_it_has_clients_and_begins_anew_behind_that() -> None:
    page = Page.create()
    places = [page.account_place(name) for name in (b"A", b"B", b"C")]
    assert page.try_add_to_account(0, places[0], 1) and page.try_add_to_account(0, places[1], 1)
    page.pass_to_account(0, places[1])
    page.take_to_account(1, places[1])
    page.keep_names([b"C"], [])
    assert [page.account_place(name) for name in (b"A", b"B", b"C")] == places
    page.remove_from_account(1, places[1])  # which leaves 1 and -1
    page.keep_names([b"A", b"D", b"E"], [])
    assert page.account_connections(page.account_place(b"D")) == 0
    assert page.account_place(b"A") == places[0] and not page.try_add_to_account(1, places[0], 1)
    assert {page.account_place(b"D"), page.account_place(b"E")} == set(places[1:])


def test_an_account_whose_clients_have_moved_billions_of_times_is_counted() -> None:
    """A shard's own number, which each client that moves there makes smaller, goes round."""
    page = Page.create()
    place = page.account_place(b"A")
    page_module.put_account_connections(page, 0, place, 2**31 - 1)
    page_module.put_account_connections(page, 1, place, -(2**31) + 1)
    for _ in range(3):
        assert page.try_add_to_account(0, place, 3)
        page.pass_to_account(0, place)
        page.take_to_account(1, place)
    assert page.account_connections(place) == 3 and not page.try_add_to_account(1, place, 3)
    page.forget_connections(1)
    assert page.account_connections(place) == 0
    page.doubt_connections()
    page_module.put_account_connections(page, 0, place, 2**31 - 1)
    page_module.put_account_connections(page, 1, place, -(2**31) + 8)
    assert page.account_connections(place) == 7
    page.settle_connections()
    assert page.account_connections(place) == 0


def test_processes_that_ask_at_the_same_time_are_given_the_same_places() -> None:
    page = Page.create()
    processes = [run(_PLACES, page, str(seed)) for seed in range(3)]
    told = [process.communicate(timeout=30)[0] for process in processes]
    assert len(set(told)) == 1
    places = [int(place) for place in told[0].split()]
    assert len(set(places)) == len(places) == 3000


def test_slots_are_0_to_63() -> None:
    page = Page.create()
    page.try_add_connection(SLOTS - 1, 0)
    for shard in (-1, SLOTS):
        with pytest.raises(IndexError):
            page.try_add_connection(shard, 0)
        with pytest.raises(IndexError):
            page.snapshot(shard)
    with pytest.raises(KeyError):
        page.store(0, "connections", 1)


def test_what_is_no_page_is_refused(tmp_path: Path) -> None:
    with (tmp_path / "small").open("w+b") as file, pytest.raises(ValueError, match="not a page"):
        Page.attach(file.fileno())
    page = Page.create()
    with (tmp_path / "zeros").open("w+b") as file:
        file.truncate(os.fstat(page.fd).st_size)
        with pytest.raises(ValueError, match="not a page of version"):
            Page.attach(file.fileno())
        file.fileno()  # left open


def test_nobody_can_shrink_it() -> None:
    page = Page.create()
    with pytest.raises(PermissionError):
        os.ftruncate(page.fd, 0)


def test_a_closed_page_is_still_mapped() -> None:
    page = Page.create()
    page.close()
    page.close()
    assert page.fd == -1
    assert page.next_client_id() == 1


def run(code: str, page: Page, *arguments: str) -> subprocess.Popen[str]:
    os.set_inheritable(page.fd, True)
    return subprocess.Popen(
        [sys.executable, "-P", "-c", code, str(page.fd), *arguments],
        pass_fds=[page.fd],
        stdout=subprocess.PIPE,
        text=True,
    )


def test_ids_are_dense_and_unique_over_processes() -> None:
    page = Page.create()
    processes = [run(_IDS, page) for _ in range(3)]
    ids = [int(number) for process in processes for number in process.communicate(timeout=30)[0].split()]
    assert sorted(ids) == list(range(1, 60_001))


def test_processes_killed_inside_their_changes_leave_the_count_exact() -> None:
    page = Page.create()
    page.try_add_connection(63, 0)
    seed = random.Random(4)
    killed_inside = 0
    for _round in range(12):
        processes = [run(_CHURN, page, str(shard)) for shard in range(2)]
        for process in processes:
            assert process.stdout is not None
            assert process.stdout.readline() == "on\n"
        threading.Event().wait(seed.uniform(0.0, 0.01))  # the moment of death is the test's input
        for shard, process in enumerate(processes):
            process.send_signal(signal.SIGKILL)
            process.wait()
            assert process.stdout is not None
            process.stdout.close()
            killed_inside += page_module.is_inside_change(page, shard)
            assert page.connections <= 101
            page.forget_connections(shard)
        assert page.connections == 1, f"after round {_round}, {killed_inside} killed inside a change"


@pytest.mark.parametrize("steps", range(1, 5))
@pytest.mark.parametrize("change", ["add", "remove"])
def test_killed_after_each_step_of_a_change(change: str, steps: int) -> None:
    page = Page.create()
    for shard in (0, 0, 1, 1, 1):
        page.try_add_connection(shard, 0)
    page_module.begin_change(page, 0, change, steps)
    page.forget_connections(0)
    assert page.connections == 3
    assert page.try_add_connection(0, 4)
    assert not page.try_add_connection(0, 4)


def test_a_count_that_could_not_be_settled_at_once_is_settled_later() -> None:
    """Another shard lost its processor inside a change of its own, and goes on."""
    page = Page.create()
    for shard in (0, 0, 1):
        page.try_add_connection(shard, 0)
    page_module.begin_change(page, 0, "add", 2)  # killed there
    page_module.begin_change(page, 1, "add", 1)  # waits there
    page.forget_connections(0)
    assert page.settle_connections() == 0
    assert page.connections == 2
    page_module.end_change(page, 1)
    assert page.settle_connections() == 1
    assert page.connections == 1
    assert page.settle_connections() == 0


def test_a_stopped_shard_inside_a_change_does_not_hold_the_router() -> None:
    page = Page.create()
    for shard in (0, 0, 1):
        page.try_add_connection(shard, 0)
    page_module.begin_change(page, 1, "add", 2)  # stopped there, alive
    page_module.begin_change(page, 0, "add", 2)  # killed there
    page.forget_connections(0)
    # Shard 1 is found hung, and killed: now it comes out even.
    page.forget_connections(1)
    assert page.connections == 0


def test_a_client_that_moves_counts_once_and_takes_nobodys_place() -> None:
    page = Page.create()
    page.try_add_connection(0, 0)
    page.expect_connection(1)
    assert page.connections == 1
    assert page.try_add_connection(2, 2), "there is room for one more"
    page.pass_connection(0)
    assert page.connections == 2, "it is on its way, and keeps its place"
    assert not page.try_add_connection(2, 2)
    page.take_connection(1)
    assert page.connections == 2
    assert [page.snapshot(shard)["connections"] for shard in range(3)] == [0, 1, 1]
    page.doubt_connections()
    assert page.settle_connections() == 0


@pytest.mark.parametrize("dead", [None, 0, 1], ids=["the way broke", "the old shard died", "the new shard died"])
def test_who_is_lost_on_the_way_counts_no_more(dead: int | None) -> None:
    page = Page.create()
    for _ in range(3):
        page.try_add_connection(0, 0)
        page.expect_connection(1)
    page.pass_connection(0)
    page.pass_connection(0)  # lost
    page.take_connection(1)
    if dead is None:
        page.doubt_connections()
    else:
        page.forget_connections(dead)
    if dead != 1:
        assert page.settle_connections() == 0, "not before it is known what has come"
        page.expect_no_more(1)
        page.expect_no_more(1)
        page.settle_connections()
    assert page.connections == sum(page.snapshot(shard)["connections"] for shard in range(2))
    assert page.connections == {None: 2, 0: 1, 1: 1}[dead]


def test_a_router_that_takes_over_settles_what_the_one_before_it_could_not() -> None:
    page = Page.create()
    page.try_add_connection(0, 0)
    page.expect_connection(1)
    page.pass_connection(0)  # lost
    page.doubt_connections()
    assert page.settle_connections() == 0, "it is still expected"
    after = attached(page)
    after.expect_no_more(1)
    assert after.settle_connections() == 1
    assert after.connections == 0
