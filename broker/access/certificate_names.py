"""The user of a client certificate (verify_and_map): tries its names in order.

E-mail addresses, DNS names, URIs, and last the subject, which matches a user name that is the same distinguished name
(RFC 4514: CN=bob,O=gnats), also in another order. Of a subject only the kinds of attributes count that nats-server
knows. Pure; certificates are in the form of ssl's getpeercert().
"""

import re
from collections.abc import Collection, Iterable
from typing import Any

import msgspec

# OpenSSL's name of an attribute → its name in a distinguished name.
_SHORT = {
    "commonName": "CN",
    "countryName": "C",
    "domainComponent": "DC",
    "localityName": "L",
    "organizationName": "O",
    "organizationalUnitName": "OU",
    "postalCode": "POSTALCODE",
    "serialNumber": "SERIALNUMBER",
    "stateOrProvinceName": "ST",
    "streetAddress": "STREET",
    "userId": "UID",
}

# The kinds of attributes that Go knows, in the order in which it writes them.
_WRITTEN = ("SERIALNUMBER", "CN", "POSTALCODE", "STREET", "ST", "L", "OU", "O", "C")

_KNOWN = frozenset((*_WRITTEN, "DC"))

Attribute = tuple[str, str]  # type in upper case, value as it is
Name = tuple[frozenset[Attribute], ...]  # one set for each comma-separated part


class CertificateNames(msgspec.Struct, frozen=True):
    """The names of a certificate's holder."""

    alternatives: tuple[str, ...] = ()  # e-mail addresses, then DNS names, then URIs
    subject: Name = ()  # most significant part last, as RFC 4514 writes it


def names_of(certificate: dict[str, Any]) -> CertificateNames:
    """The names in a verified certificate."""
    found = certificate.get("subjectAltName", ())
    alternatives = [value for kind in ("email", "DNS", "URI") for name, value in found if name == kind]
    subject = [
        frozenset((_SHORT.get(name, name.upper()), value) for name, value in part)
        for part in certificate.get("subject", ())
    ]
    return CertificateNames(tuple(alternatives), tuple(reversed(subject)))


class SubjectIndex:
    """Users whose names are distinguished names: those that may be a subject are found without a look at each.

    To read one takes some 17 us, and a client may say CONNECT hundreds of times in a turn.
    """

    def __init__(self, users: Iterable[str] = ()) -> None:
        self._alike: dict[int, list[str]] = {}  # by the hash of their parts in one order
        for user in users:
            self.add(user)

    def add(self, user: str) -> None:
        """Add a user, behind the others; a name of another kind is left out."""
        subject = distinguished_name(user) if "=" in user else None
        if subject is not None:
            self._alike.setdefault(hash(_in_one_order(subject)), []).append(user)

    def find(self, subject: Name) -> str | None:
        """The first user with this name, or else the first with its parts in another order; None: there is none."""
        wanted, found = _in_one_order(subject), None
        for user in self._alike.get(hash(wanted), ()):
            name = distinguished_name(user)
            if name == subject:
                return user
            if found is None and name is not None and _in_one_order(name) == wanted:
                found = user
        return found


def _in_one_order(subject: Name) -> tuple[tuple[Attribute, ...], ...]:
    return tuple(sorted(tuple(sorted(part)) for part in subject))


def find_user(names: CertificateNames, users: Collection[str], subjects: SubjectIndex) -> str | None:
    """The first user that one of the names matches, or None. `subjects`: those of the users."""
    for name in names.alternatives:
        if name in users:
            return name
    own = _known(names.subject)
    if not own:
        return None
    return subjects.find(own) or next((text for text in _written(names.subject) if text in users), None)


def _known(subject: Name) -> Name:
    """The subject without attributes of other kinds (UID, e-mail address, title, …)."""
    parts = (frozenset(one for one in part if one[0] in _KNOWN) for part in subject)
    return tuple(part for part in parts if part)


def is_name(names: CertificateNames, user: str) -> bool:
    """Whether it is one of the names, letter by letter: the subject as nats-server writes it."""
    return bool(user) and (user in names.alternatives or user in _written(names.subject))


def _written(subject: Name) -> list[str]:
    """The subject, with its domain components and without."""
    values: dict[str, list[str]] = {}
    for part in reversed(subject):
        for kind, value in sorted(part):
            values.setdefault(kind, []).append(value)
    # Other kinds are left out, and of these two the last one counts.
    for kind in ("CN", "SERIALNUMBER"):
        values[kind] = values.get(kind, [])[-1:]
    text = ",".join(
        "+".join(f"{kind}={_escaped(value)}" for value in values[kind]) for kind in _WRITTEN if values.get(kind)
    )
    components = ",".join(f"DC={value}" for value in values.get("DC", ()))
    return [f"{text},{components}", text] if components else [text]


def _escaped(value: str) -> str:
    found = re.sub(r'[,+"\\<>;]', r"\\\g<0>", value)
    if value.startswith((" ", "#")):
        found = "\\" + found
    return found[:-1] + "\\ " if len(value) > 1 and value.endswith(" ") else found


def distinguished_name(text: str) -> Name | None:
    """`CN=bob,O=gnats` as sets of attributes, escapes resolved; None for an invalid name."""
    parts: list[frozenset[Attribute]] = []
    attributes: list[Attribute] = []
    at = 0
    while True:
        equals = text.find("=", at)
        if equals < 0:
            return None
        kind = text[at:equals].strip().upper()
        if not kind.replace(".", "").isalnum():
            return None
        value, at = _value(text, equals + 1)
        if value is None:
            return None
        attributes.append((kind, value))
        if at >= len(text) or text[at] == ",":
            parts.append(frozenset(attributes))
            attributes = []
            if at >= len(text):
                return tuple(parts)
        at += 1


def _value(text: str, at: int) -> tuple[str | None, int]:
    """The value that begins here, and where it ends: at a comma, a plus, or the end."""
    found = bytearray()
    kept = 0  # length without trailing blanks, which count only if escaped
    while at < len(text) and text[at] == " ":
        at += 1
    if text[at : at + 1] == "#":  # BER, which nobody writes
        return None, at
    while at < len(text) and text[at] not in ",+":
        if text[at] == "=":
            return None, at
        if text[at] == "\\":
            pair = text[at + 1 : at + 3]
            if len(pair) == 2 and all(digit in "0123456789abcdefABCDEF" for digit in pair):
                found.append(int(pair, 16))
                at += 3
            elif pair:
                found += pair[0].encode()
                at += 2
            else:
                return None, at
            kept = len(found)
        else:
            found += text[at].encode("utf-8", "surrogatepass")
            if text[at] != " ":
                kept = len(found)
            at += 1
    return found[:kept].decode("utf-8", "replace"), at
