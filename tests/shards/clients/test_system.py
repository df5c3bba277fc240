"""One shard's part of the system account: what it says of clients, what it passes on, and what it refuses."""

from __future__ import annotations

import asyncio
import errno
import json
import os
import socket
from collections.abc import AsyncIterator
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest
import pytest_asyncio

from gnatswarm.broker.options import Account, Options, Permissions, User
from gnatswarm.shards.boundary.control import AccountChanged, ControlMessage, SystemEvent, SystemReply, SystemRequest
from gnatswarm.shards.clients import system as module
from gnatswarm.shards.clients.system import (
    MOST_ASKED_BY_ANOTHER,
    MOST_ASKED_BY_OTHERS,
    MOST_BODY_BYTES,
    permissions_document,
)
from tests.support.one_shard import Client, OneShard
from tests.support.turns import until

OPTIONS = Options(
    accounts=(Account("$SYS"), Account("A")),
    users=(User("admin", "x", account="$SYS"), User("ann", "x", account="A")),
)
CONNECT = b'CONNECT {"verbose":false,"user":"%b","pass":"x","name":"n"}\r\nPING\r\n'


class Told:
    """A shard, and what it tells the router."""

    def __init__(self, *, has_router: bool = True, options: Options = OPTIONS) -> None:
        self.said: list[ControlMessage] = []
        self.one = OneShard(options, tell=self.said.append if has_router else None)
        self.system = self.one.shard.system

    @property
    def requests(self) -> list[SystemRequest]:
        return [one for one in self.said if isinstance(one, SystemRequest)]

    async def client(self, user: bytes, *subjects: bytes) -> Client:
        client = self.one.connect()
        await client.talk(CONNECT % user)
        words = b"".join(b"SUB %b %d\r\n" % (subject, sid) for sid, subject in enumerate(subjects, 1))
        await client.talk(words + b"PING\r\n")
        return client


@pytest_asyncio.fixture
async def told() -> AsyncIterator[Told]:
    told = Told()
    yield told
    told.one.close()


def body(said: bytes) -> dict[str, Any]:
    """The document in a delivery."""
    found: dict[str, Any] = json.loads(said[said.index(b"{") : said.rindex(b"}") + 1])
    return found


async def test_whoever_comes_and_goes_is_told_to_the_system_account(told: Told) -> None:
    admin = await told.client(b"admin", b"$SYS.ACCOUNT.A.CONNECT", b"$SYS.ACCOUNT.A.DISCONNECT")
    ann = await told.client(b"ann")
    came = await admin.wait(b"}\r\n")
    assert came.startswith(b"MSG $SYS.ACCOUNT.A.CONNECT 1 ")
    assert body(came)["client"]["user"] == "ann"
    ann.close()
    went = await admin.wait(b"}\r\n")
    assert went.startswith(b"MSG $SYS.ACCOUNT.A.DISCONNECT 2 ")
    assert body(went)["client"]["acc"] == "A"


async def test_whoever_is_not_let_in_is_told_too(told: Told) -> None:
    admin = await told.client(b"admin", b"$SYS.SERVER.*.CLIENT.AUTH.ERR")
    stranger = told.one.connect()
    await stranger.talk(CONNECT % b"nobody", b"-ERR 'Authorization Violation'\r\n")
    assert body(await admin.wait(b"}\r\n"))["client"]["user"] == "nobody"


async def test_a_request_goes_to_the_router_and_its_answer_to_who_asked(told: Told) -> None:
    admin = await told.client(b"admin", b"back")
    await admin.talk(b"PUB $SYS.REQ.SERVER.PING.VARZ back 2\r\n{}\r\nPING\r\n")
    # The system's own subscription is a socket pair: its other end is read a turn of the loop later.
    await admin.talk(b"PING\r\n")
    [request] = told.requests
    assert (request.account, request.subject, request.body) == ("$SYS", "$SYS.REQ.SERVER.PING.VARZ", b"{}")
    told.system.on_reply(SystemReply(request.seq, b'{"it":1}'))
    assert await admin.wait(b"}\r\n") == b'MSG back 1 8\r\n{"it":1}\r\n'
    told.system.on_reply(SystemReply(request.seq, b'{"it":2}'))
    assert await admin.talk(b"PING\r\n") == b"PONG\r\n", "it was answered already"


