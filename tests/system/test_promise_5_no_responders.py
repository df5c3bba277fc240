"""Whether anybody answers a request is decided on the interest of the whole broker."""

from __future__ import annotations

import pytest

pytestmark = pytest.mark.kinds("gnatswarm-1", "gnatswarm-2", "gnatswarm-4", "nats-server")

ASKS = {"headers": True, "no_responders": True}


def nobody(subject: str) -> str:
    return f"HMSG {subject} 1 16 16\r\nNATS/1.0 503\r\n\r\n\r\n"


@pytest.mark.parametrize("pattern", ["{s}", "{s} workers", "s.*", "s.>", "> all"])
async def test_a_responder_anywhere_is_a_responder(place, subject, pattern):
    asker, responder = await place(2, ASKS)
    await asker.talk(f"SUB inbox.{subject} 1\r\nPING\r\n", expect="PONG\r\n")
    if pattern != "> all":
        await asker.talk(f"PUB {subject} inbox.{subject} 1\r\n?\r\n", expect=nobody(f"inbox.{subject}"))
    for number in range(20):
        await responder.talk(f"SUB {pattern.format(s=subject)} {number}\r\nPING\r\n", expect="PONG\r\n")
        await asker.talk(f"PUB {subject} inbox.{subject} 1\r\n?\r\nPING\r\n", expect="PONG\r\n")
        await responder.expect(f"MSG {subject} {number} inbox.{subject} 1\r\n?\r\n")
        await responder.talk(f"UNSUB {number}\r\nPING\r\n", expect="PONG\r\n")
    if pattern != "> all":
        await asker.talk(f"PUB {subject} inbox.{subject} 1\r\n?\r\n", expect=nobody(f"inbox.{subject}"))


@pytest.mark.parametrize("queue", ["", "workers"])
async def test_the_only_responder_is_the_asker_who_wants_no_echo(place, subject, queue):
    asker, other = await place(2, {**ASKS, "echo": False})
    await asker.talk(f"SUB inbox.{subject} 1\r\nSUB {subject} {queue} 2\r\nPING\r\n", expect="PONG\r\n")
    await asker.talk(f"PUB {subject} inbox.{subject} 1\r\n?\r\n", expect=nobody(f"inbox.{subject}"))
    # Somebody else's subscription counts, and gets it.
    await other.talk(f"SUB {subject} {queue} 3\r\nPING\r\n", expect="PONG\r\n")
    for _ in range(50):
        await asker.talk(f"PUB {subject} inbox.{subject} 1\r\n?\r\nPING\r\n", expect="PONG\r\n")
        await other.expect(f"MSG {subject} 3 inbox.{subject} 1\r\n?\r\n")
    await other.talk("UNSUB 3\r\nPING\r\n", expect="PONG\r\n")
    await asker.talk(f"PUB {subject} inbox.{subject} 1\r\n?\r\n", expect=nobody(f"inbox.{subject}"))


async def test_a_request_that_is_answered_far_away_gets_its_answer_and_nothing_else(place, subject):
    asker, responder = await place(2, ASKS)
    await responder.talk(f"SUB {subject} 9\r\nPING\r\n", expect="PONG\r\n")
    await asker.talk(f"SUB inbox.{subject}.* 1\r\nPING\r\n", expect="PONG\r\n")
    for number in range(200):
        await asker.send(f"PUB {subject} inbox.{subject}.{number} 1\r\n?\r\n")
        await responder.expect(f"MSG {subject} 9 inbox.{subject}.{number} 1\r\n?\r\n")
        await responder.send(f"PUB inbox.{subject}.{number} 1\r\n!\r\n")
        await asker.expect(f"MSG inbox.{subject}.{number} 1 1\r\n!\r\n")


async def test_the_status_goes_to_the_asker_alone(place, subject):
    """Another subscriber of the reply subject, here or elsewhere, hears nothing."""
    asker, *others = await place(4, ASKS)
    for client in (asker, *others):
        await client.talk(f"SUB inbox.{subject} 1\r\nPING\r\n", expect="PONG\r\n")
    await asker.talk(
        f"PUB {subject} inbox.{subject} 1\r\n?\r\nPING\r\n", expect=nobody(f"inbox.{subject}") + "PONG\r\n"
    )
    for other in others:
        await other.expect_quiet()


@pytest.mark.parametrize("queue", ["", "workers"])
async def test_the_only_responder_has_just_had_its_max(place, subject, queue):
    """What comes behind the last message that it wanted has no responder; the shard of the asker cannot know it yet."""
    asker, responder = await place(2, ASKS)
    await asker.talk(f"SUB inbox.{subject} 1\r\nPING\r\n", expect="PONG\r\n")
    request = f"PUB {subject} inbox.{subject} 1\r\n?\r\n"
    for number in range(20):
        await responder.talk(f"SUB {subject} {queue} {number}\r\nUNSUB {number} 1\r\nPING\r\n", expect="PONG\r\n")
        await asker.talk(2 * request + "PING\r\n", expect=nobody(f"inbox.{subject}") + "PONG\r\n")
        await responder.expect(f"MSG {subject} {number} inbox.{subject} 1\r\n?\r\n")
