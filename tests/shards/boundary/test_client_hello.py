"""ClientHello with cheap and expensive key shares, cut into records and pieces of any size."""

from __future__ import annotations

import contextlib
import random
import ssl
from collections.abc import Iterator

import pytest

from gnatswarm.shards.boundary.client_hello import (
    EXPENSIVE,
    MOST_HELLO_BYTES,
    ExpensiveHello,
    HelloWatch,
    groups_of_key_shares,
)

X25519, FFDHE3072, FFDHE8192 = 0x001D, 0x0101, 0x0104
CHANGE_CIPHER_SPEC = b"\x14\x03\x03\x00\x01\x01"
DATA = b"\x17\x03\x03\x00\x05early"


def client_hello(*groups: int) -> bytes:
    """The handshake message of a client that has a key for each of these groups."""
    shares = b"".join(group.to_bytes(2, "big") + b"\x00\x04key!" for group in groups)
    extensions = b"\x00\x0a\x00\x02\x00\x00" + b"\x00\x33" + (len(shares) + 2).to_bytes(2, "big")
    extensions += len(shares).to_bytes(2, "big") + shares
    body = b"\x03\x03" + b"r" * 32 + b"\x20" + b"s" * 32 + b"\x00\x04\x13\x01\x13\x02" + b"\x01\x00"
    body += len(extensions).to_bytes(2, "big") + extensions
    return b"\x01" + len(body).to_bytes(3, "big") + body


def records(message: bytes, most: int = 16_384) -> bytes:
    """A handshake message in records of at most so many bytes."""
    parts = [message[at : at + most] for at in range(0, len(message), most)]
    return b"".join(b"\x16\x03\x01" + len(part).to_bytes(2, "big") + part for part in parts)


def look(wire: bytes, piece: int = 100_000) -> None:
    watch = HelloWatch()
    for at in range(0, len(wire), piece):
        watch.look(wire[at : at + piece])


@pytest.mark.parametrize("group", EXPENSIVE)
@pytest.mark.parametrize("most", [1, 7, 16_384])
@pytest.mark.parametrize("piece", [1, 6, 100_000])
def test_an_expensive_key_share_is_refused_however_it_is_cut(group: int, most: int, piece: int) -> None:
    with pytest.raises(ExpensiveHello, match=f"exchange keys by {EXPENSIVE[group]}, which takes long"):
        look(records(client_hello(X25519, group), most), piece)


@pytest.mark.parametrize("between", [b"", CHANGE_CIPHER_SPEC, CHANGE_CIPHER_SPEC + DATA])
def test_the_second_client_hello_is_looked_at_too(between: bytes) -> None:
    with pytest.raises(ExpensiveHello):
        look(records(client_hello()) + between + records(client_hello(FFDHE8192)))


def test_a_client_hello_is_refused_before_openssl_has_its_last_byte() -> None:
    wire = records(client_hello(FFDHE8192))
    watch = HelloWatch()
    watch.look(wire[:-1])
    with pytest.raises(ExpensiveHello):
        watch.look(wire[-1:])


@pytest.mark.parametrize("most", [1000, 16_384])
def test_a_long_client_hello_is_refused_as_soon_as_its_length_is_known(most: int) -> None:
    """By its groups and shares one of 64 KB took 50 ms."""
    fits = client_hello(*[0x7777] * ((MOST_HELLO_BYTES - 100) // 8))
    assert MOST_HELLO_BYTES - 100 < len(fits) <= MOST_HELLO_BYTES
    look(records(fits, most))
    long = client_hello(*[0x7777] * 8000)
    with pytest.raises(ExpensiveHello, match=f"a ClientHello of {len(long)} bytes"):
        look(records(long, most)[: 5 + most])


def hello_of_openssl() -> bytes:
    context = ssl.create_default_context()
    outgoing = ssl.MemoryBIO()
    with contextlib.suppress(ssl.SSLWantReadError):
        context.wrap_bio(ssl.MemoryBIO(), outgoing, server_hostname="localhost").do_handshake()
    return outgoing.read()


@pytest.mark.parametrize("most", [1, 100, 16_384])
def test_what_clients_say_is_let_through(most: int) -> None:
    message = hello_of_openssl()[5:]
    assert X25519 in groups_of_key_shares(message[4:])
    look(records(message, most) * 2)
    look(records(client_hello(X25519, FFDHE3072), most))


def test_nothing_is_looked_at_behind_another_message() -> None:
    """Of TLS 1.2 without a second ClientHello, or no TLS at all: OpenSSL says what is wrong with it."""
    look(records(client_hello()) + records(b"\x10\x00\x00\x01k") + records(client_hello(FFDHE8192)))
    look(b"GET / HTTP/1.1\r\n\r\n" + records(client_hello(FFDHE8192)))


def mutilated(rng: random.Random) -> Iterator[bytes]:
    for _ in range(2000):
        wire = bytearray(records(client_hello(X25519, FFDHE3072), rng.choice([5, 16_384])))
        for _ in range(rng.randrange(1, 4)):
            wire[rng.randrange(len(wire))] = rng.randrange(256)
        yield bytes(wire[: rng.randrange(len(wire))] if rng.random() < 0.3 else wire)


def test_what_is_no_client_hello_is_left_to_openssl() -> None:
    looked = 0
    for wire in mutilated(random.Random(7)):
        with contextlib.suppress(ExpensiveHello):  # a bit of the group may have been changed
            look(wire, 11)
            looked += 1
    assert looked > 1900
