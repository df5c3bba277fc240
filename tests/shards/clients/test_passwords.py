"""The comparisons with bcrypt hashes of one shard: bounded, shared, fair between addresses, and never asked twice."""

from __future__ import annotations

import asyncio
import itertools
import threading
from dataclasses import dataclass, field

import bcrypt
import msgspec
import pytest

from gnatswarm.broker.access.auth import NOBODY, Admission, HashedPassword, Identity, Verdicts
from gnatswarm.shards.clients import passwords as module
from gnatswarm.shards.clients.passwords import ANSWERED_AT_ONCE, MOST_WAITING, Passwords, is_same
from tests.support.turns import until

# A fixed salt: the hash is in the names of tests.
SALT = b"$2b$04$" + b"a" * 21 + b"u"
HASH = bcrypt.hashpw(b"good", SALT).decode()


def question(password: str, *, is_known: bool = True, hashed: str = HASH) -> HashedPassword:
    key = Verdicts.key(hashed, password.encode())
    return HashedPassword(Admission(NOBODY), password, hashed, key, is_known)


@dataclass
class Client:
    host: str = "10.0.0.1"
    is_gone: bool = False
    answers: list[bool | None] = field(default_factory=list)
    asked: HashedPassword | None = None

    def on_compared(self, question: HashedPassword, is_same: bool | None) -> None:
        self.asked = question
        self.answers.append(is_same)


async def until_idle(passwords: Passwords) -> None:
    await until(lambda: not passwords.waiting)


def threads() -> set[str]:
    return {thread.name for thread in threading.enumerate() if thread.name.startswith("passwords")}


@pytest.fixture
def verdicts() -> Verdicts:
    return Verdicts()


async def test_an_answer_comes_later_and_is_remembered(verdicts):
    passwords = Passwords(verdicts)
    client, other, unknown = Client(), Client(), Client()
    assert passwords.ask(question("good"), client)
    assert passwords.ask(question("bad"), other)
    assert passwords.ask(question("good", is_known=False, hashed=HASH[:-1] + "."), unknown)
    assert client.answers == []
    await until_idle(passwords)
    assert (client.answers, other.answers, unknown.answers) == ([True], [False], [False])
    assert verdicts.get(question("good").key) is True
    assert verdicts.get(question("bad").key) is False


async def test_users_with_the_same_hash_share_a_comparison_but_not_who_they_are(verdicts):
    passwords = Passwords(verdicts)
    clients = [Client() for _ in range(3)]
    questions = [
        msgspec.structs.replace(question("good"), admission=Admission(Identity(name, account), name))
        for name, account in (("admin", "A"), ("guest", "B"), ("admin", "A"))
    ]
    for client, asked in zip(clients, questions, strict=True):
        assert passwords.ask(asked, client)
    await until_idle(passwords)
    assert passwords.compared == 1
    for client, asked in zip(clients, questions, strict=True):
        assert client.asked is asked and client.answers == [True]


async def test_the_same_question_is_asked_once(verdicts):
    passwords = Passwords(verdicts)
    clients = [Client() for _ in range(1000)]
    for client in clients:
        assert passwords.ask(question("good"), client)
    await until(lambda: clients[-1].answers)
    assert all(client.answers == [True] for client in clients)
    assert passwords.compared == 1


async def test_who_waits_for_the_same_comparison_is_answered_in_turns(verdicts):
    """A log-in takes some 50 us: 40,000 with one wrong password were 3 s in which the shard served nobody."""
    passwords = Passwords(verdicts)
    clients = [Client() for _ in range(2 * ANSWERED_AT_ONCE + 1)]
    for client in clients:
        assert passwords.ask(question("bad"), client)
    answered = [0]

    def all_are_answered() -> bool:
        answered.append(sum(client.answers == [False] for client in clients))
        return answered[-1] == len(clients)

    await until(all_are_answered)
    assert max(after - before for before, after in itertools.pairwise(answered)) <= ANSWERED_AT_ONCE


async def test_nobody_is_told_who_left_while_others_were(verdicts):
    passwords = Passwords(verdicts)
    clients = [Client() for _ in range(ANSWERED_AT_ONCE + 2)]
    for client in clients:
        assert passwords.ask(question("good"), client)
    await until(lambda: clients[0].answers)
    clients[-2].is_gone = True
    await until(lambda: clients[-1].answers)
    assert clients[-2].answers == []


async def test_there_is_a_bound_and_one_address_cannot_fill_it_for_others(verdicts):
    passwords = Passwords(verdicts)
    attacker = [Client("6.6.6.6") for _ in range(MOST_WAITING + 10)]
    taken = [passwords.ask(question(f"bad {number}"), client) for number, client in enumerate(attacker)]
    assert taken == [True] * MOST_WAITING + [False] * 10
    honest = Client("10.0.0.2")
    assert passwords.ask(question("good"), honest)
    assert sum(client.answers == [None] for client in attacker) == 1  # the newest made room
    await until(lambda: bool(honest.answers))
    assert honest.answers == [True]
    assert passwords.compared <= 3  # its turn came at once, not behind 64 others
    await until_idle(passwords)
    assert all(len(client.answers) == 1 for client in attacker[:MOST_WAITING])


