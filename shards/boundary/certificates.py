"""TLS certificates: turns the TLS options of a port, or of another server, into the ssl context of its connections.

The router reads the files once per start and reload, and sends their contents to the shards. So a bad file stops the
start, or leaves a running broker as it was; and a file that is replaced later takes effect at the next reload, also
for a shard that is restarted meanwhile. Sessions are not resumed: the next connection may reach another shard, which
has other session keys. Imported only where TLS is configured.
"""

from __future__ import annotations

import base64
import contextlib
import os
import ssl
from typing import TYPE_CHECKING

import msgspec

from gnatswarm.broker.access import ciphers
from gnatswarm.broker.access.certificate_dates import validity_of
from gnatswarm.broker.access.certificate_parts import dns_names, is_forgeable, key_kind
from gnatswarm.broker.options import CertificatePair
from gnatswarm.shards.boundary.file_kind import is_nameless_pipe, other_kind

if TYPE_CHECKING:
    import datetime
    from collections.abc import Callable, Iterable, Iterator
    from typing import TypeVar

    from gnatswarm.broker.options import ClientTls, Tls

    T = TypeVar("T")

# A longer file is not a certificate file: a bundle of all public authorities has 230 KB.
MOST_FILE_BYTES = 2**20

_PAIR = "error parsing X509 certificate/key pair"
_AUTHORITY = "error parsing root ca certificate"
_TOO_WEAK = frozenset({"CA_MD_TOO_WEAK", "EE_KEY_TOO_SMALL", "CA_KEY_TOO_SMALL"})
_VERSIONS = {"1.2": ssl.TLSVersion.TLSv1_2, "1.3": ssl.TLSVersion.TLSv1_3}


class CertificateError(Exception):
    """Files or names from which no ssl context can be made; the text is for the operator."""


class UnusedAuthorities(CertificateError):
    """A ca_file without authorities, of a port that checks no certificate."""


def with_files(tls: Tls) -> Tls:
    """These options with the present contents of their files. Raises CertificateError."""
    found: dict[str, object] = {"cert_pem": _read(tls.cert_file, _PAIR), "key_pem": _read(tls.key_file, _PAIR)}
    found["more_certs"] = tuple(
        CertificatePair(one.cert_file, one.key_file, _read(one.cert_file, _PAIR), _read(one.key_file, _PAIR))
        for one in tls.more_certs
    )
    if tls.asks_for_certificate and tls.ca_file:
        found["ca_pem"] = _read(tls.ca_file, _AUTHORITY)
    elif tls.ca_file:
        _check_unused(tls)
    return msgspec.structs.replace(tls, **found)


def _check_unused(tls: Tls) -> None:
    """As nats-server, refuse a ca_file without authorities, as if it was used: whoever adds `verify` relies on it."""
    try:
        read = msgspec.structs.replace(tls, ca_pem=_read(tls.ca_file, _AUTHORITY))
        _load_authorities(ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER), read, ssl.Purpose.CLIENT_AUTH)
    except CertificateError as error:
        raise UnusedAuthorities(str(error)) from None


def with_client_files(tls: ClientTls) -> ClientTls:
    """The same of connections to another server, which need no files. Raises CertificateError."""
    found: dict[str, bytes] = {}
    if tls.cert_file:
        found = {"cert_pem": _read(tls.cert_file, _PAIR), "key_pem": _read(tls.key_file, _PAIR)}
    if tls.ca_file:
        found["ca_pem"] = _read(tls.ca_file, _AUTHORITY)
    return msgspec.structs.replace(tls, **found)


def _read(path: str, what: str) -> bytes:
    try:
        kind = other_kind(os.stat(path).st_mode)
        if kind and not is_nameless_pipe(path):
            raise CertificateError(f"{what}: {path} is {kind}")
        with open(path, "rb", opener=_opener) as file:
            data = file.read(MOST_FILE_BYTES + 1)
    except OSError as error:
        raise CertificateError(f"{what}: open {path}: {(error.strerror or '').lower()}") from None
    if len(data) > MOST_FILE_BYTES:
        raise CertificateError(f"{what}: {path} has more than {MOST_FILE_BYTES} bytes")
    if not data:
        raise CertificateError(f"{what}: {path} is empty")
    return data


def _opener(path: str, flags: int) -> int:
    """Open without waiting: a pipe without a writer reads as empty. Reads wait for a writer that is there."""
    fd = os.open(path, flags | os.O_NONBLOCK | os.O_NOCTTY)
    os.set_blocking(fd, True)
    return fd


@contextlib.contextmanager
def _as_file(data: bytes, path: str) -> Iterator[str]:
    """A path at which OpenSSL can read these bytes, which are kept in memory; `path` itself where there are none."""
    if not data:
        yield path
        return
    fd = os.memfd_create("gnatswarm-tls", os.MFD_CLOEXEC)
    try:
        os.write(fd, data)
        yield f"/proc/self/fd/{fd}"
    finally:
        os.close(fd)


