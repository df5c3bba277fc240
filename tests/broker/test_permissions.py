"""What may be published and subscribed to, and what is left out of a granted wildcard: against an obvious model.

The model knows no trie: a pattern covers another if it matches everything that the other one does, which is tried with
every subject of a small alphabet; a rule is a row in a list.
"""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gnatswarm.broker import options
from gnatswarm.broker.errors import PermissionsViolation
from gnatswarm.broker.limits import Limits
from gnatswarm.broker.permissions import Permissions, Rules
from gnatswarm.broker.quoted import quoted
from gnatswarm.probes.engine import replies_allowed
from tests.support.engine import NO_RESPONDERS, QUIET, Engine, EngineClient, frames
from tests.support.model import is_valid_subject, matches

TOKENS = ("a", "b", "c")
# Two tokens more than any pattern below has: what a '>' stands for is seen.
UNIVERSE = [".".join(words) for size in range(1, 6) for words in itertools.product(TOKENS, repeat=size)]

pattern_token = st.sampled_from(["a", "b", "*"])
patterns = (
    st.lists(pattern_token, min_size=1, max_size=3)
    .flatmap(lambda words: st.sampled_from([words, [*words, ">"], [*words[:-1], ">"]]))
    .map(".".join)
)
subjects = st.sampled_from(UNIVERSE) | st.text(alphabet="ab.*>", min_size=1, max_size=7)
queue_names = st.sampled_from(["", "", "q", "v1.x", "v1.y", "r"])
queue_rules = st.sampled_from(["", "", "", "q", "v1.*", "*.x", "v1.>", "r"])
sub_rules = st.tuples(patterns, queue_rules).map(lambda pair: " ".join(pair).strip())
allow_lists = st.none() | st.lists(sub_rules, max_size=4).map(tuple)
deny_lists = st.lists(sub_rules, max_size=4).map(tuple)


def covers(rule: str, pattern: str) -> bool:
    """Whether everything that `pattern` matches is matched by `rule`."""
    return all(matches(rule, subject) for subject in UNIVERSE if matches(pattern, subject))


def split(rules: tuple[str, ...]) -> list[tuple[str, str]]:
    return [(rule.partition(" ")[0], rule.partition(" ")[2]) for rule in rules]


def names(rule: str, queue: str) -> bool:
    return rule == queue or matches(rule, queue)


def may_publish(rights: options.Permissions, subject: str) -> bool:
    allowed = rights.publish_allow is None or any(matches(rule, subject) for rule in rights.publish_allow)
    return allowed and not any(matches(rule, subject) for rule in rights.publish_deny)


def is_denied(rights: options.Permissions, subject: str, queue: str) -> bool:
    return any(
        matches(rule, subject) and (not of or (bool(queue) and names(of, queue)))
        for rule, of in split(rights.subscribe_deny)
    )


def may_subscribe(rights: options.Permissions, pattern: str, queue: str) -> bool:
    if rights.subscribe_allow is not None:
        covering = [of for rule, of in split(rights.subscribe_allow) if covers(rule, pattern)]
        named = [of for of in covering if of]
        allowed = any(names(of, queue) for of in named) if queue and named else "" in covering
        if not allowed:
            return False
    # As on nats-server the pattern is looked for among the denied ones as it stands.
    return not is_denied(rights, pattern, queue)


@given(
    rules=st.none() | st.lists(patterns, max_size=5).map(tuple),
    denied=st.lists(patterns, max_size=4).map(tuple),
    subject=subjects,
)
def test_publish_as_the_model_says(rules, denied, subject):
    rights = options.Permissions(publish_allow=rules, publish_deny=denied)
    assert Permissions(rights).can_publish(subject.encode()) == may_publish(rights, subject)


@given(allow=allow_lists, deny=deny_lists, pattern=patterns | st.sampled_from(UNIVERSE), queue=queue_names)
def test_subscribe_as_the_model_says(allow, deny, pattern, queue):
    rights = options.Permissions(subscribe_allow=allow, subscribe_deny=deny)
    assert Permissions(rights).can_subscribe(pattern.encode(), queue.encode()) == may_subscribe(rights, pattern, queue)


