"""A `tls` block of the configuration: TLS of one port, or of a remote, as settings of Options.

A restriction that this broker does not enforce is a problem, never a notice: see `router.config.not_offered`.
`shards.boundary.certificates` checks that the files can be read and belong together, when all settings are known.
"""

from __future__ import annotations

import datetime
import re
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, TypeVar

import msgspec

from gnatswarm.broker.access import ciphers
from gnatswarm.broker.options import CertificatePair, ClientTls, Tls
from gnatswarm.router.config import not_offered
from gnatswarm.router.config import option_values as values
from gnatswarm.router.config.conf_tree import Block, Entry, List, NewerProblem, Position, Problem, plain
from gnatswarm.router.config.option_keys import Settings
from gnatswarm.router.config.option_values import BareSeconds, Mistake
from gnatswarm.router.config.repetition import given_again, same
from gnatswarm.router.config.user_list import not_enforced, unknown_field

if TYPE_CHECKING:
    import ssl

T = TypeVar("T", bound=Tls | ClientTls)

# handshake_first "auto": if no ClientHello arrives in this time, send INFO, as nats-server does.
AUTO_FALLBACK_S = 0.05
# A certificate of 90 days is usually renewed 30 days before it expires. If it has less than two weeks left, the renewal
# has probably failed.
SOON = datetime.timedelta(days=14)
SOON_SHARE = 5  # for a short certificate (days or hours): the last fifth of its time

# The highest connection_rate_limit: more than a machine can do, and as far as the shared page counts.
MOST_HANDSHAKES_PER_S = 1_000_000

# Of one port: each name has an ssl context, of some 50 KB.
MOST_CERTIFICATES = 64

# Of each certificate in `certs`.
_PAIR = {"cert_file": "cert_file", "key_file": "key_file"}

_DIGEST = re.compile("[0-9a-fA-F]{64}")