async def test_a_request_that_fails_because_of_an_error_of_ours_ends_nothing(
    told: Told, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Any user may ask; it ended the shard."""
    failed: list[dict[str, Any]] = []
    asyncio.get_running_loop().set_exception_handler(lambda _loop, context: failed.append(context))
    ann = await told.client(b"ann", b"back")
    monkeypatch.setattr(told.system, "_tell", lambda _request: 1 // 0)
    await ann.talk(b"PUB $SYS.REQ.ACCOUNT.PING.CONNZ back 0\r\n\r\nPING\r\n")
    await until(lambda: "ZeroDivisionError" in caplog.text)
    assert await ann.talk(b"PING\r\n") == b"PONG\r\n" and not failed


async def test_a_user_asks_about_itself_without_the_router(told: Told) -> None:
    ann = await told.client(b"ann", b"back")
    await ann.talk(b"PUB $SYS.REQ.USER.INFO back 0\r\n\r\n", b"}\r\n")
    assert told.requests == []


async def test_a_user_may_ask_about_itself_hundreds_of_times_a_turn(monkeypatch: pytest.MonkeyPatch) -> None:
    shown: list[Permissions] = []
    named: list[User] = []

    def counted(rules: Permissions) -> Any:
        shown.append(rules)
        return permissions_document(rules)

    def shown_name(user: User) -> str:
        named.append(user)
        return user.name

    of_ann, of_bob = Permissions(publish_allow=("$SYS.>", "a")), Permissions(subscribe_deny=("b",))
    others = [User(f"u{n}", "x", account="A") for n in range(50)]
    two = [User("ann", "x", account="A", permissions=of_ann), User("bob", "x", account="A", permissions=of_bob)]
    told = Told(options=msgspec.structs.replace(OPTIONS, users=(*others, *two)))
    ann, bob = await told.client(b"ann", b"back"), await told.client(b"bob", b"here")
    monkeypatch.setattr(module, "permissions_document", counted)
    monkeypatch.setattr(User, "shown", property(shown_name))
    asked = b"PUB $SYS.REQ.USER.INFO back 0\r\n\r\n"
    said = await ann.talk(asked * 100, b"}\r\n")
    while said.count(b"MSG back 1 ") < 100:
        said += await ann.wait(b"}\r\n")
    assert said.count(b'{"publish":{"allow":["$SYS.>","a"]}}') == 100
    assert body(await bob.talk(asked.replace(b"back", b"here"), b"}\r\n"))["data"]["permissions"] == {
        "subscribe": {"deny": ["b"]}
    }
    assert shown == [of_ann, of_bob]
    assert len(named) <= 101, "other users were not looked at"
    told.one.close()


async def test_the_subscriptions_of_a_cluster_are_the_sum_of_what_its_members_say() -> None:
    options = msgspec.structs.replace(OPTIONS, cluster=msgspec.structs.replace(OPTIONS.cluster, port=6222))
    told = Told(options=options)
    told.system.set_cluster("marsh", 2)
    admin = await told.client(b"admin", b"$SYS.REQ.ACCOUNT.NSUBS", b"back")
    asked = await admin.talk(b"PUB $SYS.DEBUG.SUBSCRIBERS back 5\r\nfoo q\r\n", b"}\r\n")
    assert body(asked) == {"acc": "$SYS", "subject": "foo", "queue": "cQ=="}
    answers_at = asked.split()[3]
    own = next(one for one in told.requests if one.subject == "$SYS.REQ.ACCOUNT.NSUBS")
    told.system.on_reply(SystemReply(own.seq, b"4"))
    await admin.talk(b"PUB %b 2\r\n12\r\nPUB %b 5\r\nmany!\r\nPING\r\n" % (answers_at, answers_at))
    assert (await admin.wait(b"16\r\n")).endswith(b"MSG back 2 2\r\n16\r\n")
    await admin.talk(b"PUB %b 1\r\n9\r\nPING\r\n" % answers_at)  # too late
    # Who does not answer is not waited for.
    asked = await admin.talk(b"PUB $SYS.DEBUG.SUBSCRIBERS back 3\r\nfoo\r\n", b"}\r\n")
    await admin.talk(b"PUB %b 1\r\n3\r\nPING\r\n" % asked.split()[3])
    assert (await admin.wait(b"\r\n3\r\n")).endswith(b"MSG back 2 1\r\n3\r\n")
    told.one.close()


async def test_users_may_ask_about_their_own_account_and_nothing_else(told: Told) -> None:
    ann = await told.client(b"ann", b"back")
    await ann.talk(
        b"PUB $SYS.REQ.ACCOUNT.PING.CONNZ back 0\r\n\r\nPUB $SYS.REQ.SERVER.PING.VARZ back 0\r\n\r\nPING\r\n"
    )
    assert [(one.account, one.subject) for one in told.requests] == [("A", "$SYS.REQ.ACCOUNT.PING.CONNZ")]


async def test_users_of_other_accounts_cannot_fill_the_queue(told: Told) -> None:
    ann = await told.client(b"ann", b"back")
    ask = b"PUB $SYS.REQ.ACCOUNT.PING.CONNZ back 0\r\n\r\n"
    refused = body(await ann.talk(ask * (MOST_ASKED_BY_ANOTHER + 1), b"}\r\n"))
    assert refused["error"] == {"code": 503, "description": "too many requests at once, try again"}
    assert len(told.requests) == MOST_ASKED_BY_ANOTHER
    told.system.on_reply(SystemReply(told.requests[0].seq, b""))
    await ann.talk(ask + b"PING\r\n")
    assert len(told.requests) == MOST_ASKED_BY_ANOTHER + 1


async def test_users_of_one_account_cannot_take_the_room_of_another() -> None:
    names = [f"a{number}" for number in range(6)]
    options = Options(
        accounts=(Account("$SYS"), *(Account(name) for name in names)),
        users=(User("admin", "x", account="$SYS"), *(User(name, "x", account=name) for name in names)),
    )
    told = Told(options=options)
    ask = b"PUB $SYS.REQ.ACCOUNT.PING.CONNZ back 0\r\n\r\n"
    asked = []
    for name in names:
        client = await told.client(name.encode(), b"back")
        await client.talk(ask * 2 * MOST_ASKED_BY_ANOTHER + b"PING\r\n")
        await client.talk(b"PING\r\n")  # (the system's own subscription is read a turn of the loop later)
        asked.append(sum(one.account == name for one in told.requests))
    assert asked == [MOST_ASKED_BY_ANOTHER] * 4 + [0, 0]
    assert len(told.requests) == MOST_ASKED_BY_OTHERS
    admin = await told.client(b"admin", b"back")
    await admin.talk(b"PUB $SYS.REQ.SERVER.PING.VARZ back 2\r\n{}\r\nPING\r\n")
    await until(lambda: told.requests[-1].account == "$SYS")
    told.one.close()


async def test_a_request_too_large_is_refused(told: Told) -> None:
    ann = await told.client(b"ann", b"back")
    size = MOST_BODY_BYTES + 1
    said = await ann.talk(b"PUB $SYS.REQ.ACCOUNT.PING.CONNZ back %d\r\n%b\r\n" % (size, b"x" * size), b"}\r\n")
    assert body(said)["error"]["code"] == 400


async def test_without_a_router_nobody_answers_for_the_broker() -> None:
    told = Told(has_router=False)
    ann = await told.client(b"ann", b"back")
    said = await ann.talk(b"PUB $SYS.REQ.ACCOUNT.PING.CONNZ back 0\r\n\r\n", b"}\r\n")
    assert body(said)["error"]["code"] == 503
    told.one.close()


async def test_what_the_router_says_reaches_who_wants_it(told: Told) -> None:
    admin = await told.client(b"admin", b"$SYS.SERVER.N.SHUTDOWN", b"$SYS.SERVER.N.STATSZ")
    told.system.on_event(SystemEvent("$SYS.SERVER.N.STATSZ", b"{1}"))
    assert await admin.wait(b"}\r\n") == b"MSG $SYS.SERVER.N.STATSZ 2 3\r\n{1}\r\n"
    told.system.on_event(SystemEvent("$SYS.SERVER.N.SHUTDOWN", b"{2}", is_last_word=True))
    assert await admin.wait(b"}\r\n") == b"MSG $SYS.SERVER.N.SHUTDOWN 1 3\r\n{2}\r\n"


async def test_what_no_client_could_publish_the_broker_does_not_either(
    told: Told, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The document of a trace quotes the header of a message, and that says where it goes: a link would not take it."""
    admin = await told.client(b"admin", b">")
    monkeypatch.setattr(module, "LARGEST_MAX_PAYLOAD_BYTES", 1000)
    header = b"NATS/1.0\r\nA: b\r\n\r\n"
    told.system.say_soon("$SYS", b"a", b"x" * (1001 - len(header)), header)
    told.system.say_soon("$SYS", b"b" * 131_073, b"x")
    told.system.say_soon("$SYS", b"c", b"x" * 1000)
    assert b"MSG c 1 1000\r\n" in (said := await admin.wait(b"x\r\n"))
    assert b"MSG a" not in said and b"MSG b" not in said
    assert [record.getMessage() for record in caplog.records if record.levelname == "WARNING"] == [
        "A message of the broker's own is not published, because it is too long: 1001 bytes on a subject of 1",
        "A message of the broker's own is not published, because it is too long: 1 bytes on a subject of 131073",
    ]


async def test_an_accounts_number_is_said_once_however_many_come(told: Told) -> None:
    admin = await told.client(b"admin", b"$SYS.ACCOUNT.A.SERVER.CONNS")
    for _ in range(5):
        await told.client(b"ann")
    told.system._say_changes()
    assert [one for one in told.said if isinstance(one, AccountChanged)] == [AccountChanged("A")]
    admin.close()


async def test_a_reload_silences_the_router_and_lets_it_speak_again(told: Told) -> None:
    admin = await told.client(b"admin", b"$SYS.SERVER.N.STATSZ")
    without = msgspec.structs.replace(OPTIONS, users=OPTIONS.users[1:])
    told.system.configure(without)
    told.system.on_event(SystemEvent("$SYS.SERVER.N.STATSZ", b"{1}"))
    assert await admin.talk(b"PING\r\n") == b"PONG\r\n"
    told.system.configure(OPTIONS)
    told.system.on_event(SystemEvent("$SYS.SERVER.N.STATSZ", b"{2}"))
    assert await admin.wait(b"}\r\n") == b"MSG $SYS.SERVER.N.STATSZ 1 3\r\n{2}\r\n"


async def test_an_inbox_for_which_there_is_no_descriptor_is_made_later(
    told: Told, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """An error in a timer would end the shard, and clients can take all descriptors."""
    admin = await told.client(b"admin", b"back")
    pairs = socket.socketpair
    tried: list[int] = []

    def no_pair() -> tuple[socket.socket, socket.socket]:
        tried.append(len(tried))
        raise OSError(errno.EMFILE, "Too many open files")

    monkeypatch.setattr(module, "AGAIN_S", 0.001)
    monkeypatch.setattr(socket, "socketpair", no_pair)
    errors: list[dict[str, Any]] = []
    asyncio.get_running_loop().set_exception_handler(lambda _loop, context: errors.append(context))
    inbox = told.system._inbox
    assert inbox is not None
    inbox.close()
    told.one.shard.reactor.finish()
    await until(lambda: len(tried) == 3 or bool(errors))
    assert errors == []
    monkeypatch.setattr(socket, "socketpair", pairs)
    await until(lambda: told.system._inbox is not None)
    await admin.talk(b"PUB $SYS.REQ.SERVER.PING.VARZ back 0\r\n\r\nPING\r\n")
    await until(lambda: [one.subject for one in told.requests] == ["$SYS.REQ.SERVER.PING.VARZ"])
    assert [record.getMessage() for record in caplog.records if record.levelname == "ERROR"] == [
        "Requests to the system account are not heard here: Too many open files; trying again"
    ]


async def test_an_inbox_that_cannot_be_watched_leaves_no_descriptor(
    told: Told, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The kernel may have no memory for one more socket to watch."""
    inbox = told.system._inbox
    assert inbox is not None

    class Full:
        def open(self, *_given: object) -> None:
            raise OSError(errno.ENOSPC, "No space left on device")

    before = len(os.listdir("/proc/self/fd"))
    with pytest.raises(OSError, match="No space left"):
        module.Inbox(told.system, Full(), inbox.connection)  # type: ignore[arg-type]
    assert len(os.listdir("/proc/self/fd")) == before


async def test_a_new_inbox_is_one_of_the_present_options(told: Told, monkeypatch: pytest.MonkeyPatch) -> None:
    """Those of the reload before last would have the system account in an account that is none any more."""
    later: list[tuple[Any, ...]] = []
    monkeypatch.setattr(told.system, "_loop", SimpleNamespace(call_later=lambda *given: later.append(given)))
    inbox = told.system._inbox
    assert inbox is not None
    inbox.close()
    told.one.shard.reactor.finish()
    monkeypatch.undo()
    ((_after_s, again, *given),) = later
    moved = msgspec.structs.replace(OPTIONS, system_account="A")
    told.system.configure(moved)
    again(*given)
    assert told.system._server.options is moved
    assert told.system._account == "A"


async def test_after_a_reload_of_the_system_account_requests_are_heard_there_at_once(
    told: Told, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "AGAIN_S", 3600.0)
    before = told.system._inbox
    told.system.configure(msgspec.structs.replace(OPTIONS, system_account="A"))
    await until(lambda: told.system._inbox not in (None, before))
    ann = await told.client(b"ann", b"back")
    await ann.talk(b"PUB $SYS.REQ.SERVER.PING.VARZ back 0\r\n\r\nPING\r\n")
    await until(lambda: [one.subject for one in told.requests] == ["$SYS.REQ.SERVER.PING.VARZ"])


async def test_the_last_word_goes_to_one_member_of_a_group(told: Told) -> None:
    admin = await told.client(b"admin")
    await admin.talk(b"SUB $SYS.SERVER.*.SHUTDOWN q 1\r\nSUB $SYS.SERVER.*.SHUTDOWN q 2\r\nPING\r\n")
    told.system.on_event(SystemEvent("$SYS.SERVER.N.SHUTDOWN", b"{}", is_last_word=True))
    said = await admin.talk(b"PING\r\n")
    assert said.count(b"MSG ") == 1 and said.endswith(b"PONG\r\n")


@pytest.mark.parametrize(
    ("permissions", "shown"),
    [
        (Permissions(), {}),
        (Permissions(publish_allow=("a", "b.>")), {"publish": {"allow": ["a", "b.>"]}}),
        (Permissions(publish_deny=("a",)), {"publish": {"deny": ["a"]}}),
        (
            Permissions(subscribe_allow=(), subscribe_deny=("x",), responses=2, responses_expire_s=0.5),
            {"subscribe": {"allow": [], "deny": ["x"]}, "responses": {"max": 2, "ttl": 500_000_000}},
        ),
    ],
)
def test_permissions_are_shown_as_they_were_given(permissions: Permissions, shown: Any) -> None:
    assert permissions_document(permissions) == shown