async def test_all_addresses_of_one_network_of_ipv6_are_one(verdicts):
    passwords = Passwords(verdicts)
    attacker = [Client(f"2001:db8::{number:x}") for number in range(MOST_WAITING + 10)]
    taken = [passwords.ask(question(f"bad {number}"), client) for number, client in enumerate(attacker)]
    assert taken == [True] * MOST_WAITING + [False] * 10
    honest = Client("2001:db8:0:1::1")
    assert passwords.ask(question("good"), honest)
    await until(lambda: bool(honest.answers))
    assert honest.answers == [True]
    assert passwords.compared <= 3
    passwords.close()


async def test_addresses_take_turns(verdicts):
    passwords = Passwords(verdicts)
    order: list[str] = []

    class Named(Client):
        def on_compared(self, question: HashedPassword, is_same: bool | None) -> None:
            order.append(self.host)

    for number, host in enumerate(["first", "a", "a", "a", "b", "b", "b", "c", "c", "c"]):
        assert passwords.ask(question(f"bad {number}"), Named(host))
    await until_idle(passwords)
    assert order == ["first", *["a", "b", "c"] * 3]


async def test_nobody_who_left_is_compared_or_told(verdicts):
    passwords = Passwords(verdicts)
    first, gone, last = Client(), Client(), Client()
    for number, client in enumerate((first, gone, last)):
        passwords.ask(question(f"bad {number}"), client)
    gone.is_gone = True
    await until_idle(passwords)
    assert (first.answers, gone.answers, last.answers) == ([False], [], [False])
    assert passwords.compared == 2


async def test_when_it_is_closed_nothing_more_is_compared_and_the_thread_ends(verdicts):
    passwords, client = Passwords(verdicts), Client()
    passwords.ask(question("first"), client)
    passwords.ask(question("second"), client)
    passwords.close()
    await until(lambda: client.answers and not threads())
    passwords.ask(question("third"), client)
    assert (passwords.compared, client.answers, passwords.waiting) == (1, [False], 2)


@pytest.mark.parametrize(
    ("password", "hashed", "expected"),
    [
        ("good", HASH, True),
        ("good", HASH.replace("$2b$", "$2a$"), True),
        ("good", HASH.replace("$2b$", "$2y$"), True),
        ("good\0", HASH, False),
        ("", HASH, False),
        ("x" * 4000, HASH, False),
        ("\ud800", HASH, False),
        ("good", "$2b$04$short", False),
        ("good", "", False),
    ],
)
def test_one_comparison(password, hashed, expected):
    assert is_same(password, hashed) is expected


def test_a_long_password_counts_as_far_as_bcrypt_looks():
    """As on nats-server: 72 bytes."""
    hashed = bcrypt.hashpw(b"x" * 72, bcrypt.gensalt(4)).decode()
    assert is_same("x" * 100, hashed)
    assert not is_same("x" * 71, hashed)


def cannot_load(*_given: object) -> bool:
    raise ImportError("_bcrypt.abi3.so: cannot open shared object file: Error 24")


async def test_what_cannot_be_compared_is_refused_and_the_next_one_is_compared(verdicts, monkeypatch, caplog):
    """For the first password bcrypt is loaded; clients may have taken all descriptors. It costs no other client."""
    errors = []
    asyncio.get_running_loop().set_exception_handler(lambda _loop, context: errors.append(context))
    passwords = Passwords(verdicts)
    first, second, third = Client(), Client(), Client()
    monkeypatch.setattr(module, "is_same", cannot_load)
    assert passwords.ask(question("good"), first)
    assert passwords.ask(question("bad"), second)
    await until_idle(passwords)
    monkeypatch.setattr(module, "is_same", is_same)
    assert passwords.ask(question("good"), third)
    await until_idle(passwords)
    assert (first.answers, second.answers, third.answers) == ([None], [None], [True])
    assert passwords.compared == 1
    assert errors == []
    assert [record.getMessage().partition(":")[0] for record in caplog.records] == [
        "Passwords cannot be compared, who logs in is refused"
    ]


async def test_where_no_thread_can_be_started_it_is_tried_again_for_the_next(verdicts, monkeypatch):
    passwords = Passwords(verdicts)
    first, second = Client(), Client()
    start = threading.Thread.start

    def no_start(_thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(threading.Thread, "start", no_start)
    assert passwords.ask(question("good"), first)
    assert first.answers == []  # who asks is not answered before it knows that it waits
    await until_idle(passwords)
    monkeypatch.setattr(threading.Thread, "start", start)
    assert passwords.ask(question("good"), second)
    await until_idle(passwords)
    assert (first.answers, second.answers) == ([None], [True])
