"""Every error that a peer can cause: the text sent to it, whether it closes the connection, and the reason shown later.

The texts are exactly nats-server 2.9.10's, because clients match them. Three families are
never mixed: ProtocolError (the peer broke the protocol), ConfigError (an error in the configuration,
router.config.conf) and everything else (a bug of ours: the shard logs it, exits and is restarted).
"""

from __future__ import annotations

import enum

from gnatswarm.broker.quoted import quoted


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
    PUBLISH_RATE_EXCEEDED = 21
    MAXIMUM_CONTROL_LINE_EXCEEDED = 22
    BAD_CLIENT_PROTOCOL_VERSION = 23

    @property
    def text(self) -> str:
        """The reason as /connz shows it."""
        return _TEXTS.get(self, self.name.replace("_", " ").title())


_TEXTS = {
    CloseReason.SLOW_CONSUMER_PENDING_BYTES: "Slow Consumer (Pending Bytes)",
    CloseReason.SLOW_CONSUMER_WRITE_DEADLINE: "Slow Consumer (Write Deadline)",
    CloseReason.TLS_HANDSHAKE_FAILURE: "TLS Handshake Failure",
    CloseReason.MAXIMUM_PAYLOAD_EXCEEDED: "Maximum Message Payload Exceeded",
}


class ProtocolError(Exception):
    """The peer broke the protocol. `text` is the text in -ERR '…'; "" closes without one."""

    text: str = ""
    closes: bool = True
    reason: CloseReason = CloseReason.PROTOCOL_VIOLATION

    @property
    def logged(self) -> str:
        """The text for the log; nats-server's, because tools search for it."""
        return self.text or self.reason.text

    @property
    def wire(self) -> bytes:
        """The line sent to the peer; b"": none."""
        return f"-ERR '{self.text}'\r\n".encode("utf-8", "surrogateescape") if self.text else b""


class UnknownProtocolOperation(ProtocolError):
    text = "Unknown Protocol Operation"


class BadArguments(ProtocolError):
    """Invalid arguments: closed without an error text, as in nats-server 2 (1.0.0 sent 'Parser Error')."""


class PeerSaidError(ProtocolError):
    """A client has sent -ERR: closed without an error text."""

    reason = CloseReason.PARSE_ERROR


class ControlLineTooLong(ProtocolError):
    text = "maximum control line exceeded"
    reason = CloseReason.MAXIMUM_CONTROL_LINE_EXCEEDED


class MaximumPayloadViolation(ProtocolError):
    text = "Maximum Payload Violation"
    reason = CloseReason.MAXIMUM_PAYLOAD_EXCEEDED

    def __init__(self, announced_bytes: int = 0, most_bytes: int = 0) -> None:
        super().__init__()
        self._sizes = (announced_bytes, most_bytes)

    @property
    def logged(self) -> str:
        return "maximum payload exceeded: {} vs {}".format(*self._sizes)


class MaximumConnectionsExceeded(ProtocolError):
    text = "maximum connections exceeded"
    reason = CloseReason.MAXIMUM_CONNECTIONS_EXCEEDED


class ConnectionThrottling(ProtocolError):
    """More TLS handshakes than connection_rate_limit allows."""

    text = "Connection throttling is active. Please try again later."
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
    reason = CloseReason.BAD_CLIENT_PROTOCOL_VERSION


class NoRespondersRequiresHeaders(ProtocolError):
    text = "no responders requires headers support"
    reason = CloseReason.NO_RESPONDERS_REQUIRES_HEADERS


class StaleConnection(ProtocolError):
    text = "Stale Connection"
    reason = CloseReason.STALE_CONNECTION


class PublishRateExceeded(ProtocolError):
    """Ours: nats-server has no publish_limits."""

    text = "Publish Rate Exceeded"
    reason = CloseReason.PUBLISH_RATE_EXCEEDED


class SecureConnectionRequired(ProtocolError):
    text = "Secure Connection - TLS Required"
    reason = CloseReason.TLS_HANDSHAKE_FAILURE


class InvalidSubject(ProtocolError):
    text = "Invalid Subject"
    closes = False


class InvalidPublishSubject(ProtocolError):
    """Pedantic mode only; the message is delivered nevertheless, as in nats-server."""

    text = "Invalid Publish Subject"
    closes = False


class MaximumSubscriptionsExceeded(ProtocolError):
    text = "maximum subscriptions exceeded"
    closes = False
    reason = CloseReason.MAXIMUM_SUBSCRIPTIONS_EXCEEDED


class PermissionsViolation(ProtocolError):
    """The client's permissions do not allow it; the error is sent instead of +OK.

    `deed` (what it violated) and `about` (with which subject) are for the log, which puts the user between them.
    """

    closes = False

    def __init__(self, text: str = "Permissions Violation", deed: str = "", about: str = "") -> None:
        super().__init__(text)
        self.text = text
        self.deed = deed
        self.about = about


def publish_violation(subject: bytes) -> PermissionsViolation:
    """A publish to a subject."""
    shown = quoted(subject)
    return PermissionsViolation(
        f"Permissions Violation for Publish to {shown}", "Publish Violation", f"Subject {shown}"
    )


def reply_violation(reply: bytes) -> PermissionsViolation:
    """A publish with a reply subject reserved for the broker."""
    shown = quoted(reply)
    return PermissionsViolation(
        f"Permissions Violation for Publish with Reply of {shown}", "Publish Violation", f"Reply {shown}"
    )


def subscription_violation(subject: bytes, queue: bytes, sid: bytes) -> PermissionsViolation:
    """A subscription; `queue` b"": without a queue group."""
    shown, using, of = quoted(subject), "", ""
    if queue:
        using, of = f" using queue {quoted(queue)}", f", Queue: {quoted(queue)}"
    return PermissionsViolation(
        f"Permissions Violation for Subscription to {shown}{using}",
        "Subscription Violation",
        f"Subject {shown}{of}, SID {quoted(sid)[1:-1]}",
    )


def too_many_tokens(subject: bytes, sid: bytes) -> PermissionsViolation:
    """A subscription with more tokens than max_sub_tokens."""
    shown = quoted(subject)
    return PermissionsViolation(
        f"Permissions Violation for Subscription to {shown}, too many tokens",
        "Subscription Violation Too Many Tokens",
        f"Subject {shown}, SID {quoted(sid)[1:-1]}",
    )


def subscription_revoked(subject: bytes, sid: bytes, queue: bytes) -> PermissionsViolation:
    """A subscription that new permissions ended; `queue`: its queue group, b"" where none is named (by 2.9 never)."""
    group = f" using queue {quoted(queue)}" if queue else ""
    return PermissionsViolation(
        f"Permissions Violation for Subscription to {quoted(subject)}{group} (sid {quoted(sid)})"
    )
