"""Each promise by hand-written histories: the checker accepts those that keep it and names what breaks it."""

from __future__ import annotations

import pytest

from tests.histories.checker import KINDS, Violation, check
from tests.histories.events import Pub, read, write
from tests.histories.script import Script

# Each history is told twice, kept and broken: `breaks` is the difference.
both = pytest.mark.parametrize("breaks", [False, True], ids=["kept", "broken"])


def subscribed(*, queue: str = "") -> Script:
    """Connection 1 subscribes, as sid 1, and has its PONG; 2 publishes."""
    script = Script(1, 2)
    script.sub(1, 1, "a.*", queue)
    script.fence(1)
    return script


def verdict(breaks: bool, *kinds: str) -> list[str]:
    return sorted(kinds) if breaks else []


@both
def test_what_is_published_after_the_subscribers_pong_is_delivered(breaks):
    script = subscribed()
    script.pub(2, 1, "a.b")
    script.fence(2)
    if not breaks:
        script.msg(1, 1, 1)
    assert script.kinds() == verdict(breaks, "lost")


def test_what_is_published_before_the_subscribers_pong_may_be_missed():
    script = Script(1, 2)
    script.sub(1, 1, "a")
    script.ping(1)
    script.pub(2, 1, "a")
    script.pong(1)
    script.fence(2)
    assert script.kinds() == []


def test_what_is_acknowledged_after_the_unsub_may_be_missed():
    script = subscribed()
    script.pub(2, 1, "a.b")
    script.unsub(1, 1)
    script.fence(2)
    assert script.kinds() == []


def test_what_was_never_acknowledged_may_be_missed():
    script = subscribed()
    script.pub(2, 1, "a.b")
    script.close(2, "reset")
    assert script.kinds() == []


def test_what_its_connection_did_not_live_to_see_may_be_missed():
    script = subscribed()
    script.pub(2, 1, "a.b")
    script.fence(2)
    script.close(1, "shut")
    script.closed(1)
    assert script.kinds() == []


@both
def test_a_client_gets_what_it_publishes_itself_behind_its_sub(breaks):
    script = Script(1)
    script.sub(1, 1, "a")
    script.pub(1, 1, "a")
    script.ping(1)
    if not breaks:
        script.msg(1, 1, 1)
    script.pong(1)
    assert script.kinds() == verdict(breaks, "lost")


@both
def test_what_was_acknowledged_comes_before_a_later_pong(breaks):
    script = subscribed()
    script.pub(2, 1, "a.b")
    script.fence(2)
    if breaks:
        script.fence(1)
    script.msg(1, 1, 1)
    assert script.kinds() == verdict(breaks, "late")


def test_a_pong_that_was_asked_for_before_may_come_first():
    script = subscribed()
    script.pub(2, 1, "a.b")
    script.ping(1)
    script.fence(2)
    script.pong(1)
    script.msg(1, 1, 1)
    assert script.kinds() == []


@both
def test_messages_of_one_publisher_come_in_order(breaks):
    script = subscribed()
    script.pub(2, 1, "a.b")
    script.pub(2, 2, "a.b")
    for message in (2, 1) if breaks else (1, 2):
        script.msg(1, 1, message)
    assert script.kinds() == verdict(breaks, "order")


@both
def test_answers_to_another_account_come_in_order_on_one_reply_subject(breaks):
    """On two of them, one may be led back by a shard that its client has left."""
    script = Script(1, 2)
    script.sub(1, 1, "a.*")
    script.fence(1)
    script.pub(2, 1, "a.b", crosses=True)
    script.pub(2, 2, "a.b" if breaks else "a.c", crosses=True)
    script.msg(1, 1, 2)
    script.msg(1, 1, 1)
    assert script.kinds() == verdict(breaks, "order")


@both
def test_messages_of_two_publishers_come_in_any_order_unless_the_first_was_acknowledged(breaks):
    script = Script(1, 2, 3)
    script.sub(1, 1, "a")
    script.fence(1)
    script.pub(2, 1, "a")
    if breaks:
        script.fence(2)
    script.pub(3, 2, "a")
    script.msg(1, 1, 2)
    script.msg(1, 1, 1)
    assert script.kinds() == verdict(breaks, "overtaken")


