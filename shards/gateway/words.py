"""INFO and CONNECT between servers: what this broker says, and what it reads of another's.

Unknown keys are ignored, and everything that is read may be missing: servers differ by version.
"""

from __future__ import annotations

import re
from typing import Any

import msgspec

# Of a name in the log: lines of other servers, also of those that have not logged in, may have 260 KB.
MOST_SHOWN = 1024
# Objects and lists within each other in an INFO that members are told: nats-server's have two. What is just not too
# deep to be read may be too deep to be written, or for the member that reads it.
_MOST_NESTED = 8
# A line that members are told: no more than broker.serverlink reads.
_MOST_GOSSIP_BYTES = 131072

# Errors of msgspec for JSON of another server: wrong, not UTF-8, nested too deeply (also in keys that are skipped).
UNREADABLE = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)


class Identity(msgspec.Struct, frozen=True):
    """What this broker is to other servers."""

    server_id: str
    server_name: str
    version: str  # nats-server's, for hubs that refuse old ones
    max_payload_bytes: int
    headers: bool


class Rules(msgspec.Struct, frozen=True, omit_defaults=True):
    """Subjects that are allowed and denied."""

    allow: tuple[str, ...] | None = None
    deny: tuple[str, ...] | None = None


# Rules for a page; None: there are none.
ShownRules = dict[str, tuple[str, ...]] | None


def shown_rules(rules: Rules | None) -> ShownRules:
    """The rules for a page; None: there are none."""
    if rules is None:
        return None
    return {name: subjects for name, subjects in (("allow", rules.allow), ("deny", rules.deny)) if subjects} or None


class Answers(msgspec.Struct, frozen=True):
    """What a leaf node may publish to the reply subject of a message, beside what it may publish at all."""

    max: int = 0  # messages; negative: any number
    expires_s: float = 0.0  # after that message; 0: at any time


class ServerInfo(msgspec.Struct, frozen=True):
    """The content of another server's INFO, as far as it is used here."""

    server_id: str = ""
    server_name: str = ""
    version: str = ""
    host: str = ""
    port: int = 0
    headers: bool = False
    max_payload: int = 0
    auth_required: bool = False
    tls_required: bool = False
    client_id: int = 0
    nonce: str = ""
    ip: str = ""
    cluster: str = ""
    cluster_dynamic: bool = False
    info_on_connect: bool = False
    connect_info: bool = False
    remote_account: str = ""
    leafnode_urls: tuple[str, ...] | None = None
    connect_urls: tuple[str, ...] | None = None
    ws_connect_urls: tuple[str, ...] | None = None
    gnatswarm: str = ""  # its version, if it is a gnatswarm
    ldm: bool = False
    gateway_url: str = ""  # where other clusters connect to this member; "": nowhere
    gateway_cmd: int = 0  # it is about these, and not about the server
    fenced: bool = False  # a gnatswarm with `fence: cluster`: its clients' PONGs wait for this broker's
    answers: Answers | None = None  # of a gnatswarm
    lnoc: bool = False  # a member of the cluster that is told which leaf node's cluster a message comes from
    lnocu: bool = False  # … and that tells of each such cluster's interest apart
    only_queues: bool = False  # it knows QMSG: broker/serverwire.pxd
    route_pool_size: int = 0  # connections that a newer member would make; 0: it is none
    imports: Rules | None = msgspec.field(name="import", default=None)
    exports: Rules | None = msgspec.field(name="export", default=None)

    @property
    def shown(self) -> str:
        """The server's name for logs."""
        return (self.server_name or self.server_id or "a server without a name")[:MOST_SHOWN]


class ServerConnect(msgspec.Struct, frozen=True):
    """The content of another server's CONNECT, as far as it is used here."""

    name: str = ""  # the server's id
    user: str = ""
    password: str = msgspec.field(name="pass", default="")
    cluster: str = ""
    cluster_dynamic: bool = False
    headers: bool = False
    lang: str | None = None  # a client's
    gateway: str | None = None