class TlsBlock:
    """Reads one block into the fields of Tls under `prefix`; errors are in `problems`, warnings in `notices`.

    `is_remote`: of another server that is connected to, into those of ClientTls. Files are not needed there.
    """

    def __init__(self, entry: Entry, prefix: str, *, is_remote: bool = False) -> None:
        self.settings: Settings = {}
        self.problems: list[Problem] = []
        self.notices: list[Problem] = []
        self.is_empty = isinstance(entry.value, Block) and not entry.value.entries
        self._prefix = prefix
        self._is_remote = is_remote
        self._pairs: tuple[CertificatePair, ...] = ()
        self._certs_at = entry.at
        self._allows_insecure = False
        if not isinstance(entry.value, Block):
            self._problem(
                entry.at,
                f"expected a block, not {entry.value.kind}",
                "write tls { ca_file: … }" if is_remote else "write tls { cert_file: …, key_file: … }",
            )
            return
        self.problems += given_again(entry.value, _NAMES, ())
        for inner in entry.value:
            self._entry(inner)
        if not self.is_empty and not self.problems:
            self._check_files(entry.at)
            self._check_pins(entry.at)
            self._check_suites(entry.at)

    def _entry(self, entry: Entry) -> None:
        key = entry.key.lower()
        if key == "certs":
            self._certs(entry)
            return
        read = _KEYS.get(key)
        if read is None:
            feature = not_offered.RESTRICTS_IN_TLS.get(key)
            if feature is not None:
                self.problems.append(not_enforced(entry.at, f'"{entry.key}": {feature}'))
            elif not entry.used:
                self.problems.append(unknown_field(entry, [*_KEYS, "certs", *not_offered.RESTRICTS_IN_TLS]))
            return
        try:
            found = read(plain(entry.value))
        except Mistake as mistake:
            self._problem(entry.at, f"{key}: {mistake.what}", mistake.advice)
            return
        # As of a variable that is not set; without authorities all public ones would be trusted.
        if (key == "ca_file" or (self._is_remote and key in _FILES)) and not found[key]:
            self._problem(entry.at, f"{key}: expected a file, not an empty name", "leave it out, or name one")
            return
        self._allows_insecure |= bool(found.pop("allows_insecure", False))
        for name in _OF_PORTS if self._is_remote else _OF_REMOTES:
            found.pop(name, None)
        self.settings |= {f"{self._prefix}.{name}": value for name, value in found.items()}
        if not self._is_remote:
            return
        if (why := not_offered.NO_EFFECT_IN_REMOTE_TLS.get(key)) and plain(entry.value) is not False:
            self.notices.append(Problem(entry.at, f'"{entry.key}" has no effect here', why))
        elif found.get("insecure"):
            self.notices.append(Problem(entry.at, "the hub's certificate is not checked", "name its ca_file"))

    def _certs(self, entry: Entry) -> None:
        """Several certificates: [ {cert_file: …, key_file: …} … ]; the first is as one without such a list."""
        advice = "write [ {cert_file: …, key_file: …}, … ]"
        if not isinstance(entry.value, List):
            self._problem(entry.at, f"certs: expected a list, not {entry.value.kind}", advice)
            return
        found = []
        for item in entry.value.items:
            if not isinstance(item, Block):
                self._problem(item.at, f"certs: expected a block, not {item.kind}", advice)
                continue
            given: dict[str, str] = {}
            self.problems += given_again(item, _PAIR)
            for inner in item:
                name = inner.key.lower()
                if name not in _PAIR:
                    if not inner.used:
                        self.problems.append(unknown_field(inner, list(_PAIR)))
                    continue
                try:
                    given[name] = values.path(plain(inner.value))
                except Mistake as mistake:
                    self._problem(inner.at, f"{name}: {mistake.what}", mistake.advice)
            if given.get("cert_file") and given.get("key_file"):
                found.append(CertificatePair(given["cert_file"], given["key_file"]))
            else:
                self._problem(item.at, "certs: both cert_file and key_file are required", advice)
        if len(found) > MOST_CERTIFICATES:
            self._problem(entry.at, f"certs: more than {MOST_CERTIFICATES} certificates", "use wildcards")
        elif found:
            self._pairs, self._certs_at = tuple(found), entry.at

    def _check_files(self, at: Position) -> None:
        if self._pairs:
            if any(self.settings.get(f"{self._prefix}.{name}") for name in ("cert_file", "key_file")):
                what = "error parsing tls config, cannot combine 'cert_file' option with 'certs' option"
                self._problem(self._certs_at, what, "move the certificate into certs, as the first")
                return
            first, *more = self._pairs
            found: Settings = {"cert_file": first.cert_file, "key_file": first.key_file}
            if self._is_remote and more:
                self._problem(self._certs_at, "certs: a remote presents one certificate", "keep one")
            elif not self._is_remote:
                found["more_certs"] = tuple(more)
            self.settings |= {f"{self._prefix}.{name}": value for name, value in found.items()}
        missing = [name for name in ("cert_file", "key_file") if not self.settings.get(f"{self._prefix}.{name}")]
        if self._is_remote and len(missing) == 2:
            return
        why = "a certificate needs its key" if self._is_remote else "a port without it would not be encrypted"
        for name in missing:
            self._problem(at, f"missing '{name}' in TLS configuration", why)

    def _check_pins(self, at: Position) -> None:
        """Warn of pins without `verify`: clients are not asked for a certificate, so all of them would be refused."""
        asks = any(self.settings.get(f"{self._prefix}.{name}") for name in ("verify", "verify_and_map"))
        asks |= self._prefix == "cluster.tls"  # as always between members
        asks |= self._is_remote  # a hub presents one unasked
        if self.settings.get(f"{self._prefix}.pinned_certs") and not asks:
            self.notices.append(Problem(at, "pinned_certs without verify: no client can connect", "add verify: true"))

    def _check_suites(self, at: Position) -> None:
        suites = self.settings.get(f"{self._prefix}.cipher_suites")
        insecure = [name for name in suites if name in ciphers.INSECURE] if isinstance(suites, tuple) else []
        if insecure and not self._allows_insecure:
            names = ", ".join(insecure)
            what = f"insecure cipher suites configured without 'allow_insecure_cipher_suites' option set: {names}"
            self.notices.append(NewerProblem(at, what, "remove them, or allow them"))

    def _problem(self, at: Position, what: str, advice: str) -> None:
        self.problems.append(Problem(at, what, advice))