@both
def test_no_message_comes_twice(breaks):
    script = subscribed()
    script.sub(1, 2, "a.b")
    script.pub(2, 1, "a.b")
    script.msg(1, 1, 1)
    script.msg(1, 1 if breaks else 2, 1)
    assert script.kinds() == verdict(breaks, "twice")


@both
def test_what_was_acknowledged_before_a_sub_does_not_come(breaks):
    script = Script(1, 2)
    script.pub(2, 1, "a")
    script.ping(2)
    if breaks:
        script.pong(2)
    script.sub(1, 1, "a")
    if not breaks:
        script.pong(2)
    script.msg(1, 1, 1)
    assert script.kinds() == verdict(breaks, "early")


@both
def test_nothing_comes_after_the_pong_of_an_unsub(breaks):
    script = subscribed()
    script.pub(2, 1, "a.b")
    script.unsub(1, 1)
    script.ping(1)
    if breaks:
        script.pong(1)
    script.msg(1, 1, 1)
    if not breaks:
        script.pong(1)
    assert script.kinds() == verdict(breaks, "after the end")


@both
def test_nothing_comes_of_what_the_client_itself_published_behind_its_unsub(breaks):
    script = Script(1)
    script.sub(1, 1, "a")
    if breaks:
        script.unsub(1, 1)
    script.pub(1, 1, "a")
    if not breaks:
        script.unsub(1, 1)
    script.msg(1, 1, 1)
    assert script.kinds() == verdict(breaks, "after the end")


def limited(most: int, *, queue: str = "") -> Script:
    script = Script(1, 2)
    script.sub(1, 1, "a", queue)
    script.unsub(1, 1, most)
    script.fence(1)
    for message in range(1, 5):
        script.pub(2, message, "a")
    script.fence(2)
    return script


@both
def test_never_more_than_max(breaks):
    script = limited(2)
    for message in range(1, 4 if breaks else 3):
        script.msg(1, 1, message)
    assert script.kinds() == verdict(breaks, "over max")


@both
def test_never_less_than_max(breaks):
    script = limited(2)
    for message in range(1, 2 if breaks else 3):
        script.msg(1, 1, message)
    assert script.kinds() == verdict(breaks, "lost")


def test_more_than_max_may_come_before_the_unsub_is_read():
    script = subscribed()
    script.unsub(1, 1, 1)
    for message in (1, 2):
        script.pub(2, message, "a.b")
        script.msg(1, 1, message)
    assert script.kinds() == []


def group(*members: int, servers: int = 1) -> Script:
    """Each of these connections has a member of q, sid 1, and its PONG; 9 publishes."""
    script = Script(*members, 9, servers=servers)
    for member in members:
        script.sub(member, 1, "a.>" if member % 2 else "a.b", "q")
        script.fence(member)
    return script


@pytest.mark.parametrize(("takers", "kinds"), [((), ["group lost"]), ((1,), []), ((2,), []), ((1, 2), ["twice"])])
def test_one_member_of_a_queue_group_gets_a_message_whatever_their_patterns(takers, kinds):
    script = group(1, 2)
    script.pub(9, 1, "a.b")
    for taker in takers:
        script.msg(taker, 1, 1)
    script.fence(9)
    assert script.kinds() == kinds


@both
def test_a_message_is_lost_only_with_the_connection_of_its_member(breaks):
    script = group(1, 2)
    script.pub(9, 1, "a.b")
    script.fence(9)
    if breaks:
        script.fence(2)
    script.close(2, "reset")
    assert script.kinds() == verdict(breaks, "group lost")


@both
def test_a_member_whose_end_the_broker_has_told_is_chosen_no_more(breaks):
    script = group(1, 2)
    script.close(2, "shut")
    if breaks:
        script.closed(2)
    script.pub(9, 1, "a.b")
    script.fence(9)
    assert script.kinds() == verdict(breaks, "group lost")


