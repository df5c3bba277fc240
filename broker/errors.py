"""Every error a peer can cause: what it is told, whether that closes the connection, and the reason shown later.

The texts are nats-server 2.9.10's to the letter, because clients match them (protocol.md, section 4). Three
families are never mixed: ProtocolError (the peer broke the protocol), ConfigError (the operator broke the
configuration, broker.conf) and everything else (we broke an invariant: the shard dies loudly and is restarted).
"""

from __future__ import annotations

import enum

from broker.quoted import quoted


class CloseReason(enum.IntEnum):
    """Why a connection ended, in the order of `CloseReason` in outbuf.pxd; the texts are those of /connz."""

    NONE = 0
    CLIENT_CLOSED = 1
    AUTHENTICATION_TIMEOUT = 2
    AUTHENTICATION_FAILURE = 3
    TLS_HANDSHAKE_FAILURE = 4
    SLOW_CONSUMER_PENDING_BYTES = 5
    SLOW_CONSUMER_WRITE_DEADLINE = 6
    WRITE_ERROR = 7
    READ_ERROR = 8
    PARSE_ERROR = 9
    STALE_CONNECTION = 10
    PROTOCOL_VIOLATION = 11
    MAXIMUM_PAYLOAD_EXCEEDED = 12
    MAXIMUM_CONNECTIONS_EXCEEDED = 13
    MAXIMUM_SUBSCRIPTIONS_EXCEEDED = 14
    SERVER_SHUTDOWN = 15
    AUTHENTICATION_EXPIRED = 16
    KICKED = 17
    NO_RESPONDERS_REQUIRES_HEADERS = 18
    MAXIMUM_ACCOUNT_CONNECTIONS_EXCEEDED = 19
    ROUTE_REMOVED = 20

    @property
    def text(self) -> str:
        """As /connz shows it."""
        return _TEXTS.get(self, self.name.replace("_", " ").title())


_TEXTS = {
    CloseReason.SLOW_CONSUMER_PENDING_BYTES: "Slow Consumer (Pending Bytes)",
    CloseReason.SLOW_CONSUMER_WRITE_DEADLINE: "Slow Consumer (Write Deadline)",
    CloseReason.TLS_HANDSHAKE_FAILURE: "TLS Handshake Failure",
}


class ProtocolError(Exception):
    """The peer broke the protocol. `text` is what stands in -ERR '…'; "" closes without a word."""

    text: str = ""
    closes: bool = True
    reason: CloseReason = CloseReason.PROTOCOL_VIOLATION

    @property
    def wire(self) -> bytes:
        """The line the peer is told; b"" for none."""
        return f"-ERR '{self.text}'\r\n".encode("utf-8", "surrogateescape") if self.text else b""


class UnknownProtocolOperation(ProtocolError):
    text = "Unknown Protocol Operation"
    reason = CloseReason.PARSE_ERROR


class BadArguments(ProtocolError):
    """Arguments that cannot be read: closed without a word, as nats-server 2 does (1.0.0 said 'Parser Error')."""

    reason = CloseReason.PARSE_ERROR


class PeerSaidError(ProtocolError):
    """A client that sends -ERR: closed without a word."""

    reason = CloseReason.PARSE_ERROR


class ControlLineTooLong(ProtocolError):
    text = "maximum control line exceeded"
    reason = CloseReason.PARSE_ERROR


class MaximumPayloadViolation(ProtocolError):
    text = "Maximum Payload Violation"
    reason = CloseReason.MAXIMUM_PAYLOAD_EXCEEDED


class MaximumConnectionsExceeded(ProtocolError):
    text = "maximum connections exceeded"
    reason = CloseReason.MAXIMUM_CONNECTIONS_EXCEEDED


class MaximumAccountConnectionsExceeded(ProtocolError):
    text = "maximum account active connections exceeded"
    reason = CloseReason.MAXIMUM_ACCOUNT_CONNECTIONS_EXCEEDED


class AuthorizationViolation(ProtocolError):
    text = "Authorization Violation"
    reason = CloseReason.AUTHENTICATION_FAILURE


class AuthenticationTimeout(ProtocolError):
    text = "Authentication Timeout"
    reason = CloseReason.AUTHENTICATION_TIMEOUT


class UserAuthenticationExpired(ProtocolError):
    text = "User Authentication Expired"
    reason = CloseReason.AUTHENTICATION_EXPIRED


class InvalidClientProtocol(ProtocolError):
    text = "invalid client protocol"


class NoRespondersRequiresHeaders(ProtocolError):
    text = "no responders requires headers support"
    reason = CloseReason.NO_RESPONDERS_REQUIRES_HEADERS


class StaleConnection(ProtocolError):
    text = "Stale Connection"
    reason = CloseReason.STALE_CONNECTION


class SecureConnectionRequired(ProtocolError):
    text = "Secure Connection - TLS Required"
    reason = CloseReason.TLS_HANDSHAKE_FAILURE


class InvalidSubject(ProtocolError):
    text = "Invalid Subject"
    closes = False


class InvalidPublishSubject(ProtocolError):
    """Pedantic mode only; the message goes out all the same, as on nats-server."""

    text = "Invalid Publish Subject"
    closes = False


class MaximumSubscriptionsExceeded(ProtocolError):
    text = "maximum subscriptions exceeded"
    closes = False
    reason = CloseReason.MAXIMUM_SUBSCRIPTIONS_EXCEEDED


class PermissionsViolation(ProtocolError):
    """Something that the client's permissions do not allow; the error takes the place of +OK."""

    closes = False

    def __init__(self, text: str = "Permissions Violation") -> None:
        super().__init__(text)
        self.text = text


def publish_violation(subject: bytes) -> PermissionsViolation:
    """A publish to a subject."""
    return PermissionsViolation(f"Permissions Violation for Publish to {quoted(subject)}")


def reply_violation(reply: bytes) -> PermissionsViolation:
    """A publish with a reply subject that is the broker's own."""
    return PermissionsViolation(f"Permissions Violation for Publish with Reply of {quoted(reply)}")


def subscription_violation(subject: bytes, queue: bytes = b"") -> PermissionsViolation:
    """A subscription."""
    using = f" using queue {quoted(queue)}" if queue else ""
    return PermissionsViolation(f"Permissions Violation for Subscription to {quoted(subject)}{using}")


def subscription_revoked(subject: bytes, sid: bytes) -> PermissionsViolation:
    """A subscription that new permissions ended."""
    return PermissionsViolation(f"Permissions Violation for Subscription to {quoted(subject)} (sid {quoted(sid)})")
