"""Connects to a NATS server and logs in: from dialling to the first PONG.

Blocking, with a deadline. Every failure is a NatsError with one line of text that names the server.
"""

from __future__ import annotations

import json
import socket
import ssl
from collections.abc import Mapping
from typing import Any, NamedTuple

from gnatswarm.loadtest.credentials import Address, BadCredentials, Credentials
from gnatswarm.loadtest.errors import AuthenticationError, LoadFailed, NatsError, Refused, ServerError
from gnatswarm.loadtest.wireparser import Err, Frame, Info, Parser, Pong, ProtocolViolation

READ_BYTES = 256 * 1024
# The end of an error message that begins "… TLS, which".
PLAIN_ONLY = "the compiled generator does not speak: use locust (tls:// and --tlsca), or give bench a plain port"


class Opened(NamedTuple):
    """A connection after its log-in."""

    sock: socket.socket
    parser: Parser  # may hold the beginning of a frame
    info: dict[str, Any]
    frames: list[Frame]  # frames that came before or with the PONG, which is left out


def log_in(
    address: Address,
    credentials: Credentials,
    keys: Mapping[str, Any],
    timeout_s: float = 5.0,
    congestion_control: str = "",
    tls: ssl.SSLContext | None = None,
    is_plain_only: bool = False,
    tls_first: bool = False,
) -> Opened:
    """Connect, read INFO, send CONNECT with `keys` and the credentials', wait for a PONG.

    `tls_first`: start with the TLS handshake, before INFO, as servers with `handshake_first` require.

    `is_plain_only`: the caller will use the descriptor without TLS; a server that requires TLS is a LoadFailed.
    `headers` and `no_responders` are sent as the server allows them. Refused, AuthenticationError, ServerError,
    BadCredentials or ProtocolViolation.
    """
    try:
        sock = dial(address, timeout_s, congestion_control)
    except OSError as error:
        raise Refused(f"{address}: cannot connect: {reason(error)}") from None
    except UnicodeError:
        raise Refused(f"{address}: cannot connect: this is no name of a host") from None
    try:
        return _converse(sock, address, credentials, keys, tls, is_plain_only, tls_first)
    except OSError as error:
        sock.close()
        raise Refused(f"{address}: while logging in: {reason(error)}") from None
    except BaseException:
        sock.close()
        raise


def dial(address: Address, timeout_s: float, congestion_control: str = "") -> socket.socket:
    """A TCP connection with Nagle's algorithm off; OSError."""
    sock = socket.create_connection((address.host, address.port), timeout_s)
    try:
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        if congestion_control:
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_CONGESTION, congestion_control.encode())
    except OSError as error:
        sock.close()
        if congestion_control:
            raise OSError(error.errno, f"congestion control {congestion_control}: {reason(error)}") from None
        raise
    return sock


def _converse(
    sock: socket.socket,
    address: Address,
    credentials: Credentials,
    keys: Mapping[str, Any],
    tls: ssl.SSLContext | None,
    is_plain_only: bool,
    tls_first: bool,
) -> Opened:
    parser = Parser()
    if tls_first:
        sock = (tls or ssl.create_default_context()).wrap_socket(sock, server_hostname=address.host)
    frames = _frames_until(sock, parser, Info)
    first = frames.pop(0)
    if not isinstance(first, Info):
        raise as_error(first, address)
    if not tls_first and (address.tls or first.keys.get("tls_required")):
        if is_plain_only:
            raise LoadFailed(f"{address}: the server requires TLS, which {PLAIN_ONLY}")
        if not (first.keys.get("tls_required") or first.keys.get("tls_available")):
            raise Refused(f"{address}: tls:// asks for TLS, which this server does not offer")
        sock = (tls or ssl.create_default_context()).wrap_socket(sock, server_hostname=address.host)
    has_headers = bool(first.keys.get("headers"))
    words = {
        **keys,
        "tls_required": address.tls,
        "headers": has_headers and keys.get("headers", True),
        "no_responders": has_headers and keys.get("no_responders", True),
        **credentials.connect_keys(str(first.keys.get("nonce", ""))),
    }
    sock.sendall(b"CONNECT " + json.dumps(words).encode() + b"\r\nPING\r\n")
    frames += _frames_until(sock, parser, Pong)
    for frame in frames:
        if isinstance(frame, Err):
            raise as_error(frame, address)
    return Opened(sock, parser, first.keys, [frame for frame in frames if not isinstance(frame, Pong)])


def tls_context(ca: str = "", certificate: str = "", key: str = "") -> ssl.SSLContext:
    """A context that trusts `ca` ("": the system's authorities), with our certificate. BadCredentials with the file."""
    if key and not certificate:
        raise BadCredentials(f"{key}: a key without its certificate")
    try:
        context = ssl.create_default_context(cafile=ca or None)
    except OSError as error:  # SSLError is one
        raise BadCredentials(f"{ca}: cannot be used as trusted certificates: {reason(error)}") from None
    if certificate:
        try:
            context.load_cert_chain(certificate, key or None, password=_no_password)
        except OSError as error:
            where = f"{certificate}, {key}" if key else certificate
            raise BadCredentials(f"{where}: cannot be used as certificate and key: {reason(error)}") from None
    return context


def _no_password() -> str:
    """Prevents OpenSSL from asking for a password on the terminal."""
    return ""


def _frames_until(sock: socket.socket, parser: Parser, wanted: type[Frame]) -> list[Frame]:
    """The frames up to the first one of that kind, or up to an -ERR."""
    frames: list[Frame] = []
    while not any(isinstance(frame, wanted | Err) for frame in frames):
        data = sock.recv(READ_BYTES)
        if not data:
            raise ConnectionResetError("the server closed the connection")
        try:
            frames += parser.feed(data)
        except ProtocolViolation as violation:
            raise ServerError(f"this is no NATS server: {violation}") from None
    return frames


def as_error(frame: Frame, address: Address | None = None) -> NatsError:
    """The exception for an -ERR, or for an unexpected frame."""
    text = frame.text if isinstance(frame, Err) else f"{type(frame).__name__.upper()} where INFO was expected"
    is_about_login = text.lower().startswith(("authorization", "authentication", "user authentication"))
    return (AuthenticationError if is_about_login else ServerError)(f"{address}: {text}" if address else text)


def reason(error: OSError) -> str:
    """The text of an OSError, lower-case, to follow a colon."""
    text = str(error.strerror or error or type(error).__name__)
    return text[:1].lower() + text[1:]