def with_certificates(
    tls: Tls, at: Position, problems: list[Problem], notices: list[Problem], others: str = "clients"
) -> Tls:
    """The same struct, with the content of the files that it names; errors in them go to `problems`.

    A weak certificate is a notice, and so is one that is not valid now, or soon will not be: some clients do not look.
    `others`: to whom it is presented.
    """
    if not tls.is_on:
        return tls
    from gnatswarm.shards.boundary.certificates import server_context, with_files

    return _checked(lambda: with_files(tls), server_context, others, at, problems, notices) or tls


def with_client_certificates(
    tls: ClientTls, at: Position, problems: list[Problem], notices: list[Problem], authorities: set[bytes]
) -> ClientTls:
    """The same of connections to a hub, which may do without a certificate.

    `authorities`: what is in files of authorities that were found good, and in this one behind it.
    """
    from gnatswarm.shards.boundary.certificates import client_context, with_client_files

    def context(read: ClientTls) -> ssl.SSLContext:
        # (the system's authorities take 20 ms to load, and are not what is checked)
        if not read.ca_file or read.ca_pem in authorities:
            return client_context(msgspec.structs.replace(read, ca_file="", ca_pem=b""), is_insecure=True)
        made = client_context(read, is_insecure=read.insecure)
        authorities.add(read.ca_pem)
        return made

    return _checked(lambda: with_client_files(tls), context, "hubs", at, problems, notices) or tls


def _checked(
    read: Callable[[], T],
    context_of: Callable[[T], ssl.SSLContext],
    others: str,
    at: Position,
    problems: list[Problem],
    notices: list[Problem],
) -> T | None:
    """What was read; None: it cannot be used."""
    from gnatswarm.shards.boundary.certificates import CertificateError, UnusedAuthorities, validity, weakness

    try:
        tls = read()
        context = context_of(tls)
        found = [(pair.cert_file, weakness(context, pair), *validity(pair)) for pair in tls.pairs]
    except CertificateError as error:
        is_unused = isinstance(error, UnusedAuthorities)
        advice = "leave ca_file out, or add verify" if is_unused else f"there could be no connections with {others}"
        problems.append(Problem(at, str(error), advice))
        return None
    for file, weak, begin, end in found:
        if weak:
            notices.append(Problem(at, f"{file}: {weak}", f"new {others} refuse such certificates: get another one"))
        _remark(file, begin, end, others, at, notices)
    return tls


def _remark(
    file: str, begin: datetime.datetime, end: datetime.datetime, others: str, at: Position, notices: list[Problem]
) -> None:
    now = datetime.datetime.now(datetime.UTC)
    if now >= end:
        what = f"the certificate {file} expired on {end:%Y-%m-%d %H:%M} UTC"
        notices.append(Problem(at, what, f"{others} that check it refuse it: renew it, then reload"))
    elif now < begin:
        what = f"the certificate {file} is not valid before {begin:%Y-%m-%d %H:%M} UTC"
        notices.append(Problem(at, what, "check this machine's clock"))
    elif end - now < min(SOON, (end - begin) / SOON_SHARE):
        what = f"the certificate {file} expires on {end:%Y-%m-%d %H:%M} UTC"
        notices.append(Problem(at, what, "renew it, then reload"))


def _sets(name: str, read: Callable[[object], object]) -> Callable[[object], Settings]:
    return lambda value: {name: read(value)}


def _timeout_s(value: object) -> float:
    """Seconds or a duration."""
    try:
        seconds = float(value) if isinstance(value, float) else values.duration_s(value)
    except BareSeconds as bare:
        seconds = bare.seconds
    if not 0 <= seconds <= values.LONGEST_DURATION_S:
        raise Mistake("out of range", 'write one such as "2s"')
    return seconds or Tls().timeout_s