@given(allow=allow_lists, deny=deny_lists, pattern=patterns, queue=queue_names, subject=st.sampled_from(UNIVERSE))
def test_nothing_that_was_not_allowed_is_ever_delivered(allow, deny, pattern, queue, subject):
    """The claim behind the rules: granted and delivered means that the subject itself is allowed."""
    permissions = Permissions(options.Permissions(subscribe_allow=allow, subscribe_deny=deny))
    heard = (
        permissions.can_subscribe(pattern.encode(), queue.encode())
        and matches(pattern, subject)
        and permissions.is_delivered(subject.encode(), queue.encode())
    )
    if not heard:
        return
    plain_or_queue = [of for rule, of in split(allow or ((subject,))) if matches(rule, subject)]
    assert plain_or_queue, "heard what no rule allows"
    assert not is_denied(options.Permissions(subscribe_deny=deny), subject, queue)


@pytest.mark.parametrize(
    ("allow", "pattern", "is_granted"),
    [
        ("foo.*", "foo.*", True),
        ("foo.*", "foo.bar", True),
        ("foo.*", "foo.>", False),  # nats-server grants it
        ("foo.*", "foo.*.*", False),
        ("foo.>", "foo.*", True),
        ("foo.>", "foo.*.>", True),
        ("foo.>", "foo", False),
        ("foo.>", ">", False),
        ("*.bar", "*.*", False),
        (">", ">", True),
        ("*", ">", False),
        ("foo*", "foo*", True),  # no wildcard: a token of four characters
        ("foo*", "food", False),
    ],
)
def test_a_wildcard_is_granted_only_where_it_is_allowed_wholly(allow, pattern, is_granted):
    assert Permissions(options.Permissions(subscribe_allow=(allow,))).can_subscribe(pattern.encode()) is is_granted


def test_what_is_no_subject_is_no_rule():
    for subject in (b"", b"a..b", b".a", b"a.", b">.a"):
        with pytest.raises(ValueError, match="not a subject"):
            Rules(()).insert(subject, b"")


def test_ten_thousand_rules_are_as_quick_to_ask_as_one():
    """Tests only correctness, also with a subject that matches many of them; the bench measures the speed."""
    deep = tuple(".".join(("*",) * size + ("x",)) for size in range(60))
    many = Permissions(options.Permissions(publish_allow=tuple(f"r.{i}.*" for i in range(10_000)) + deep))
    assert many.can_publish(b"r.9999.a") and not many.can_publish(b"r.10000.a")
    assert many.can_publish(b".".join([b"x"] * 60)) and not many.can_publish(b".".join([b"x"] * 61))
    assert not many.can_publish(b".".join([b"y"] * 2000))


# ---- in the engine


def client_with(engine: Engine, rights: options.Permissions | None, connect: bytes = QUIET) -> EngineClient:
    client = engine.client(connect)
    client.connection.enter(engine.probe.sublist, Permissions(rights) if rights else None)
    return client


def texts(client: EngineClient) -> list[str]:
    return [str(error) for error in client.session.errors if isinstance(error, PermissionsViolation)]


