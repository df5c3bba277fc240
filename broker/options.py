"""Every option of the broker, typed, frozen and documented; parsed once by the router, passed whole to each shard.

One struct per section; an option's type, default, unit and meaning are on one line. Unknown keys are errors. This
module reads no file: `router.config.conf` reads nats-server's configuration syntax, `router.cli` the command line, and
`router.config.options_build` makes Options of both. No repr contains a secret, so that no log can show one.
"""

import msgspec

from gnatswarm.broker.limits import Limits
from gnatswarm.broker.version import DEFAULT_COMPATIBILITY, NEW, SERVER_VERSIONS

SECRET_FIELDS = frozenset(
    {
        "auth_token",
        "auth_password",
        "http_password",
        "password",
        "cert_pem",
        "key_pem",
        "ca_pem",
        "urls",
        "routes",
        "jwt",
        "seed",
    }
)


# The account of users without an account, and of clients where no log-in is required; and the system account.
GLOBAL_ACCOUNT = "$G"
SYSTEM_ACCOUNT = "$SYS"


class _Discreet(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A struct whose repr shows fields that differ from their default, and hides secrets."""

    def __repr__(self) -> str:
        shown = []
        for field in msgspec.structs.fields(type(self)):
            value = getattr(self, field.name)
            if value != field.default:
                shown.append(f"{field.name}=" + ("…" if field.name in SECRET_FIELDS else repr(value)))
        return f"{type(self).__name__}({', '.join(shown)})"


class Logging(_Discreet, frozen=True, forbid_unknown_fields=True):
    """Where log lines go, and how detailed they are."""

    file: str = ""  # path; "": standard error
    syslog: bool = False  # log to the local syslog instead of standard error; a log file takes precedence
    remote_syslog: str = ""  # log to udp://host:port, tcp://host:port or unix:///path; before syslog, behind a log file
    size_limit_bytes: int = 0  # rotate past this many bytes; 0: never
    most_files: int = 0  # the log and rotated ones that are kept, the newest; 0: all
    format: str = "text"  # "text": nats-server's lines; "json": one JSON object per line
    logtime: bool = True  # timestamps on every line
    logtime_utc: bool = False  # log times in UTC instead of local time
    debug: bool = False  # -D: connections, links, decisions
    trace: bool = False  # -V: every operation of every client; slow
    trace_payload_bytes: int = 0  # bytes of a message that -V shows at most; 0: no limit
    trace_headers: bool = False  # -V shows the headers of messages, and no payloads

    @property
    def is_to_syslog(self) -> bool:
        """Whether lines go to syslog."""
        return not self.file and (self.syslog or bool(self.remote_syslog))


class Sharding(_Discreet, frozen=True, forbid_unknown_fields=True):
    """The shards behind one address; nats-server has no such section."""

    shards: int = 0  # 1..62; 0: the number of usable cores (affinity and cgroup respected)
    accept: str = "reuseport"  # "reuseport": one kernel-balanced listener per shard; "handoff": the router chooses
    link_dir: str = ""  # private directory of the link sockets; "": a new one, mode 0700
    prefer_local: bool = False  # queue groups: prefer members on the publisher's shard


class PlacementRule(_Discreet, frozen=True, forbid_unknown_fields=True):
    """Which clients belong on one shard; what such patterns match: `gnatswarm.broker.placement_rules`."""

    kind: str  # whose pattern it is: account, user or name of a client, or subject, of what it subscribes to
    pattern: str  # `*` stands for anything; a subject as in a subscription: the client subscribes within it
    shard: int = -1  # 0..63: these clients belong there; -1 (together: true): on one shard, which the broker chooses


class Placement(_Discreet, frozen=True, forbid_unknown_fields=True):
    """Which clients belong on which shard; nats-server has no such section."""

    after_scale: str = "even"  # when shards were added: "even": move connections until all have as many, "stay": none
    bound: float = 1.25  # 1.0 to 62.0: rules move nobody to a shard that has so many times the mean load
    rules: tuple[PlacementRule, ...] = ()  # the first that matches a client counts; (): clients stay where they are


class Stats(_Discreet, frozen=True, forbid_unknown_fields=True):
    """The statistics files that each shard writes; nats-server has no such section."""

    enabled: bool = True  # false: no statistics files, and no counters per subject and window
    dir: str = ""  # directory of the files; "": under $XDG_STATE_HOME/gnatswarm (~/.local/state), by port
    window_s: float = 10.0  # 0.1 to 3600: the time that one row covers
    max_subjects: int = 4096  # 1..1000000: rows per window, account and shard; lighter subjects share one row
    max_clients: int = 1024  # 0..100000: clients with a row each per window and shard; others share one; 0: no rows
    client_subjects: int = 32  # 1..1000: of a client, the heaviest subjects published, and received, per window
    client_names: bool = True  # false: rows of clients and of slow consumers have no names and addresses
    max_age_s: float = 604800.0  # older files are removed, once the clock has run evenly for an hour; 0: no limit
    max_bytes: int = 1073741824  # the oldest files are removed while their total is over this; 0: no limit


class Permissions(_Discreet, frozen=True, forbid_unknown_fields=True, gc=False):
    """What a user may do. A rule is a subject with wildcards; for subscriptions it may name a queue: "jobs workers"."""

    publish_allow: tuple[str, ...] | None = None  # the user may publish to these subjects only; None: to all
    publish_deny: tuple[str, ...] = ()  # exceptions from publish allow
    subscribe_allow: tuple[str, ...] | None = None  # the user may subscribe to these subjects only; None: to all
    subscribe_deny: tuple[str, ...] = ()  # exceptions from subscribe allow
    responses: int = 0  # messages to the reply subject of each message received, in addition; -1: no limit
    responses_expire_s: float = 120.0  # how long after that message; 0 or less: no limit


class PublishLimits(_Discreet, frozen=True, forbid_unknown_fields=True, gc=False):
    """How fast clients may publish: those of a user together, or those of an account, on all shards."""

    messages: int = 0  # per second; 0: no limit
    bytes: int = 0  # per second, headers included; 0: no limit
    burst_s: float = 1.0  # 0.01 to 3600: what may be published at once after a pause, as the time for it at that rate
    stall_s: float = 10.0  # a client that is over the limit is not read; for so long, then it is closed; 0: no end


# Kinds of connection that a user may be limited to: those that this broker has, then those of nats-server alone.
STANDARD = "STANDARD"
WEBSOCKET = "WEBSOCKET"
LEAFNODE = "LEAFNODE"
LEAFNODE_WS = "LEAFNODE_WS"
CONNECTION_TYPES = (STANDARD, WEBSOCKET, LEAFNODE, LEAFNODE_WS, "MQTT", "MQTT_WS", "IN_PROCESS")


class User(_Discreet, frozen=True, forbid_unknown_fields=True, gc=False):
    """A user: with a name and a password, plain or hashed by bcrypt, or with an nkey."""

    name: str = ""  # "": a user with an nkey
    password: str = ""  # plain, or hashed by bcrypt
    nkey: str = ""  # public key, "U…"
    account: str = GLOBAL_ACCOUNT  # the account that the user belongs to
    permissions: Permissions | None = None  # None: everything is allowed
    connection_types: tuple[str, ...] = ()  # kinds of connection: STANDARD, WEBSOCKET, LEAFNODE, LEAFNODE_WS; (): all
    publish_limits: PublishLimits | None = None  # of all its clients together; for 65,536 users and accounts at most

    @property
    def shown(self) -> str:
        """The user's name in logs and on monitoring pages."""
        return self.name or self.nkey

    def may_come_by(self, kind: str) -> bool:
        """Whether the user may use connections of this kind."""
        return not self.connection_types or kind in self.connection_types


class Export(_Discreet, frozen=True, forbid_unknown_fields=True):
    """A stream or service of an account that other accounts may import."""

    subject: str  # a stream's subject, wildcards allowed: importing accounts may subscribe
    is_service: bool  # instead of stream, a service's subject: importing accounts may send requests
    accounts: tuple[str, ...] | None = None  # the accounts that may import it; None: all
    response: str = "singleton"  # of a service: "singleton", "stream" or "chunked"
    threshold_s: float = 120.0  # of a service: the longest wait for a response, or for the next of several
    latency_subject: str = ""  # of a service: where its response times are published, in this account; "": nowhere
    latency_percent: int = 100  # of requests that are measured, beside traced ones; 0 ("headers"): traced ones alone
    allow_trace: bool = False  # of a service: message traces follow requests to this account
    account_token_position: int = 0  # which token of what is imported is the importing account's name, from 1; 0: none


class Import(_Discreet, frozen=True, forbid_unknown_fields=True):
    """A stream or service that an account imports from another one."""

    account: str  # the exporting account
    subject: str  # the subject in the exporting account
    is_service: bool  # instead of stream: the importing account sends requests; a stream it subscribes to
    to: str  # the subject in the importing account, with $1, $2 or the same number of *; of a stream also a prefix
    share: bool = False  # of a service: it sees which client asks (name, user, address …), not only which account
    allow_trace: bool = False  # of a stream: message traces of the exporting account follow it here


class Mapping(_Discreet, frozen=True, forbid_unknown_fields=True):
    """Other subjects for messages that are published to a subject, within one account."""

    subject: str  # the published subject, wildcards allowed
    destinations: tuple[tuple[str, int], ...]  # subjects, each with its percentage; the rest to 100 is dropped


class Account(_Discreet, frozen=True, forbid_unknown_fields=True):
    """An account: its messages reach its own users only, except what it exports."""

    name: str  # the account's name, as other options and logs use it
    max_subscriptions: int = 0  # of each client, leaf node and hub; 0: the broker's own limit
    max_payload_bytes: int = 0  # of each message; 0: the broker's own limit
    max_connections: int = 0  # at once, on all shards together, for 16,384 accounts at most; 0: the broker's limit
    max_leafnodes: int = 0  # connections of leaf nodes at the same time; 0: as many as there are places, 31
    exports: tuple[Export, ...] = ()  # streams and services that other accounts may import
    imports: tuple[Import, ...] = ()  # streams and services of other accounts
    mappings: tuple[Mapping, ...] = ()  # other subjects for messages published in the account; the first match counts
    publish_limits: PublishLimits | None = None  # of all its clients together, beside those of users; None: no limits
    trace_destination: str = ""  # where traces of messages go that a header `traceparent` asks for; "": nowhere
    trace_percent: int = 100  # 1 to 100: of those messages, how many are traced
    jetstream: bool = False  # in a cluster, its clients use the JetStream of members that have it

    def lowers(self, limits: Limits) -> Limits:
        """The broker's limits, lowered to those of this account."""
        most = self.max_subscriptions
        if most and (not limits.max_subscriptions or most < limits.max_subscriptions):
            limits = msgspec.structs.replace(limits, max_subscriptions=most)
        if self.max_payload_bytes and self.max_payload_bytes < limits.max_payload_bytes:
            limits = msgspec.structs.replace(limits, max_payload_bytes=self.max_payload_bytes)
        return limits


class CertificatePair(_Discreet, frozen=True, forbid_unknown_fields=True):
    """A certificate and its private key."""

    cert_file: str = ""  # PEM: a certificate, then intermediate ones
    key_file: str = ""  # PEM: its private key
    # The content of the files when the configuration was read; b"": read the files when they are needed.
    cert_pem: bytes = b""
    key_pem: bytes = b""


class Tls(_Discreet, frozen=True, forbid_unknown_fields=True):
    """TLS of one port; a port without a certificate has none."""

    cert_file: str = ""  # PEM: the server's certificate, then intermediate ones; "": no TLS
    key_file: str = ""  # PEM: its private key
    ca_file: str = ""  # PEM: authorities of client certificates; "": the system's own
    verify: bool = False  # clients must present a certificate signed by one of ca_file
    verify_and_map: bool = False  # as verify, and the certificate selects the user
    timeout_s: float = 2.0  # for the handshake
    min_version: str = "1.2"  # of TLS: "1.2" or "1.3"
    cipher_suites: tuple[str, ...] = ()  # for TLS 1.2, with nats-server's names; (): OpenSSL's choice
    curve_preferences: tuple[str, ...] = ()  # one curve, or all; (): OpenSSL's choice
    handshake_first: bool = False  # true: no INFO before the handshake
    handshake_fallback_s: float = 0.0  # with handshake_first: send INFO if no handshake began for so long; 0: never
    pinned_certs: tuple[str, ...] = ()  # clients' certificates must have one of these keys, as SHA-256; (): any key
    handshakes_per_s: int = 0  # TLS handshakes per second on all shards together; more are refused; 0: no limit
    more_certs: tuple[CertificatePair, ...] = ()  # further certificates, for other names or kinds of key; (): none
    # The content of the files when the configuration was read; b"": read the files when they are needed.
    cert_pem: bytes = b""
    key_pem: bytes = b""
    ca_pem: bytes = b""

    @property
    def pairs(self) -> tuple[CertificatePair, ...]:
        """All certificates with their keys, the first first."""
        first = CertificatePair(self.cert_file, self.key_file, self.cert_pem, self.key_pem)
        return (first, *self.more_certs)

    @property
    def is_on(self) -> bool:
        """Whether the port has TLS."""
        return bool(self.cert_file)

    @property
    def terms(self) -> "Tls":
        """What it asks of a connection, whichever certificates, pins and authorities there are."""
        certificates = {"cert_file": "", "key_file": "", "ca_file": "", "cert_pem": b"", "key_pem": b"", "ca_pem": b""}
        return msgspec.structs.replace(self, **certificates, more_certs=(), pinned_certs=())

    @property
    def asks_for_certificate(self) -> bool:
        """Whether a client must present a certificate."""
        return self.verify or self.verify_and_map


class WebSocket(_Discreet, frozen=True, forbid_unknown_fields=True):
    """The port for clients that speak NATS in WebSocket frames, such as browsers."""

    host: str = ""  # address to listen on; "": every address
    port: int = 0  # 0: none, -1: any free one
    advertise: str = ""  # host[:port] to show in ws_connect_urls, and to WebSocket clients, instead of our own
    no_tls: bool = False  # must be true if there is no certificate
    tls: Tls = Tls()  # of this port
    compression: bool = False  # permessage-deflate for clients that ask for it
    same_origin: bool = False  # a web page may connect only to the host and port it was loaded from
    allowed_origins: tuple[str, ...] = ()  # web pages of these origins only, as scheme://host:port; (): of all
    handshake_timeout_s: float = 2.0  # for TLS and the upgrade together
    headers: tuple[tuple[str, str], ...] = ()  # names and values that the response to an upgrade has, too
    ping_interval_s: float = 0.0  # a WebSocket client that is idle for so long gets a PING; 0: the broker's own
    auth_token: str = ""  # token of WebSocket clients, instead of the broker's token or only user; "": the broker's own
    auth_user: str = ""  # likewise, name of the only user; "": the broker's own
    auth_password: str = ""  # and its password, plain or hashed by bcrypt
    auth_timeout_s: float = 0.0  # for a WebSocket client to log in; 0: the broker's own
    no_auth_user: str = ""  # the user or nkey of WebSocket clients without credentials; "": the broker's own
    user_cookie: str = ""  # name of a cookie with the user name, where CONNECT gives none; "": none
    pass_cookie: str = ""  # name of a cookie with the password, where CONNECT gives none; "": none
    token_cookie: str = ""  # name of a cookie with the token, where CONNECT gives none; "": none

    @property
    def cookies(self) -> tuple[str, str, str]:
        """The names of the cookies with user name, password and token; "": none."""
        return self.user_cookie, self.pass_cookie, self.token_cookie


class ClientTls(_Discreet, frozen=True, forbid_unknown_fields=True):
    """TLS of connections that this broker makes to other servers."""

    is_on: bool = False  # encrypt although the other server does not ask for it
    ca_file: str = ""  # PEM: authorities of the other server's certificate; "": the system's own
    cert_file: str = ""  # PEM: the certificate that this broker presents; "": none
    key_file: str = ""  # PEM: its private key
    insecure: bool = False  # do not check the other server's certificate
    pinned_certs: tuple[str, ...] = ()  # that certificate must have one of these keys, as SHA-256; (): any key
    timeout_s: float = 2.0  # for the handshake
    handshake_first: bool = False  # begin with it: a hub with handshake_first sends no INFO before
    min_version: str = "1.2"  # of TLS: "1.2" or "1.3"
    cipher_suites: tuple[str, ...] = ()  # for TLS 1.2, with nats-server's names; (): OpenSSL's choice
    curve_preferences: tuple[str, ...] = ()  # one curve, or all; (): OpenSSL's choice
    # The content of the files when the configuration was read; b"": another remote that names the file has it
    # (LeafNodes.complete_remotes), or read the files when they are needed.
    cert_pem: bytes = b""
    key_pem: bytes = b""
    ca_pem: bytes = b""

    @property
    def pairs(self) -> tuple[CertificatePair, ...]:
        """The certificate that this broker presents, with its key; (): none."""
        return (CertificatePair(self.cert_file, self.key_file, self.cert_pem, self.key_pem),) if self.cert_file else ()

    @property
    def files(self) -> tuple[tuple[str, str, bytes], ...]:
        """The field, path and content of each file; path "": there is none."""
        return (
            ("cert_pem", self.cert_file, self.cert_pem),
            ("key_pem", self.key_file, self.key_pem),
            ("ca_pem", self.ca_file, self.ca_pem),
        )


class LeafRemote(_Discreet, frozen=True, forbid_unknown_fields=True):
    """A hub that this broker connects to as a leaf node, for one account."""

    urls: tuple[str, ...]  # addresses of the hub, as nats://[user:password@]host[:7422], tls://, ws:// or wss://
    account: str = GLOBAL_ACCOUNT  # the account here whose messages and interest the hub shares
    credentials: str = ""  # path of a .creds file with a user's JWT and seed; "": none
    seed: str = ""  # an nkey's seed, "SU…", that signs the hub's nonce; "": none
    jwt: str = ""  # from the file of credentials
    tls: ClientTls = ClientTls()  # of this connection
    hub: bool = False  # this broker is the hub of this connection, though it dials
    isolate: bool = False  # with hub: the other end hears nothing of other leaf nodes' interest
    request_isolation: bool = False  # the hub is asked for that
    ws_compression: bool = False  # by WebSocket (ws:// or wss://): messages are compressed if the hub agrees
    ws_no_masking: bool = False  # … and frames are not masked if the hub agrees, which saves CPU on both ends
    deny_imports: tuple[str, ...] = ()  # subjects that do not come from the hub
    deny_exports: tuple[str, ...] = ()  # subjects that do not go to the hub
    reconnect_s: float = 1.0  # the wait before the hub is dialled again
    no_randomize: bool = False  # addresses are tried in the order of urls, then of those that the hub names
    dial_timeout_s: float = 1.0  # for a connection to an address
    # nats-server waits one second for INFO; two leave room for a busy hub.
    first_info_timeout_s: float = 2.0  # for the hub's INFO, with which it begins
    ignore_discovered_servers: bool = False  # addresses that the hub names are not dialled

    @property
    def apart_from_files(self) -> "LeafRemote":
        """The same, whatever its files hold: a reload with a renewed certificate or credentials has the same remote."""
        tls = msgspec.structs.replace(self.tls, cert_pem=b"", key_pem=b"", ca_pem=b"")
        signs = {"jwt": "", "seed": ""} if self.credentials else {}
        return msgspec.structs.replace(self, tls=tls, **signs)

    def having(self, files: dict[str, bytes]) -> "LeafRemote":
        """The same with these fields of `tls`."""
        return msgspec.structs.replace(self, tls=msgspec.structs.replace(self.tls, **files)) if files else self


def each_file_once(remotes: list[LeafRemote]) -> tuple[LeafRemote, ...]:
    """These, each file's content at the first that names it alone: the authorities of 72 hubs would take 16 MB."""
    seen: set[str] = set()
    found = []
    for remote in remotes:
        again: dict[str, bytes] = {}
        for field, path, data in remote.tls.files:
            if data and path in seen:
                again[field] = b""
            elif data:
                seen.add(path)
        found.append(remote.having(again))
    return tuple(found)


class LeafNodes(_Discreet, frozen=True, forbid_unknown_fields=True):
    """Connections between this broker and others that share some of its accounts."""

    host: str = ""  # address to listen on for leaf nodes; "": every address
    port: int = 0  # 0: this broker is no hub, -1: any free one
    advertise: str = ""  # host[:port] that leaf nodes are told to connect to, too; "": our own
    no_advertise: bool = False  # leaf nodes are told no address
    auth_timeout_s: float = 2.0  # for a leaf node to log in; with tls: its timeout and 1 s
    min_version: str = ""  # of nats-server, 2.8.0 at least, that a leaf node must have or be like; "": any
    account: str = ""  # of leaf nodes that need not log in; "": $G
    users: tuple[User, ...] = ()  # leaf nodes log in as one of these; (): as users of the broker
    tls: Tls = Tls()  # of the port for leaf nodes
    isolate: bool = False  # leaf nodes hear nothing of each other's interest, only of that of clients here and of hubs
    write_deadline_s: float = 0.0  # of leaf nodes and hubs, as write_deadline of clients; 0: the broker's own
    write_timeout: str = "default"  # "close": one ends that has not taken in that time what waited; else: nothing of it
    remotes: tuple[LeafRemote, ...] = ()  # hubs that this broker connects to; (): none

    @property
    def complete_remotes(self) -> tuple[LeafRemote, ...]:
        """The remotes with the contents of their files: in `remotes` only the first that names a file has it."""
        known = {path: data for remote in self.remotes for _field, path, data in remote.tls.files if data}
        return tuple(
            remote.having({field: known[path] for field, path, data in remote.tls.files if path in known and not data})
            for remote in self.remotes
        )


class Cluster(_Discreet, frozen=True, forbid_unknown_fields=True):
    """The cluster of servers that this broker is a member of, and its port for the others."""

    name: str = ""  # the same on all members; "": one is made up, and given up for another member's
    host: str = ""  # address to listen on for other members; "": every address
    port: int = 0  # 0: no members, but clients and leaf nodes are told the name; -1: any free one
    routes: tuple[str, ...] = ()  # members to connect to, as nats://[user:password@]host:port; they tell of the others
    advertise: str = ""  # host[:port] at which other members reach this broker; "": where they see it
    no_advertise: bool = False  # clients are not told of other members, nor theirs of this broker
    connect_retries: int = 0  # how often a member that others told of is dialled again; members in routes: always
    connect_backoff: bool = False  # a member that cannot be reached is dialled after 1, 2, 4, … 30 s, not each second
    user: str = ""  # that other members must give; "": nobody has to
    password: str = ""  # and its password
    auth_timeout_s: float = 2.0  # how long other members may take to log in; with tls: its timeout and 1 s
    tls: Tls = Tls()  # of routes, on both ends; members always verify each other's certificates
    ping_interval_s: float = 0.0  # a member is pinged so often, at least every 30 s; 0: the broker's own
    ping_max: int = 0  # a member that has not answered so many pings is disconnected; 0: the broker's own
    write_deadline_s: float = 0.0  # of members, as write_deadline of clients; 0: the broker's own
    write_timeout: str = "default"  # "close": one ends that has not taken in that time what waited; else: nothing of it
    tls_insecure: bool = False  # members that are dialled need no certificate that can be verified
    permissions: Permissions | None = None  # what goes to other members (publish) and comes (subscribe); None: all


class Options(_Discreet, frozen=True, forbid_unknown_fields=True):
    """The whole configuration of one broker. At most one of token, user and users is set."""

    host: str = ""  # address to listen on; "" or "0.0.0.0": every address, including IPv6 if there is any
    port: int = 4222  # clients' TCP port; -1: any free one
    server_name: str = ""  # shown in INFO and on the monitoring pages; "": the server id
    compatibility: str = DEFAULT_COMPATIBILITY  # "2.15" or "2.9": the nats-server to behave like, where they differ
    server_tags: tuple[str, ...] = ()  # lower-case words shown on the monitoring pages
    server_metadata: tuple[tuple[str, str], ...] = ()  # names and values shown in /varz and in the broker's events
    limits: Limits = Limits()
    logging: Logging = Logging()
    sharding: Sharding = Sharding()
    stats: Stats = Stats()
    placement: Placement = Placement()
    tls: Tls = Tls()  # of the clients' port
    allow_non_tls: bool = False  # with tls: also accept clients without TLS
    proxy_protocol: bool = False  # clients' connections may begin with a load balancer's PROXY header (v1, v2)
    websocket: WebSocket = WebSocket()
    leafnodes: LeafNodes = LeafNodes()
    cluster: Cluster = Cluster()
    fence: str = "broker"  # who knows what came before a client's PONG: "broker", or "cluster": other members, too
    fence_timeout_s: float = 0.25  # how long PONGs wait for other servers, up to 5 s: fence: cluster, UNSUB of a group
    pid_file: str = ""  # written at start, removed at exit
    ports_file_dir: str = ""  # a file <program>_<pid>.ports with the ports in use is written here
    http_host: str = ""  # monitoring address; "": the same as host, or loopback if host is "" too
    http_port: int = 0  # monitoring port; 0: off, -1: any free one
    https_port: int = 0  # monitoring port with TLS, by the certificate of tls; only one of the two ports may be set
    http_base_path: str = ""  # prefix of every monitoring path, for a proxy
    http_user: str = ""  # user name for the monitoring pages, with http_password; "": no log-in
    http_password: str = ""  # password for the monitoring pages
    client_advertise: str = ""  # host[:port] to show in connect_urls instead of the broker's own
    headers: bool = True  # offer message headers (HPUB, HMSG)
    auth_token: str = ""  # token that every client must give; "": none
    auth_user: str = ""  # name of the only user; "": none
    auth_password: str = ""  # password of the only user, plain or hashed by bcrypt
    users: tuple[User, ...] = ()  # several users instead of the only one; (): none
    no_auth_user: str = ""  # the user or nkey (one of users) of clients without credentials; "": they are refused
    accounts: tuple[Account, ...] = ()  # in addition to $G and the system account, which always exist
    mappings: tuple[Mapping, ...] = ()  # of the account $G
    system_account: str = SYSTEM_ACCOUNT  # the account whose users receive events and may send requests to the broker
    has_guests: bool = False  # only the system account has users: clients without credentials are in $G
    config_file: str = ""  # the configuration file; "": the command line alone
    config_digest: str = ""  # "sha256:…" of its values, as nats-server 2.15 computes it; "": not computed
    notices: tuple[str, ...] = ()  # features that were configured and are not supported; each a line of the log

    @property
    def has_gateway(self) -> bool:
        """Whether a process of its own connects this broker to other servers."""
        return bool(self.leafnodes.remotes or self.leafnodes.port or self.cluster.port)

    @property
    def stated_cluster(self) -> str:
        """The configured name of the cluster, which clients are told without a port for members, too; "": none is.

        As on nats-server, a leaf node that has a name and is in no cluster is one of that name.
        """
        if self.cluster.port or self.cluster.name:
            return self.cluster.name
        return self.server_name if self.leafnodes.remotes else ""

    @property
    def server_ports(self) -> dict[str, tuple[str, int]]:
        """Host and port on which other servers connect, by kind ("cluster", "leafnodes"); port -1: any free one."""
        found = {"cluster": (self.cluster.host, self.cluster.port)} if self.cluster.port else {}
        return found | ({"leafnodes": (self.leafnodes.host, self.leafnodes.port)} if self.leafnodes.port else {})

    @property
    def has_log_in(self) -> bool:
        """Whether there is a token, or users (one of which clients may be without a log-in)."""
        return bool(self.auth_token or self.auth_user or self.users)

    @property
    def is_locked(self) -> bool:
        """The same, and there are no guests."""
        return self.has_log_in and not self.has_guests

    @property
    def server_version(self) -> str:
        """The version of nats-server that clients and pages are told."""
        return SERVER_VERSIONS[self.compatibility]

    @property
    def is_like_newer(self) -> bool:
        """Whether to behave like nats-server 2.15."""
        return self.compatibility == NEW

    def limits_of(self, account: str) -> Limits:
        """The limits of one connection in this account."""
        own = next((one for one in self.accounts if one.name == account), None)
        return own.lowers(self.limits) if own is not None else self.limits

    @property
    def account_names(self) -> set[str]:
        """Those of all accounts, $G and the system account included."""
        return {GLOBAL_ACCOUNT, self.system_account, *(account.name for account in self.accounts)}

    @property
    def has_system_users(self) -> bool:
        """Whether any user could receive system events: here, or at another server with which the account is shared."""
        system = self.system_account
        return (
            system == GLOBAL_ACCOUNT
            or bool(self.cluster.port)
            or self.leafnodes.account == system
            or any(user.account == system for user in (*self.users, *self.leafnodes.users))
            or any(remote.account == system for remote in self.leafnodes.remotes)
            or any(one.account == system for account in self.accounts for one in account.imports)
        )