def server_context(tls: Tls) -> ssl.SSLContext:
    """The ssl context for a port with these options. Raises CertificateError.

    Of several certificates that with the name counts that the client asks for, as on nats-server, else the first.
    """
    pairs = tls.pairs
    if len(pairs) == 1:
        return _server_context(tls, pairs)
    parts = [_of_first(one, lambda der: (key_kind(der), dns_names(der))) for one in pairs]
    kinds, names = [kind for kind, _ in parts], [frozenset(names) for _, names in parts]
    made: dict[tuple[int, ...], ssl.SSLContext] = {}

    def holding(numbers: Iterable[int]) -> ssl.SSLContext:
        # OpenSSL holds one certificate of each kind of key: the first.
        which = tuple(sorted({kinds[number]: number for number in sorted(numbers, reverse=True)}.values()))
        if which not in made:
            made[which] = _server_context(tls, [pairs[number] for number in which])
        return made[which]

    for number in range(len(pairs)):
        holding([number])  # each is tried, also one that no name leads to
    general = holding(range(len(pairs)))
    every = frozenset().union(*names)
    by_name = {
        name: holding(
            number for number, own in enumerate(names) if name in own or (name[:1] != "*" and _wildcard(name) in own)
        )
        for name in every
    }
    # Whether a certificate is too weak is asked of the context that the handshake began with.
    level = min(context.security_level for context in made.values())
    if level < general.security_level:
        general.set_ciphers(f"@SECLEVEL={level}:" + ":".join(cipher["name"] for cipher in general.get_ciphers()))

    def on_name(handshake: ssl.SSLObject | ssl.SSLSocket, name: str | None, _context: ssl.SSLContext) -> None:
        asked = (name or "").lower()
        found = by_name.get(asked) or by_name.get(_wildcard(asked))
        if found is not None:
            handshake.context = found

    general.sni_callback = on_name
    return general


def _wildcard(name: str) -> str:
    """The wildcard that covers a name: *.example.com for www.example.com."""
    return "*." + name.partition(".")[2]


def _server_context(tls: Tls, pairs: Iterable[CertificatePair]) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    # Renegotiation (TLS 1.2) would let a client repeat handshakes, of which the server does the expensive half.
    context.options |= ssl.OP_NO_RENEGOTIATION | ssl.OP_NO_COMPRESSION | ssl.OP_NO_TICKET
    context.num_tickets = 0
    for pair in pairs:
        _load_pair(context, pair)
    if tls.asks_for_certificate:
        context.verify_mode = ssl.CERT_REQUIRED
        _load_authorities(context, tls, ssl.Purpose.CLIENT_AUTH)
    _restrict(context, tls)
    return context


def _restrict(context: ssl.SSLContext, tls: Tls | ClientTls) -> None:
    """To the versions, cipher suites and curves of the options. Raises CertificateError."""
    context.minimum_version = _VERSIONS[tls.min_version]
    if tls.cipher_suites:
        names = [ciphers.TLS_1_2[name] for name in tls.cipher_suites if name in ciphers.TLS_1_2]
        if names:
            try:
                context.set_ciphers(":".join(names))
            except ssl.SSLError:
                raise CertificateError(f"OpenSSL here has none of {', '.join(tls.cipher_suites)}") from None
        else:  # all of them are TLS 1.3 suites
            context.minimum_version = ssl.TLSVersion.TLSv1_3
    for curve in tls.curve_preferences:
        try:
            context.set_ecdh_curve(ciphers.CURVES[curve])
        except (ssl.SSLError, ValueError):  # X25519 before Python 3.11.4
            raise CertificateError(f"curve_preferences: Python's ssl module here does not know {curve}") from None


def client_context(tls: Tls | ClientTls, *, is_insecure: bool) -> ssl.SSLContext:
    """The ssl context for connections to other servers, of a cluster with the port's certificate.

    Raises CertificateError.
    """
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    # As nats-server, it trusts what is in ca_file, though another authority has signed it.
    context.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN
    for pair in tls.pairs[:1]:
        _load_pair(context, pair)
    if tls.ca_file or not is_insecure:
        _load_authorities(context, tls, ssl.Purpose.SERVER_AUTH)
    _restrict(context, tls)
    if is_insecure:
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    return context


def _load_authorities(context: ssl.SSLContext, tls: Tls | ClientTls, purpose: ssl.Purpose) -> None:
    """Those of ca_file, else the system's own. Raises CertificateError."""
    if not tls.ca_file:
        context.load_default_certs(purpose)
        return
    try:
        with _as_file(tls.ca_pem, tls.ca_file) as authorities:
            context.load_verify_locations(authorities)
    except OSError as error:
        raise CertificateError(f"{_AUTHORITY}: {_text(error, CertificatePair('', ''), tls.ca_file)}") from None