@given(
    deny=st.lists(patterns, min_size=1, max_size=3).map(tuple),
    wanted=st.lists(st.tuples(patterns, st.sampled_from(["", "", "q"])), max_size=5),
    published=st.lists(st.sampled_from(UNIVERSE), max_size=12),
)
def test_deliveries_to_a_client_with_deny_rules(deny, wanted, published):
    """Compares it with a client without permissions: both get messages on the same subjects, repeatedly."""
    engine = Engine()
    rights = options.Permissions(subscribe_deny=deny)
    limited, free, publisher = client_with(engine, rights), engine.client(), engine.client()
    granted = []
    for number, (pattern, queue) in enumerate(wanted):
        line = f"SUB {pattern} {queue} {number}\r\n".encode()
        free.feed(line)
        if not limited.talk(line):
            granted.append((pattern, queue))
    for subject in [*published, *published]:
        publisher.feed(f"PUB {subject} 0\r\n\r\n".encode())
        plain = sum(1 for pattern, queue in granted if not queue and matches(pattern, subject))
        keeps = any(matches(rule, subject) for rule in deny)
        got = frames(limited.take())
        assert all(frame.subject == subject.encode() for frame in got)
        in_queue = any(queue and matches(pattern, subject) for pattern, queue in wanted)
        here = [frame for frame in got if dict(enumerate(wanted))[int(frame.sid)][1] == ""]
        assert len(here) == (0 if keeps else plain)
        queued = len(got) - len(here) + sum(1 for frame in frames(free.take()) if wanted[int(frame.sid)][1])
        assert queued == in_queue, "one member of the queue group, whoever may have it"
        assert not (keeps and got)
    for client in (limited, free, publisher):
        client.close()
    engine.assert_empty()


def test_a_repeated_line_is_asked_about_once_and_again_after_a_change():
    engine = Engine()
    publisher = client_with(engine, options.Permissions(publish_allow=("a",)))
    subscriber = engine.client()
    subscriber.feed(b"SUB > 1\r\n")
    publisher.feed(b"PUB a 0\r\n\r\n" * 20)
    assert len(subscriber.messages()) == 20
    publisher.connection.enter(engine.probe.sublist, Permissions(options.Permissions(publish_allow=("b",))))
    assert publisher.talk(b"PUB a 0\r\n\r\n" * 3) == b"-ERR 'Permissions Violation for Publish to \"a\"'\r\n" * 3
    assert subscriber.messages() == []
    assert (publisher.connection.in_msgs, engine.probe.fanout.in_msgs) == (23, 23)
    publisher.connection.enter(engine.probe.sublist, None)
    publisher.feed(b"PUB a 0\r\n\r\n")
    assert len(subscriber.messages()) == 1


def test_an_answer_that_let_one_through_lets_nobody_else_through():
    """The match cache remembers whose permissions were asked: another client's are asked anew."""
    engine = Engine()
    may, may_not = (client_with(engine, options.Permissions(publish_allow=(name,))) for name in ("a", "b"))
    for _ in range(3):
        assert may.talk(b"PUB a 0\r\n\r\n") == b""
        assert may_not.talk(b"PUB a 0\r\n\r\n") == b"-ERR 'Permissions Violation for Publish to \"a\"'\r\n"


def test_denied_publishes_leave_nothing_in_the_match_cache():
    engine = Engine()
    client = client_with(engine, options.Permissions(publish_allow=()))
    client.feed(b"".join(b"PUB x.%d 0\r\n\r\n" % i for i in range(1000)))
    assert engine.probe.cached == 0


def test_new_permissions_end_subscriptions_and_filter_those_that_stay():
    engine = Engine()
    client, publisher = engine.clients(2)
    client.feed(b"SUB a.> 1\r\nSUB b 2\r\nSUB c q 3\r\nSUB c r 4\r\n")
    publisher.feed(b"PUB a.x 0\r\n\r\nPUB b 0\r\n\r\n")
    assert len(client.messages()) == 2
    rights = options.Permissions(subscribe_allow=("a.>", "c q"), subscribe_deny=("a.x",))
    client.connection.enter(engine.probe.sublist, Permissions(rights))
    ended = client.connection.end_some(4)
    assert sorted(ended) == [(b"b", b"2", b""), (b"c", b"4", b"r")]
    assert not client.connection.is_ending
    assert client.connection.subscriptions == 2
    publisher.feed(b"PUB a.x 0\r\n\r\nPUB a.y 0\r\n\r\nPUB b 0\r\n\r\n")
    assert client.messages() == [(b"1", b"")]
    client.connection.enter(engine.probe.sublist, None)
    publisher.feed(b"PUB a.x 0\r\n\r\n")
    assert client.messages() == [(b"1", b"")]


