"""Every option of the broker, typed, frozen and documented; parsed once by the router, passed whole to each shard.

One struct per section. Type, default, unit and meaning of an option stand on one line. Unknown keys are
errors. This module reads no file: `broker.conf` reads the server's relaxed syntax, `router.cli` the command line,
`router.options_build` makes this of both. Secrets are left out of every repr, so that no log can show one.
"""

from __future__ import annotations

import msgspec

from broker.limits import Limits

SECRET_FIELDS = frozenset({"auth_token", "auth_password", "http_password", "password", "cert_pem", "key_pem", "ca_pem"})


# The account of users that are in none, and of clients where nobody has to log in; and the system's own.
GLOBAL_ACCOUNT = "$G"
SYSTEM_ACCOUNT = "$SYS"


class _Discreet(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A struct whose repr names what is set and hides what is secret."""

    def __repr__(self) -> str:
        shown = []
        for field in msgspec.structs.fields(type(self)):
            value = getattr(self, field.name)
            if value != field.default:
                shown.append(f"{field.name}=" + ("…" if field.name in SECRET_FIELDS else repr(value)))
        return f"{type(self).__name__}({', '.join(shown)})"


class Logging(_Discreet, frozen=True, forbid_unknown_fields=True):
    """Where log lines go and how much they say."""

    file: str = ""  # path; "": standard error
    size_limit_bytes: int = 0  # rotate past this many bytes; 0: never
    format: str = "text"  # "text": the server's own lines; "json": one JSON object per line
    logtime: bool = True  # timestamps on every line
    debug: bool = False  # -D: connections, links, decisions
    trace: bool = False  # -V: every operation of every client; slow
    trace_payload_bytes: int = 0  # longest piece of a message that -V shows; 0: no limit


class Swarm(_Discreet, frozen=True, forbid_unknown_fields=True):
    """The shards behind one address; ours alone, nats-server has no such section."""

    shards: int = 0  # 1..64; 0: the number of usable cores (affinity and cgroup respected)
    accept: str = "reuseport"  # "reuseport": one kernel-balanced listener per shard; "handoff": the router places
    link_dir: str = ""  # private directory of the link sockets; "": a fresh one, mode 0700
    prefer_local: bool = False  # queue groups: members on the publisher's shard first


class Stats(_Discreet, frozen=True, forbid_unknown_fields=True):
    """What each shard writes down about itself; ours alone."""

    enabled: bool = True  # nothing is counted per subject when it is off
    dir: str = ""  # directory of the files; "": under $XDG_STATE_HOME/gnatswarm (~/.local/state), by port
    window_s: float = 10.0  # 0.1 to 3600: what one row covers
    max_subjects: int = 4096  # 1..1000000: rows per window, account and shard; lighter subjects share one row
    max_age_s: float = 604800.0  # files older than this are removed; 0: none
    max_bytes: int = 1073741824  # the oldest are removed while all are more than this; 0: none


class Permissions(_Discreet, frozen=True, forbid_unknown_fields=True):
    """What a user may do. A rule is a subject with wildcards; for subscriptions it may name a queue: "jobs workers"."""

    publish_allow: tuple[str, ...] | None = None  # only to these; None: everywhere
    publish_deny: tuple[str, ...] = ()  # though allowed, not to these
    subscribe_allow: tuple[str, ...] | None = None  # as publish_allow
    subscribe_deny: tuple[str, ...] = ()  # as publish_deny
    responses: int = 0  # messages on the reply subject of each message it got, beside the above; -1: no limit
    responses_expire_s: float = 120.0  # for so long after that message; 0 and less: no limit


# How a user may come; the kinds that there are here, and those that only nats-server has.
STANDARD = "STANDARD"
WEBSOCKET = "WEBSOCKET"
CONNECTION_TYPES = (STANDARD, WEBSOCKET, "LEAFNODE", "LEAFNODE_WS", "MQTT", "MQTT_WS")


class User(_Discreet, frozen=True, forbid_unknown_fields=True):
    """Somebody who may connect: with a name and a password, plain or hashed by bcrypt, or with an nkey."""

    name: str = ""  # "": a user with an nkey
    password: str = ""  # plain, or hashed by bcrypt
    nkey: str = ""  # public key, "U…"
    account: str = GLOBAL_ACCOUNT  # whose messages it hears
    permissions: Permissions | None = None  # None: everything is allowed
    connection_types: tuple[str, ...] = ()  # of CONNECTION_TYPES, those it may come by; (): every

    @property
    def shown(self) -> str:
        """As logs and monitoring pages call it."""
        return self.name or self.nkey

    def may_come_by(self, kind: str) -> bool:
        """Whether connections of this kind are its own."""
        return not self.connection_types or kind in self.connection_types


class Export(_Discreet, frozen=True, forbid_unknown_fields=True):
    """What other accounts may import of an account."""

    subject: str  # with wildcards
    is_service: bool  # (instead of stream) they may ask; else: they may listen
    accounts: tuple[str, ...] | None = None  # these alone; None: all
    response: str = "singleton"  # of a service: "singleton", "stream" or "chunked"
    threshold_s: float = 120.0  # of a service: an answer, or the next of several, may come for so long


class Import(_Discreet, frozen=True, forbid_unknown_fields=True):
    """What an account has of another one."""

    account: str  # whose it is
    subject: str  # there
    is_service: bool  # (instead of stream) it asks; else: it listens
    to: str  # its name here, with $1, $2 or as many * as it has there; or, of a stream, a prefix


class Mapping(_Discreet, frozen=True, forbid_unknown_fields=True):
    """Where messages published to a subject go instead, within one account."""

    subject: str  # with wildcards
    destinations: tuple[tuple[str, int], ...]  # (subject, percent of the messages); what is left of 100 is lost


class Account(_Discreet, frozen=True, forbid_unknown_fields=True):
    """Users whose messages nobody outside of it gets, but for what it exports."""

    name: str  # what users say and logs show
    max_subscriptions: int = 0  # of each client; 0: the broker's own limit
    max_payload_bytes: int = 0  # likewise
    max_connections: int = 0  # at the same time, on all shards together; 0: the broker's own limit
    exports: tuple[Export, ...] = ()  # what other accounts may import
    imports: tuple[Import, ...] = ()  # what it has of other accounts
    mappings: tuple[Mapping, ...] = ()  # where messages published in it go instead, the first that fits


class Tls(_Discreet, frozen=True, forbid_unknown_fields=True):
    """How one port encrypts; a port without a certificate does not."""

    cert_file: str = ""  # PEM: our certificate, then those between it and its authority; "": no TLS
    key_file: str = ""  # PEM: its private key
    ca_file: str = ""  # PEM: authorities of client certificates; "": the system's own
    verify: bool = False  # a client must give a certificate by one of them
    verify_and_map: bool = False  # as verify, and the certificate says which user it is
    timeout_s: float = 2.0  # for the handshake
    min_version: str = "1.2"  # of TLS: "1.2" or "1.3"
    cipher_suites: tuple[str, ...] = ()  # for TLS 1.2, as nats-server names them; (): OpenSSL's choice
    curve_preferences: tuple[str, ...] = ()  # (): OpenSSL's choice
    handshake_first: bool = False  # no INFO before the handshake
    handshake_fallback_s: float = 0.0  # with handshake_first: INFO all the same after this long; 0: never
    # What the files held when the configuration was read; b"": they are read when they are needed.
    cert_pem: bytes = b""
    key_pem: bytes = b""
    ca_pem: bytes = b""

    @property
    def is_on(self) -> bool:
        """Whether there is TLS at all."""
        return bool(self.cert_file)

    @property
    def asks_for_certificate(self) -> bool:
        """Whether a client has to give one."""
        return self.verify or self.verify_and_map


class WebSocket(_Discreet, frozen=True, forbid_unknown_fields=True):
    """The port for clients that speak NATS in WebSocket frames, such as browsers."""

    host: str = ""  # address to listen on; "": every address
    port: int = 0  # 0: none, -1: any free one
    no_tls: bool = False  # has to be said where there is no certificate
    tls: Tls = Tls()  # of this port
    compression: bool = False  # permessage-deflate for clients that ask for it
    same_origin: bool = False  # a page may connect only to where it came from
    allowed_origins: tuple[str, ...] = ()  # pages of these alone, as scheme://host:port; (): of all
    handshake_timeout_s: float = 2.0  # for TLS and the upgrade together


class Options(_Discreet, frozen=True, forbid_unknown_fields=True):
    """The whole configuration of one broker. At most one of token, user and users is set."""

    host: str = ""  # address to listen on; "" or "0.0.0.0": every address, IPv6 included where there is
    port: int = 4222  # clients' TCP port; -1: any free one
    server_name: str = ""  # shown in INFO and on the monitoring pages; "": the server id
    server_tags: tuple[str, ...] = ()  # lower-case words shown on the monitoring pages
    limits: Limits = Limits()
    logging: Logging = Logging()
    swarm: Swarm = Swarm()
    stats: Stats = Stats()
    tls: Tls = Tls()  # of the clients' port
    allow_non_tls: bool = False  # with tls: clients that do not encrypt are let in too
    websocket: WebSocket = WebSocket()
    pid_file: str = ""  # written at start, removed at exit
    ports_file_dir: str = ""  # a file <program>_<pid>.ports with the ports in use is written here
    http_host: str = ""  # monitoring address; "": same as host, and loopback where that is "" too
    http_port: int = 0  # monitoring port; 0: off, -1: any free one
    https_port: int = 0  # the same encrypted, with the certificate of tls; at most one of the two ports is not 0
    http_base_path: str = ""  # what stands before every monitoring path, as a proxy may need
    http_user: str = ""  # with http_password: who may see the monitoring pages; "": everybody who reaches them
    http_password: str = ""  # with http_user
    client_advertise: str = ""  # host[:port] to show in connect_urls instead of our own
    headers: bool = True  # offer message headers (HPUB, HMSG)
    auth_token: str = ""  # token every client must give; "": none
    auth_user: str = ""  # with auth_password: the one user; "": none
    auth_password: str = ""  # the one user's, plain or hashed by bcrypt
    users: tuple[User, ...] = ()  # several users instead of the one; (): none
    no_auth_user: str = ""  # one of users: who a client is that gives no credentials; "": it is refused
    accounts: tuple[Account, ...] = ()  # beside $G and the system's, which are always there
    mappings: tuple[Mapping, ...] = ()  # of the account $G
    system_account: str = SYSTEM_ACCOUNT  # whose users hear of events and may ask the broker
    config_file: str = ""  # where this came from; "": the command line alone
    notices: tuple[str, ...] = ()  # what was asked for and is not offered; said at start, one line each

    @property
    def has_system_users(self) -> bool:
        """Whether anybody could hear of system events."""
        system = self.system_account
        return (
            system == GLOBAL_ACCOUNT
            or any(user.account == system for user in self.users)
            or any(one.account == system for account in self.accounts for one in account.imports)
        )