def _handshake_first(value: object) -> Settings:
    words = {"true": True, "on": True, "false": False, "off": False}
    word = value.lower() if isinstance(value, str) else value
    if isinstance(word, str) and word in ("auto", "auto_fallback"):
        return {"handshake_first": True, "handshake_fallback_s": AUTO_FALLBACK_S}
    if isinstance(word, str) and word not in words:
        try:
            return {"handshake_first": True, "handshake_fallback_s": values.duration_s(value)}
        except (Mistake, BareSeconds):
            raise Mistake(
                f'field "{value}" is invalid', 'write true, false, auto or a duration such as "300ms"'
            ) from None
    return {"handshake_first": words[word] if isinstance(word, str) else values.boolean(word)}


def _names(value: object, known: Iterable[str], what: str) -> tuple[str, ...]:
    if not isinstance(value, list) or not value:
        raise Mistake("expected a list of names", f"write [ {next(iter(known))} ]")
    by_fold = {name.lower(): name for name in known}
    found = []
    for item in value:
        name = by_fold.get(values.text(item).lower())
        if name is None:
            raise Mistake(f"unrecognized {what} {item}", f"write one of {', '.join(known)}")
        found.append(name)
    return tuple(found)


def _cipher_suites(value: object) -> tuple[str, ...]:
    return _names(value, ciphers.ALL, "cipher")


def _curves(value: object) -> tuple[str, ...]:
    found = _names(value, ciphers.CURVES, "curve preference")
    if len(found) > 1 and not set(ciphers.CURVES) <= set(found):
        raise Mistake("several curves cannot be enforced", "write one, all of them, or leave it out")
    return found if len(found) == 1 else ()


def _min_version(value: object) -> str:
    version = str(value) if isinstance(value, float) else values.text(value)
    if version not in ("1.2", "1.3"):
        raise Mistake(f'unknown TLS version "{version}"', 'write "1.2" or "1.3"')
    return version


def _pinned_certs(value: object) -> tuple[str, ...]:
    if not isinstance(value, list) or not all(isinstance(item, str) for item in value):
        raise Mistake("expected a list of hex-encoded sha256 of DER encoded SubjectPublicKeyInfo", "write [ … ]")
    if not value:
        # nats-server accepts every client if the list is empty.
        raise Mistake("an empty list lets everybody in", "name a key, or leave it out")
    for item in value:
        if not _DIGEST.fullmatch(item):
            what = f"key {item} does not look like hex-encoded sha256 of DER encoded SubjectPublicKeyInfo"
            raise Mistake(what, "it has 64 hexadecimal digits")
    return tuple(sorted({item.lower() for item in value}))


def _handshakes_per_s(value: object) -> int:
    # As in nats-server, 0 and less mean no limit.
    return max(0, values.number(value, -MOST_HANDSHAKES_PER_S, MOST_HANDSHAKES_PER_S))


_KEYS: dict[str, Callable[[object], Settings]] = {
    "cert_file": _sets("cert_file", values.path),
    "key_file": _sets("key_file", values.path),
    "ca_file": _sets("ca_file", values.path),
    "verify": _sets("verify", values.boolean),
    "verify_and_map": _sets("verify_and_map", values.boolean),
    "timeout": _sets("timeout_s", _timeout_s),
    "cipher_suites": _sets("cipher_suites", _cipher_suites),
    "curve_preferences": _sets("curve_preferences", _curves),
    "min_version": _sets("min_version", _min_version),
    "handshake_first": _handshake_first,
    "first": _handshake_first,
    "immediate": _handshake_first,
    "pinned_certs": _sets("pinned_certs", _pinned_certs),
    "connection_rate_limit": _sets("handshakes_per_s", _handshakes_per_s),
    "insecure": _sets("insecure", values.boolean),
    "allow_insecure_cipher_suites": _sets("allows_insecure", values.boolean),
}
# What they set for ports alone, and for connections to other servers alone.
_OF_PORTS = ("verify", "verify_and_map", "handshake_fallback_s", "handshakes_per_s")
_OF_REMOTES = ("insecure",)
_FILES = ("cert_file", "key_file", "ca_file")
_NAMES = {name: name for name in (*_KEYS, "certs")} | same("handshake_first", "first", "immediate")