class LeafConnect(msgspec.Struct, frozen=True):
    """The content of a leaf node's CONNECT, as far as it is used here."""

    version: str = ""
    server_id: str = ""
    name: str = ""
    cluster: str = ""
    headers: bool = False
    user: str = ""
    password: str = msgspec.field(name="pass", default="")
    auth_token: str = ""
    nkey: str = ""
    jwt: str = ""
    sig: str = ""
    lang: str = ""  # only clients have one
    gateway: str = ""
    is_hub: bool = False  # it dialled, and is the hub all the same
    deny_pub: tuple[str, ...] | None = None  # what the hub is not to send
    remote_account: str = ""  # the leaf node's own account
    isolate: bool = False  # it wants to hear nothing of other leaf nodes
    gnatswarm: str = ""  # its version, if it is a gnatswarm
    only_queues: bool = False  # it knows QMSG: broker/serverwire.pxd

    @property
    def shown(self) -> str:
        """The server's name for logs."""
        return (self.name or self.server_id or "a server without a name")[:MOST_SHOWN]


_info_decoder = msgspec.json.Decoder(ServerInfo)


def read_info(raw: bytes) -> ServerInfo:
    """The content of an INFO. ValueError: it is none."""
    try:
        return _info_decoder.decode(raw)
    except UNREADABLE as error:
        raise ValueError(f"INFO cannot be read: {error}") from None


def gossip(raw: bytes, url: str) -> bytes:
    """The line that tells others of the member whose INFO read_info() has read, at this URL.

    It has every key but the nonce, also those unknown here, which read_info() skips unseen. ValueError: one cannot be
    read, or is nested too deeply.
    """
    try:
        content = dict(msgspec.json.decode(raw))
    except UNREADABLE as error:
        raise ValueError(f"INFO cannot be read: {error}") from None
    if _is_nested(content, _MOST_NESTED):
        raise ValueError(f"INFO cannot be read: nested more than {_MOST_NESTED} deep")
    content.pop("nonce", None)
    told = line(b"INFO", content | {"ip": url})
    if len(told) > _MOST_GOSSIP_BYTES:
        raise ValueError(f"INFO cannot be passed on: it has more than {_MOST_GOSSIP_BYTES} bytes")
    return told


def _is_nested(value: object, most: int) -> bool:
    """Whether there are more than so many objects and lists within each other."""
    if not isinstance(value, dict | list):
        return False
    inner = value.values() if isinstance(value, dict) else value
    return most == 0 or any(_is_nested(one, most - 1) for one in inner)


_connect_decoder = msgspec.json.Decoder(ServerConnect)
_leaf_connect_decoder = msgspec.json.Decoder(LeafConnect)


def read_leaf_connect(raw: bytes) -> LeafConnect:
    """The content of a leaf node's CONNECT. ValueError: it is none."""
    try:
        return _leaf_connect_decoder.decode(raw)
    except UNREADABLE as error:
        raise ValueError(f"CONNECT cannot be read: {error}") from None


def read_connect(raw: bytes) -> ServerConnect:
    """The content of a CONNECT. ValueError: it is none."""
    try:
        return _connect_decoder.decode(raw)
    except UNREADABLE as error:
        raise ValueError(f"CONNECT cannot be read: {error}") from None


_VERSION = re.compile(r"v?(\d{1,9})\.(\d{1,9})\.(\d{1,9})(?!\d)")


def is_at_least(version: str, least: str) -> bool:
    """Whether a version such as "2.9.10" is this one or later; a text that is none is not."""
    numbers, wanted = _VERSION.match(version), _VERSION.match(least)
    if numbers is None or wanted is None:
        return False
    return tuple(map(int, numbers.groups())) >= tuple(map(int, wanted.groups()))


def line(verb: bytes, content: dict[str, Any]) -> bytes:
    """One line with a JSON object; keys without a value are left out."""
    return (
        verb + b" " + msgspec.json.encode({key: value for key, value in content.items() if value is not None}) + b"\r\n"
    )