def test_what_new_permissions_do_not_allow_gets_nothing_before_it_has_ended():
    """It is ended some at a time, with others served in between; what the client says waits."""
    engine = Engine()
    client, publisher = engine.clients(2)
    client.feed(b"SUB keep 0\r\n" + b"".join(b"SUB no.%d 1%d\r\nSUB no.%d q 2%d\r\n" % (i, i, i, i) for i in range(10)))
    said = b"PUB keep 0\r\n\r\n" + b"".join(b"PUB no.%d 0\r\n\r\n" % i for i in range(10))
    publisher.feed(said)
    assert len(client.messages()) == 21
    client.connection.enter(engine.probe.sublist, Permissions(options.Permissions(subscribe_allow=("keep", "late"))))
    client.feed(b"SUB late 3\r\nPING\r\n")
    turns = 0
    while client.connection.is_ending:
        publisher.feed(said)
        assert client.take() == b"MSG keep 0 0\r\n\r\n"
        before = client.connection.subscriptions
        ended = client.connection.end_some(3)
        assert before - client.connection.subscriptions == len(ended) <= 3
        turns += 1
    assert turns > 6
    engine.probe.finish()
    assert client.take() == b"PONG\r\n"
    publisher.feed(said + b"PUB late 0\r\n\r\n")
    assert client.take() == b"MSG keep 0 0\r\n\r\nMSG late 3 0\r\n\r\n"


@pytest.mark.parametrize("granted", [("a",), ("*",), (">",), ("a mine",), ("* mine",), ("* theirs",), ()])
@pytest.mark.parametrize("has_groups", [True, False])
def test_each_subject_and_group_of_a_client_is_decided_by_itself(granted, has_groups):
    """The next one that a message meets has other rights than the one before."""
    engine = Engine()
    client, publisher = engine.clients(2)
    every = ("a", "a mine", "a theirs", "*", "* mine", "* theirs", ">", "> mine", "> theirs")
    patterns = every if has_groups else every[::3]
    for sid, pattern in enumerate(patterns):
        client.feed(b"SUB %s %d\r\n" % (pattern.encode(), sid))
    rights = Permissions(options.Permissions(subscribe_allow=(*granted, "none")))
    client.connection.enter(engine.probe.sublist, rights)
    expected = set()
    for sid, pattern in enumerate(patterns):
        subject, _, queue = pattern.partition(" ")
        if rights.can_subscribe(subject.encode(), queue.encode()):
            expected.add(b"%d" % sid)
    publisher.feed(b"PUB a 0\r\n\r\n" * 100)
    assert {sid for sid, _ in client.messages()} == expected
    assert bool(expected) is bool(granted) or not has_groups


def test_permissions_are_asked_again_when_they_have_changed():
    """New ones may be where those before the last were."""
    engine = Engine()
    client, publisher = engine.clients(2)
    client.feed(b"SUB a 1\r\n")
    for n in range(60):
        is_granted = n % 4 < 2
        rights = options.Permissions(subscribe_allow=("a" if is_granted else "b",))
        client.connection.enter(engine.probe.sublist, Permissions(rights))
        if n % 2:
            publisher.feed(b"PUB a 0\r\n\r\n")
            assert bool(client.messages()) is is_granted


