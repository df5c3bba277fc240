"""The catalogue of what a peer is told: texts to the letter, what closes, and the reason shown later.

The expected values are typed here once more, because clients match these texts.
"""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from gnatswarm.broker import errors
from gnatswarm.broker.errors import CloseReason, ProtocolError

# class → text on the wire, does it close, what /connz shows
CATALOGUE = {
    "UnknownProtocolOperation": ("Unknown Protocol Operation", True, "Protocol Violation"),
    "BadArguments": ("", True, "Protocol Violation"),
    "PeerSaidError": ("", True, "Parse Error"),
    "ControlLineTooLong": ("maximum control line exceeded", True, "Maximum Control Line Exceeded"),
    "MaximumPayloadViolation": ("Maximum Payload Violation", True, "Maximum Message Payload Exceeded"),
    "MaximumConnectionsExceeded": ("maximum connections exceeded", True, "Maximum Connections Exceeded"),
    "ConnectionThrottling": (
        "Connection throttling is active. Please try again later.",
        True,
        "Maximum Connections Exceeded",
    ),
    "MaximumAccountConnectionsExceeded": (
        "maximum account active connections exceeded",
        True,
        "Maximum Account Connections Exceeded",
    ),
    "AuthorizationViolation": ("Authorization Violation", True, "Authentication Failure"),
    "AuthenticationTimeout": ("Authentication Timeout", True, "Authentication Timeout"),
    "UserAuthenticationExpired": ("User Authentication Expired", True, "Authentication Expired"),
    "InvalidClientProtocol": ("invalid client protocol", True, "Bad Client Protocol Version"),
    "NoRespondersRequiresHeaders": ("no responders requires headers support", True, "No Responders Requires Headers"),
    "StaleConnection": ("Stale Connection", True, "Stale Connection"),
    "PublishRateExceeded": ("Publish Rate Exceeded", True, "Publish Rate Exceeded"),  # ours
    "SecureConnectionRequired": ("Secure Connection - TLS Required", True, "TLS Handshake Failure"),
    "InvalidSubject": ("Invalid Subject", False, None),
    "InvalidPublishSubject": ("Invalid Publish Subject", False, None),
    "MaximumSubscriptionsExceeded": ("maximum subscriptions exceeded", False, "Maximum Subscriptions Exceeded"),
    "PermissionsViolation": ("Permissions Violation", False, None),  # and what it was
}

# In the order of connz
REASON_TEXTS = [
    "Client Closed",
    "Authentication Timeout",
    "Authentication Failure",
    "TLS Handshake Failure",
    "Slow Consumer (Pending Bytes)",
    "Slow Consumer (Write Deadline)",
    "Write Error",
    "Read Error",
    "Parse Error",
    "Stale Connection",
    "Protocol Violation",
    "Maximum Message Payload Exceeded",
    "Maximum Connections Exceeded",
    "Maximum Subscriptions Exceeded",
    "Server Shutdown",
    "Authentication Expired",
    "Kicked",
    "No Responders Requires Headers",
    "Maximum Account Connections Exceeded",
    "Route Removed",
    "Publish Rate Exceeded",
    "Maximum Control Line Exceeded",
    "Bad Client Protocol Version",
]


def known_errors() -> dict[str, type[ProtocolError]]:
    return {cls.__name__: cls for cls in ProtocolError.__subclasses__() if cls.__module__ == errors.__name__}


def test_the_catalogue_is_complete():
    assert set(known_errors()) == set(CATALOGUE)


@pytest.mark.parametrize("name", CATALOGUE)
def test_an_error_says_closes_and_is_shown_as_the_protocol_has_it(name):
    text, closes, reason = CATALOGUE[name]
    error = known_errors()[name]()
    assert error.wire == (f"-ERR '{text}'\r\n".encode() if text else b"")
    assert error.closes is closes
    if reason is not None:
        assert error.reason.text == reason


@pytest.mark.parametrize(
    "prefix",
    [
        "stale connection",
        "authorization violation",
        "maximum connections exceeded",
        "maximum subscriptions exceeded",
        "user authentication expired",
    ],
)
def test_clients_find_the_texts_they_match_by_prefix(prefix):
    assert any(text.lower().startswith(prefix) for text, _, _ in CATALOGUE.values())


def test_close_reasons_are_shown_with_the_texts_of_connz():
    assert [reason.text for reason in CloseReason if reason] == REASON_TEXTS


def test_close_reasons_have_the_engines_numbers():
    header = Path(__file__, "../../../broker/outbuf.pxd").resolve().read_text(encoding="utf-8")
    numbers = {name: int(number) for name, number in re.findall(r"^    CLOSE_(\w+) = (\d+)$", header, re.MULTILINE)}
    assert numbers == {reason.name: reason.value for reason in CloseReason}


def test_an_error_text_that_is_no_utf_8_goes_out_as_it_came():
    class Violation(ProtocolError):
        text = b'Permissions Violation for Publish to "\xff"'.decode("utf-8", "surrogateescape")

    assert Violation().wire == b"-ERR 'Permissions Violation for Publish to \"\xff\"'\r\n"
