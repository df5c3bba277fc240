"""Watches what clients say first in TLS, and refuses what OpenSSL would be busy with for long.

It answers a key share of any group that it knows, and Python cannot tell it which (before 3.15). In the largest groups
of finite fields that takes 30 to 190 ms, in which its process serves nobody; the client need not compute anything.
nats-server, and clients by themselves, use none of them. For each key share it goes through the list of the client's
groups: 50 ms for a ClientHello of 64 KB. Sans I/O: shown all that comes until the handshake is over.
"""

from __future__ import annotations

RECORD_HEADER_BYTES = 5  # kind, version, size
HANDSHAKE_RECORD = 22
RECORDS = range(20, 24)
MESSAGE_HEADER_BYTES = 4  # kind, size
CLIENT_HELLO = 1
MOST_HELLO_BYTES = 16_384  # those of clients have some hundred bytes, or 2 KB
VERSION_AND_RANDOM_BYTES = 34
KEY_SHARE = 51
# The alert that Go sends, too: no group in common.
HANDSHAKE_FAILURE = b"\x15\x03\x03\x00\x02\x02\x28"
EXPENSIVE = {0x0102: "ffdhe4096", 0x0103: "ffdhe6144", 0x0104: "ffdhe8192"}


class ExpensiveHello(ValueError):
    """The handshake would take long; the text says why."""


class HelloWatch:
    """One connection's. There may be two ClientHello: the server may ask for another one."""

    __slots__ = ("_is_over", "_message", "_record")

    def __init__(self) -> None:
        self._is_over = False
        self._record = bytearray()  # that is not complete
        self._message = bytearray()

    def look(self, data: bytes) -> None:
        """See bytes before OpenSSL does. ExpensiveHello. What is not TLS is left to OpenSSL."""
        if self._is_over:
            return
        record = self._record
        record += data
        at = 0
        while len(record) >= at + RECORD_HEADER_BYTES and not self._is_over:
            end = at + RECORD_HEADER_BYTES + int.from_bytes(record[at + 3 : at + RECORD_HEADER_BYTES])
            if len(record) < end:
                break
            if record[at] == HANDSHAKE_RECORD:
                self._message += record[at + RECORD_HEADER_BYTES : end]
                self._read_messages()
            self._is_over |= record[at] not in RECORDS
            at = end
        del record[:at]

    def _read_messages(self) -> None:
        message = self._message
        while len(message) >= MESSAGE_HEADER_BYTES:
            end = MESSAGE_HEADER_BYTES + int.from_bytes(message[1:MESSAGE_HEADER_BYTES])
            if message[0] != CLIENT_HELLO:
                self._is_over = True  # there is no ClientHello behind another message
                return
            if end > MOST_HELLO_BYTES:
                raise ExpensiveHello(f"a ClientHello of {end} bytes")
            if len(message) < end:
                return
            for group in groups_of_key_shares(bytes(message[MESSAGE_HEADER_BYTES:end])):
                if group in EXPENSIVE:
                    raise ExpensiveHello(f"the client wants to exchange keys by {EXPENSIVE[group]}, which takes long")
            del message[:end]


def groups_of_key_shares(hello: bytes) -> list[int]:
    """The groups for which a ClientHello has a key; as far as it can be read."""
    found = []
    at = VERSION_AND_RANDOM_BYTES
    for length_bytes in (1, 2, 1):  # session, cipher suites, compression
        at += length_bytes + int.from_bytes(hello[at : at + length_bytes])
    at += 2
    while at + 4 <= len(hello):
        kind, size = int.from_bytes(hello[at : at + 2]), int.from_bytes(hello[at + 2 : at + 4])
        at += 4
        if kind == KEY_SHARE:
            share, end = at + 2, min(at + size, len(hello))
            while share + 4 <= end:
                found.append(int.from_bytes(hello[share : share + 2]))
                share += 4 + int.from_bytes(hello[share + 2 : share + 4])
        at += size
    return found