@pytest.mark.parametrize("is_reversed", [False, True])
def test_each_client_s_subscriptions_of_each_subject_and_group_are_decided_by_themselves(is_reversed):
    """One message meets them all, and equal ones are decided once: equal are those of a subject, a group and rights."""
    engine = Engine()
    publisher, *clients = engine.clients(4)
    rights = [
        options.Permissions(subscribe_allow=("a", "a mine", "a.>")),
        options.Permissions(subscribe_allow=("*", "* theirs")),
        options.Permissions(subscribe_allow=(">",), subscribe_deny=("* mine", ">")),
    ]
    for client in clients:
        client.feed(b"SUB a 1\r\nSUB a 2\r\nSUB * 3\r\nSUB > 4\r\nSUB a mine 5\r\nSUB a theirs 6\r\nSUB * theirs 7\r\n")
    for client, one in zip(clients, rights, strict=True):
        client.connection.enter(engine.probe.sublist, Permissions(one))
    for client in reversed(clients) if is_reversed else clients:  # (who comes later may stand before)
        client.feed(b"")
    publisher.feed(b"PUB a 0\r\n\r\n" * 60)
    heard = [{sid for sid, _ in client.messages()} for client in clients]
    assert heard == [{b"1", b"2", b"5"}, {b"1", b"2", b"3", b"6", b"7"}, set()]
    for client in clients:
        while client.connection.is_ending:
            client.connection.end_some(1)
    publisher.feed(b"PUB a 0\r\n\r\n" * 60)
    assert [{sid for sid, _ in client.messages()} for client in clients] == heard


def test_permissions_that_come_meanwhile_decide_about_all_that_is_left():
    engine = Engine()
    client, publisher = engine.clients(2)
    names = [b"a.%d" % i for i in range(20)]
    client.feed(b"".join(b"SUB %s %d\r\n" % (name, sid) for sid, name in enumerate(names)))
    client.connection.enter(engine.probe.sublist, Permissions(options.Permissions(subscribe_deny=("a.>",))))
    assert len(client.connection.end_some(5)) == 5
    client.connection.enter(engine.probe.sublist, None)
    assert not client.connection.is_ending
    publisher.feed(b"".join(b"PUB %s 0\r\n\r\n" % name for name in names))
    assert len(client.messages()) == 15
    client.connection.enter(engine.probe.sublist, Permissions(options.Permissions(subscribe_deny=("a.1",))))
    client.connection.end_some(7)
    client.connection.enter(engine.probe.sublist, Permissions(options.Permissions(subscribe_deny=("a.>",))))
    client.connection.end_some(20)
    assert (client.connection.is_ending, client.connection.subscriptions) == (False, 0)
    assert client.talk(b"PING\r\n") == b"PONG\r\n"


def test_subscriptions_that_reach_their_max_meanwhile_hide_no_other():
    """Where one is taken out of the table others move: possibly behind the place that was looked at last."""
    for looked_at in range(100):  # where they are in the table is chance
        engine = Engine()
        client, publisher = engine.clients(2)
        for sid in range(100):
            client.feed(b"SUB %s.%d %d\r\nUNSUB %d 1\r\n" % (b"yes" if sid % 2 else b"no", sid, sid, sid))
        client.connection.enter(engine.probe.sublist, Permissions(options.Permissions(subscribe_allow=("yes.*",))))
        ended = client.connection.end_some(looked_at)
        publisher.feed(b"".join(b"PUB yes.%d 0\r\n\r\n" % sid for sid in range(3, 100, 2)))
        assert len(client.messages()) == 49
        ended += client.connection.end_some(100)
        assert sorted(int(sid) for _, sid, _ in ended) == list(range(0, 100, 2))
        assert (client.connection.is_ending, client.connection.subscriptions) == (False, 1)
        for one in (client, publisher):
            one.close()
        engine.assert_empty()


def test_a_client_that_leaves_meanwhile_leaves_nothing():
    engine = Engine()
    client = engine.client()
    client.feed(b"".join(b"SUB a.%d %d\r\n" % (sid, sid) for sid in range(100)))
    client.connection.enter(engine.probe.sublist, Permissions(options.Permissions(subscribe_allow=())))
    client.connection.end_some(10)
    connection = client.connection
    client.close()
    assert (connection.is_ending, connection.end_some(10)) == (False, [])
    engine.assert_empty()