@both
def test_the_known_limit_of_lingering_members_is_excused_and_counted(breaks):
    """The chosen connection is closed while the last member unsubscribes; broken: the last member stays."""
    script = group(1, 2)
    script.open(3)
    script.close(2, "shut")
    script.closed(2)
    script.pub(9, 1, "a.b")
    script.sub(3, 1, "a.b", "q")
    script.fence(3)
    if not breaks:
        script.unsub(1, 1)
    script.fence(9)
    report = script.report()
    excused = report.counts["excused: a stale choice while the last members unsubscribe"]
    assert (sorted(report.by_kind), excused) == ((["group lost"], 0) if breaks else ([], 1))


@both
def test_a_max_on_another_server_while_the_last_members_unsubscribe_is_excused_and_counted(breaks):
    """One server would give it to the member that unsubscribes behind it; broken: it is one server."""
    script = group(1, servers=1 if breaks else 2)
    script.open(2)
    script.sub(2, 1, "a.b", "q")
    script.unsub(2, 1, 1)
    script.fence(2)
    script.sub(9, 1, "a.b", "q")
    script.pub(9, 1, "a.b")
    script.unsub(9, 1)
    script.unsub(1, 1)
    script.fence(9)
    report = script.report()
    excused = report.counts["excused: one had its max on another server while the last members unsubscribe"]
    assert (sorted(report.by_kind), excused) == ((["group lost"], 0) if breaks else ([], 1))


@both
def test_a_message_is_not_lost_while_one_member_follows_another(breaks):
    """Two responders one after the other, without a moment between them, or with one."""
    script = group(1)
    script.open(2)
    script.pub(9, 1, "a.b")
    script.sub(2, 1, "a.b", "q")
    if breaks:
        script.fence(2)
        script.unsub(1, 1)
    else:
        script.unsub(1, 1)
        script.fence(2)
    script.fence(9)
    assert script.kinds() == verdict(breaks, "group lost")


@both
def test_order_within_a_queue_group_holds_unless_a_member_left(breaks):
    script = group(1, 2)
    for message in (1, 2):
        script.pub(9, message, "a.b")
    if not breaks:
        script.unsub(2, 1)
    script.msg(1, 1, 2)
    script.msg(1, 1, 1)
    assert script.kinds() == verdict(breaks, "order")


def test_what_is_sent_on_may_come_before_what_was_published_first():
    """The second message is for a member of its subject alone, which leaves; the first is for another one."""
    script = group(1)
    script.open(2)
    script.sub(2, 1, "a.c", "q")
    script.fence(2)
    script.pub(9, 1, "a.b")
    script.pub(9, 2, "a.c")
    script.unsub(2, 1)
    script.msg(1, 1, 2)
    script.msg(1, 1, 1)
    report = script.report()
    assert not report.violations
    assert report.counts["excused: sent on, and so in another order"] == 1


def test_a_member_that_left_may_take_what_nobody_else_can_until_its_pong():
    script = group(1)
    script.pub(9, 1, "a.b")
    script.unsub(1, 1)
    script.ping(1)
    script.msg(1, 1, 1)
    script.pong(1)
    assert script.kinds() == []


@both
def test_503_where_everybody_knew_that_nobody_responds(breaks):
    script = subscribed()
    script.unsub(1, 1)
    script.fence(1)
    script.request(2, 1, "a.b")
    script.ping(2)
    if not breaks:
        script.nobody(2, 1)
    script.pong(2)
    assert script.kinds() == verdict(breaks, "503 missing")


@both
def test_503_where_the_only_responder_had_its_max(breaks):
    script = Script(1, 2)
    script.sub(1, 1, "a")
    script.unsub(1, 1, 1)
    script.fence(1)
    script.pub(2, 1, "a")
    script.msg(1, 1, 1)
    script.fence(1)
    script.request(2, 2, "a")
    script.ping(2)
    if not breaks:
        script.nobody(2, 2)
    script.pong(2)
    assert script.kinds() == verdict(breaks, "503 missing")


def test_neither_503_nor_an_answer_where_somebody_was_just_leaving():
    for is_told in (False, True):
        script = subscribed()
        script.request(2, 1, "a.b")
        script.unsub(1, 1)
        if is_told:
            script.nobody(2, 1)
        script.fence(2)
        assert script.kinds() == []


