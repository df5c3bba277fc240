"""CONNECT: what a client may give as its options."""

from __future__ import annotations

import json
import sys

import msgspec

from gnatswarm.broker.access.connect import ClientOptions, overlay, require_object, require_sense
from gnatswarm.broker.errors import (
    AuthorizationViolation,
    BadArguments,
    InvalidClientProtocol,
    NoRespondersRequiresHeaders,
    ProtocolError,
)
from gnatswarm.shards.boundary.utf8_text import utf8_text

_FIELDS = msgspec.structs.fields(ClientOptions)

WORDS = [f'"{field.encode_name}":'.encode() for field in _FIELDS] + [
    b"true",
    b"null",
    b"9223372036854775807",
    b"\\ud800",
]


def check(data: bytes) -> None:
    """Any argument is either accepted or refused, by one of the four errors of CONNECT and by no other exception.

    Accepted options have the declared types and texts that pages can show; the options before are unchanged, the same
    CONNECT again changes nothing, and a CONNECT written from the options gives the same options. What is refused is
    refused again. The recursion limit is as before.
    """
    before = ClientOptions(verbose=False, name="before")
    was = msgspec.structs.replace(before)
    depth = sys.getrecursionlimit()
    options = result(before, data)
    assert before == was and sys.getrecursionlimit() == depth
    assert result(before, data) == options
    if not isinstance(options, ClientOptions):
        return
    require_object(data)
    for field in _FIELDS:
        value = getattr(options, field.name)
        assert type(value) is field.type, f"{field.name} is {value!r}"
        if isinstance(value, str):
            utf8_text(value).encode()
    assert overlay(options, data) == options
    written = {field.encode_name: getattr(options, field.name) for field in _FIELDS}
    assert overlay(ClientOptions(), json.dumps(written).encode()) == options
    try:
        require_sense(options)
    except InvalidClientProtocol:
        assert options.protocol not in (0, 1)
    except NoRespondersRequiresHeaders:
        assert options.no_responders and not options.headers
    else:
        assert options.protocol in (0, 1)
        assert options.headers or not options.no_responders


def result(before: ClientOptions, data: bytes) -> ClientOptions | type[ProtocolError]:
    """The result of an argument: options, or the kind of error."""
    try:
        return overlay(before, data)
    except (BadArguments, AuthorizationViolation) as error:
        return type(error)