def _load_pair(context: ssl.SSLContext, pair: CertificatePair) -> None:
    """Raises CertificateError."""
    try:
        with _as_file(pair.cert_pem, pair.cert_file) as cert, _as_file(pair.key_pem, pair.key_file) as key:
            _load_at_some_level(context, cert, key)
    except (OSError, ValueError) as error:
        raise CertificateError(f"{_PAIR}: {_text(error, pair)}") from None


def _load_at_some_level(context: ssl.SSLContext, cert: str, key: str) -> None:
    """Load them at the highest of OpenSSL's security levels that takes them; 2 is usual.

    nats-server takes certificates signed by means of SHA-1, and short keys. Level 0 also takes them from clients:
    `shards.clients.certificate_rule` refuses forgeable ones, as nats-server does.
    """
    for level in (context.security_level, 1, 0):
        if level != context.security_level:
            names = ":".join(cipher["name"] for cipher in context.get_ciphers())
            context.set_ciphers(f"@SECLEVEL={level}:{names}")
        try:
            context.load_cert_chain(cert, key, password=_no_password)
            return
        except ssl.SSLError as error:
            if error.reason not in _TOO_WEAK or level == 0:
                raise


def weakness(context: ssl.SSLContext, pair: CertificatePair) -> str:
    """What is wrong with a certificate of this context, though it is used; "": nothing. Raises CertificateError."""
    level = context.security_level
    if level < ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).security_level:
        return f"signed with SHA-1, or too short a key; used at OpenSSL's security level {level}"
    # (OpenSSL 3.5 takes it at every level, but clients do not)
    return "signed with SHA-1, or an older algorithm" if _of_first(pair, is_forgeable) else ""


class _HasPassword(ValueError):
    """A file is encrypted."""


def _no_password() -> str:
    """Prevents OpenSSL from asking for a password on the terminal, where a service would wait for ever."""
    raise _HasPassword


def _text(error: Exception, pair: CertificatePair, path: str = "") -> str:
    if isinstance(error, _HasPassword):
        is_key = b"ENCRYPTED" not in pair.cert_pem or b"ENCRYPTED" in pair.key_pem
        file = pair.key_file if is_key else pair.cert_file
        advice = f"write it without one: openssl pkey -in {file} -out …"
        return f"{file} is encrypted with a password, which nobody could type here; {advice}"
    if isinstance(error, ssl.SSLError):
        if not path:
            why = _pair_fault(pair, error.reason or "")
            if why:
                return why
        words = (error.reason or "").replace("_", " ").lower()
        return f"{path or f'{pair.cert_file}, {pair.key_file}'}: {words or error}"
    if isinstance(error, OSError) and error.errno:
        missing = path or next(
            (name for name in (pair.cert_file, pair.key_file) if not _can_read(name)), pair.cert_file
        )
        return f"open {missing}: {(error.strerror or '').lower()}"
    return str(error)


def _pair_fault(tls: CertificatePair, reason: str) -> str:
    """The operator's probable mistake; "": unknown. OpenSSL's own text names only a line of its source."""
    has_key, has_certificate = b"PRIVATE KEY-----" in tls.key_pem, b"BEGIN CERTIFICATE-----" in tls.cert_pem
    if not has_key and not has_certificate and b"PRIVATE KEY-----" in tls.cert_pem and b"CERT" in tls.key_pem:
        return f"swapped: cert_file {tls.cert_file} is a private key, key_file {tls.key_file} a certificate"
    if tls.cert_pem and not has_certificate:
        return f"{tls.cert_file} has no certificate in PEM (-----BEGIN CERTIFICATE-----)"
    if tls.key_pem and not has_key:
        return f"{tls.key_file} has no private key in PEM (-----BEGIN PRIVATE KEY-----)"
    if reason == "KEY_VALUES_MISMATCH":
        return f"the key in {tls.key_file} is not that of the certificate in {tls.cert_file} (key values mismatch)"
    return ""


def validity(pair: CertificatePair) -> tuple[datetime.datetime, datetime.datetime]:
    """From when until when the first certificate of cert_pem is valid. Raises CertificateError."""
    return _of_first(pair, validity_of)


def _of_first(pair: CertificatePair, found: Callable[[bytes], T]) -> T:
    """What that finds in the first certificate of cert_pem, which it gets as DER."""
    begin, end = b"-----BEGIN CERTIFICATE-----", b"-----END CERTIFICATE-----"
    body = pair.cert_pem.partition(begin)[2].partition(end)[0]
    try:
        return found(base64.b64decode(body))
    except ValueError as error:
        raise CertificateError(f"{_PAIR}: {pair.cert_file}: {error}") from None


def _can_read(path: str) -> bool:
    try:
        with open(path, "rb"):
            return True
    except OSError:
        return False