def test_a_client_with_subscriptions_keeps_its_account():
    engine, other = Engine(), Engine()
    client = engine.client()
    client.feed(b"SUB a 1\r\n")
    with pytest.raises(ValueError, match="cannot change its account"):
        client.connection.enter(other.probe.sublist, None)


def test_a_request_is_answered_once_and_in_time():
    engine = Engine()
    engine.probe.set_clock(1_000_000)
    service = client_with(engine, options.Permissions(subscribe_allow=("svc",), responses=1, responses_expire_s=5.0))
    service.feed(b"SUB svc 1\r\n")
    client = engine.client()
    client.feed(b"SUB inbox.* 1\r\nPUB svc inbox.1 0\r\n\r\nPUB svc inbox.2 0\r\n\r\n")
    assert service.talk(b"PUB inbox.1 0\r\n\r\n").count(b"-ERR") == 0
    assert service.talk(b"PUB inbox.1 0\r\n\r\n") == b"-ERR 'Permissions Violation for Publish to \"inbox.1\"'\r\n"
    engine.probe.set_clock(6_000_001)
    assert b"-ERR" in service.talk(b"PUB inbox.2 0\r\n\r\n")
    assert len(client.messages()) == 1


@pytest.mark.parametrize(("responses", "allowed"), [(1, 1), (3, 3), (-1, 10)])
def test_so_many_answers_are_allowed(responses, allowed):
    engine = Engine()
    rights = options.Permissions(responses=responses, responses_expire_s=0.0)
    service = client_with(engine, rights)
    service.feed(b"SUB svc q 1\r\n")
    client = engine.client()
    client.feed(b"SUB inbox 1\r\nPUB svc inbox 0\r\n\r\n")
    engine.probe.set_clock(10**15)  # never expires
    service.feed(b"PUB inbox 0\r\n\r\n" * 10)  # the same line: not remembered, or it would be let through unasked
    assert len(client.messages()) == allowed
    client.feed(b"PUB svc inbox 0\r\n\r\n" * 4)  # a new request counts anew
    service.feed(b"PUB inbox 0\r\n\r\n")
    assert len(client.messages()) == 1


def test_a_sibling_s_request_may_be_answered_too():
    engine = Engine()
    service = client_with(engine, options.Permissions(responses=1))
    service.feed(b"SUB svc 1\r\n")
    engine.probe.deliver_here(b"svc", b"?", reply=b"far.away")
    service.take()
    assert service.talk(b"PUB far.away 0\r\n\r\n") == b""
    assert b"-ERR" in service.talk(b"PUB far.away 0\r\n\r\n")


def test_what_may_be_answered_is_bounded():
    engine = Engine()
    service = client_with(engine, options.Permissions(responses=1))
    service.feed(b"SUB svc 1\r\n")
    asks = engine.client()
    asks.feed(b"".join(b"PUB svc r.%d 0\r\n\r\n" % i for i in range(16_384)))
    service.take()
    assert service.talk(b"PUB r.0 0\r\n\r\n") == b""
    asks.feed(b"PUB svc r.16384 0\r\n\r\nPUB svc r.16385 0\r\n\r\n")
    service.take()
    assert b"-ERR" in service.talk(b"PUB r.1 0\r\n\r\n")  # the oldest 1,024, at once (one at a time is slow)
    assert b"-ERR" in service.talk(b"PUB r.1024 0\r\n\r\n")
    assert service.talk(b"PUB r.1025 0\r\n\r\n") == b""


def test_what_may_be_answered_no_more_is_forgotten_when_other_requests_come():
    """Whether it is answered or not: most responders leave a request to all of them unanswered."""
    engine = Engine()
    engine.probe.set_clock(1_000_000)
    service = client_with(engine, options.Permissions(responses=1, responses_expire_s=1.0))
    service.feed(b"SUB svc 1\r\n")
    asks = engine.client()
    for second in range(2, 8):
        asks.feed(b"".join(b"PUB svc r.%d.%d 0\r\n\r\n" % (second, i) for i in range(1000)))
        service.take()
        assert replies_allowed(service.connection) < 2200
        engine.probe.set_clock(second * 1_000_000)
    assert service.talk(b"PUB r.7.0 0\r\n\r\n") == b""