@both
def test_no_503_where_somebody_was_there(breaks):
    script = subscribed(queue="q")
    script.request(2, 1, "a.b")
    script.ping(2)
    if breaks:
        script.nobody(2, 1)
    else:
        script.msg(1, 1, 1)
    script.pong(2)
    # Nobody got the message, so the same breach has a second half.
    assert script.kinds() == verdict(breaks, "503 wrong", "group lost")


def test_no_503_for_what_somebody_got():
    script = Script(1, 2)
    script.sub(1, 1, "a")
    script.request(2, 1, "a")
    script.nobody(2, 1)
    script.msg(1, 1, 1)
    assert script.kinds() == ["503 wrong"]


def test_one_503_for_one_request_before_the_pong():
    script = Script(2)
    script.request(2, 1, "a")
    script.nobody(2, 1)
    script.nobody(2, 1)
    assert script.kinds() == ["503 wrong"]
    script = Script(2)
    script.request(2, 1, "a")
    script.fence(2)
    script.nobody(2, 1)
    assert script.kinds() == ["503 missing"]


@pytest.mark.parametrize("difference", [{"subject": "a.c"}, {"size": 9}])
def test_a_message_comes_as_it_was_published(difference):
    script = subscribed()
    script.pub(2, 1, "a.b")
    script.msg(1, 1, 1, **difference)
    assert script.kinds() == ["not asked for"]


def test_a_message_comes_to_whom_it_matches():
    script = subscribed()
    script.pub(2, 1, "b")
    script.msg(1, 1, 1)
    assert script.kinds() == ["not asked for"]


def test_a_message_comes_for_a_subscription_that_its_client_made():
    script = subscribed()
    script.pub(2, 1, "a.b")
    script.msg(1, 1, 1)
    script.msg(1, 2, 1)
    assert script.kinds() == ["strange"]


@both
def test_only_a_killed_or_leaving_shards_connections_end(breaks):
    script = Script()
    script.open(1, "0")
    script.open(2, "1")
    script.fault("kill -9", "1")
    script.closed(1 if breaks else 2)
    assert script.kinds() == verdict(breaks, "disconnected")


def test_a_connection_to_the_killed_shards_successor_stays():
    script = Script()
    script.fault("kill -9", "1")
    script.mended()
    script.open(2, "1")
    script.closed(2)
    assert script.kinds() == ["disconnected"]


@both
def test_a_ping_is_answered(breaks):
    script = Script(1)
    script.ping(1)
    if breaks:
        script.fence(1)  # one PONG for two PINGs
    else:
        script.pong(1)
    assert script.kinds() == verdict(breaks, "no PONG")


def test_an_error_is_no_promise_kept():
    script = Script(1)
    script.odd(1, "-ERR 'Slow Consumer'")
    assert script.kinds() == ["strange"]


def test_a_violation_names_the_events_in_their_order():
    script = subscribed()
    script.pub(2, 1, "a.b")
    script.fence(2)
    report = script.report()
    (one,) = report.violations
    assert isinstance(one, Violation)
    assert one.kind in KINDS
    told = one.told(began_at=0).splitlines()
    assert [line.split()[2] for line in told[1:]] == ["Sub", "Pong", "Pub", "Pong", "Ping", "Pong"]
    assert "subject='a.b'" in told[3]


def test_a_history_is_read_as_it_was_written(tmp_path):
    script = subscribed()
    script.request(2, 1, "a.b")
    script.nobody(2, 1)
    script.fault("kill -9", "1")
    script.mended()
    script.report()
    write(tmp_path / "history.ndjson", script.events)
    assert list(read(tmp_path / "history.ndjson")) == script.events
    assert check(read(tmp_path / "history.ndjson")).by_kind == {"503 wrong": 1, "lost": 1}


def test_a_history_without_an_end_is_none(tmp_path):
    with pytest.raises(ValueError, match="no end"):
        check([Script(1).events[0]])
    script = Script(1)
    script.sub(1, 1, "a")
    script.sub(1, 1, "b")
    with pytest.raises(ValueError, match="a sid twice"):
        script.report()
    assert Pub in map(type, limited(1).events)