def test_what_may_be_answered_is_bounded_in_bytes():
    """Who asks makes up the reply subjects. Of short ones all count again that are answered or dropped."""
    engine = Engine()
    service = client_with(engine, options.Permissions(responses=1))
    service.feed(b"SUB svc 1\r\n")
    limits = Limits(max_control_line_bytes=128 * 1024)
    asks = engine.client()
    for client in (asks, service):
        client.connection.set_limits(limits)
    long = b"r" * 65_536
    for _ in range(3):
        for n in range(33):
            asks.feed(b"PUB svc %b.%02d 0\r\n\r\n" % (long, n))
        service.take()
        refused = [n for n in range(33) if service.talk(b"PUB %b.%02d 0\r\n\r\n" % (long, n))]
        assert refused == [0, 1, 2]  # 32 of them are more than 2 MiB: a sixteenth of that went at once
    asks.feed(b"PUB svc %b 0\r\n\r\n" % long + b"".join(b"PUB svc r.%d 0\r\n\r\n" % n for n in range(16_000)))
    service.take()
    assert service.talk(b"PUB r.0 0\r\n\r\n") == b""
    assert service.talk(b"PUB %b 0\r\n\r\n" % long) == b""


def test_the_only_subscriber_kept_out_is_nobody():
    """no_responders: a deny rule prevented delivery to the only subscriber."""
    engine = Engine()
    limited = client_with(engine, options.Permissions(subscribe_deny=("a.b",)))
    limited.feed(b"SUB a.> 1\r\nSUB a.* q 2\r\n")
    asking = engine.client(NO_RESPONDERS)
    assert asking.talk(b"SUB r 1\r\nPUB a.b r 0\r\n\r\n").startswith(b"HMSG r 1 16 16\r\nNATS/1.0 503")
    assert limited.take() == b""


@pytest.mark.parametrize(
    ("line", "error"),
    [
        (b"PUB a _R_.x 0\r\n\r\n", 'Permissions Violation for Publish with Reply of "_R_.x"'),
        (b"PUB a _GR_.x 0\r\n\r\n", 'Permissions Violation for Publish with Reply of "_GR_.x"'),
        (b"PUB _GR_.x 0\r\n\r\n", 'Permissions Violation for Publish to "_GR_.x"'),
        (b"PUB _R_.x 0\r\n\r\n", ""),
        (b"PUB a _R_ 0\r\n\r\n", ""),
        (b"PUB a _INBOX.x 0\r\n\r\n", ""),
        (b"SUB a _sys_ 1\r\n", 'Permissions Violation for Subscription to "a" using queue "_sys_"'),
    ],
)
def test_what_is_the_system_s_own_is_nobody_s(line, error):
    client = Engine().client(b'CONNECT {"pedantic":false}\r\n')
    client.take()
    assert client.talk(line) == (f"-ERR '{error}'\r\n".encode() if error else b"+OK\r\n")


def test_errors_quote_what_the_client_said():
    client = client_with(Engine(), options.Permissions(publish_allow=()))
    said = b'"\\\x01\xc3\xa9\xff\x7f'
    assert client.talk(b"PUB " + said + b" 0\r\n\r\n") == (
        b'-ERR \'Permissions Violation for Publish to "\\"\\\\\\x01\xc3\xa9\\xff\\x7f"\'\r\n'
    )
    assert texts(client)


@given(st.binary(max_size=40))
def test_quoted_is_one_line_in_quotes(data):
    text = quoted(data)
    assert text[0] == text[-1] == '"' and text.isprintable()
    assert b"\r" not in text.encode() and b"\n" not in text.encode()


def test_the_model_covers():
    assert covers("a.>", "a.*") and not covers("a.*", "a.>") and covers(">", "a") and is_valid_subject("a.>")
