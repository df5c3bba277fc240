"""Makes `Options` of a configuration file and a command line, and reports every problem at once.

Flags override the file; a token by flag replaces a user in the file, too, but a user by flag has the file's password.
Reads the file and its includes, and the environment for `$variables`; starts nothing, logs nothing, keeps no state.
Called at start, by `-t`, and at every reload. Modules of blocks are imported where a file has the block: before the
port is open, every import counts.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import msgspec

from gnatswarm.broker.bounds import (
    DISCOURAGED_MAX_PAYLOAD_BYTES,
    LARGEST_OPTIONS_BYTES,
    MOST_COUNTED_ACCOUNTS,
    MOST_PUBLISH_LIMITS,
)
from gnatswarm.broker.limits import Limits
from gnatswarm.broker.options import (
    GLOBAL_ACCOUNT,
    SYSTEM_ACCOUNT,
    Cluster,
    LeafNodes,
    Logging,
    Options,
    Placement,
    PlacementRule,
    Sharding,
    Stats,
    Tls,
    WebSocket,
)
from gnatswarm.broker.version import DEFAULT_COMPATIBILITY, NEW
from gnatswarm.router.config import not_offered
from gnatswarm.router.config.conf_tree import (
    Block,
    ConfigError,
    Entry,
    NewerProblem,
    Position,
    Problem,
    give_up,
    incomplete,
    plain,
    text_in,
)
from gnatswarm.router.config.flags import CommandLine
from gnatswarm.router.config.option_keys import BY_NAME, Key, Settings, read_node
from gnatswarm.router.config.option_values import BareSeconds, Mistake, meant_by_0
from gnatswarm.router.config.repetition import in_other_spellings, repeated, same
from gnatswarm.router.config.suffixed_durations import suffixed_durations

if TYPE_CHECKING:
    from gnatswarm.router.config import conf
    from gnatswarm.router.config.accounts_block import Accounts

_COMMAND_LINE = Position("")
_SECTIONS = (
    "limits",
    "logging",
    "stats",
    "sharding",
    "placement",
    "tls",
    "websocket",
    "websocket.tls",
    "leafnodes",
    "leafnodes.tls",
    "cluster",
    "cluster.tls",
)
# Blocks that restrict access: if a second one replaced the first, it could silently open the broker.
_LOCKS = ("authorization", "accounts", "tls", "websocket", "ws", "leafnodes", "leaf", "cluster")
# The rules of two blocks would have no order among them.
_ONCE = (*_LOCKS, "placement")
# Every name of what a file gives once; only the first of an option's names counts for all.
_NAMES = (
    {name: name for name in (*_ONCE, *not_offered.RESTRICTS)}
    | same("websocket", "ws")
    | same("leafnodes", "leaf")
    | same("mappings", "maps")
    | {name: key.names[0] for name, key in BY_NAME.items()}
)
_TLS_FLAGS = ("tls", "tlsverify", "tlscert", "tlskey", "tlscacert")
_CREDENTIALS = ("auth_token", "auth_user", "auth_password")
_EMPTY = "the file is empty, and without it everybody may connect, who had to log in before"
_IF_EMPTY = "reload again when the file has been written; restart the broker if it is meant to be empty"


class Built(msgspec.Struct, frozen=True):
    """Options, and warnings: with those `-t` fails, but a start does not."""

    options: Options
    warnings: tuple[str, ...] = ()


def build(
    line: CommandLine, *, environment: Mapping[str, str] | None = None, instead_of: Options | None = None
) -> Built:
    """The options of this command line and the file that it names; ConfigError with all problems.

    `instead_of`: those that a broker has, to which everybody should not have access only because a file was read while
    somebody was writing it.
    """
    if not line.config_file:
        return build_parsed(None, line)
    from gnatswarm.router.config.conf import parse_file

    parsed = parse_file(line.config_file, environment=environment)
    built = build_parsed(parsed, line)
    if instead_of is not None and instead_of.is_locked and not built.options.is_locked and parsed.empty_files:
        raise ConfigError([Problem(Position(parsed.empty_files[0]), _EMPTY, _IF_EMPTY)])
    give_up(parsed.tree)
    return built


def build_parsed(parsed: conf.Parsed | None, line: CommandLine) -> Built:
    """The same for a configuration that is already parsed; None: there is none."""
    building = _Building(_own_cluster(parsed, line))
    if parsed is not None:
        building.add_parsed(parsed)
    building.add_flags(line)
    return building.finish(line, parsed)


class _Building:
    """Settings and problems found so far. `cluster`: the name of ours, or "": mappings ask for it."""

    def __init__(self, cluster: str) -> None:
        self._cluster = cluster
        self.settings: Settings = {}
        self.places: dict[str, Position] = {}  # of each setting, for checks that need several settings
        self.problems: list[Problem] = []
        self.notices: list[Problem] = []
        self.warnings: list[Problem] = []
        self.is_whole = True
        self.accounts: Accounts | None = None
        self.accounts_at = _COMMAND_LINE
        self.user_places: dict[str, Position] = {}  # of the users in `authorization`
        self.rule_places: list[Position] = []  # of the placement rules

    def add_parsed(self, parsed: conf.Parsed) -> None:
        """Add the settings of the file."""
        self.problems += parsed.problems
        self.notices += parsed.notices
        self.is_whole = parsed.is_whole
        self._check_spellings(parsed.tree)
        for entry in parsed.tree:
            self._entry(entry)
        self._check_durations(parsed.tree)
        if not self.is_whole:
            # This block lacks the value of an undefined variable: only the variable is reported.
            places = set(incomplete(parsed.tree, parsed.tree.at))
            self.problems = [one for one in self.problems if one.at not in places or one in parsed.problems]

    def _check_durations(self, tree: Block) -> None:
        """Say what `10m` without quotes is, in place of what was said of so many seconds."""
        for one in suffixed_durations(tree):
            said = self.problems if any(other.at == one.at for other in self.problems) else self.warnings
            said[:] = [*(other for other in said if other.at != one.at), one]

    def _check_spellings(self, tree: Block) -> None:
        """No option has two values in two spellings; in another file the last one counts, as in one spelling."""
        for entry, earlier in in_other_spellings(tree, _NAMES):
            if entry.key.lower() in BY_NAME and entry.at.file != earlier.at.file:
                from gnatswarm.router.config.conf import overridden

                self.notices.append(overridden(entry, earlier.at))
            else:
                self.problems.append(repeated(entry, earlier.at))

    def add_flags(self, line: CommandLine) -> None:
        """Add the settings of the command line, which override the file's."""
        given = line.settings
        if "auth_token" in given:
            for field in _CREDENTIALS:
                self.settings.pop(field, None)
        for field, (flag, value, check) in given.items():
            try:
                self._set(_COMMAND_LINE, {field: check(value)})
            except Mistake as mistake:
                self._problem(_COMMAND_LINE, f"-{flag}: {mistake.what}", mistake.advice)
        if "cluster" in line.values:
            self._cluster_flag(line, line.values["cluster"])
        for flag in line.unoffered:
            self._notice(_COMMAND_LINE, f"-{flag} is not offered and was ignored", not_offered.FLAGS_OPEN[flag])

    def _cluster_flag(self, line: CommandLine, value: object) -> None:
        """Where members connect, instead of what the file says; "": there is no cluster."""
        if not value:
            self.settings.pop("cluster.port", None)
            if "cluster.routes" not in line.settings:
                self.settings.pop("cluster.routes", None)
            return
        from gnatswarm.router.config.cluster_block import listen_url

        flag = f"-{line.spelled['cluster']}"
        try:
            found = listen_url(value)
        except Mistake as mistake:
            self._problem(_COMMAND_LINE, f"{flag}: {mistake.what}", mistake.advice)
            return
        if self.settings.get("cluster.user") and not found["cluster.user"]:
            what = f"{flag} has no user, and the file's is not asked for: every server may join the cluster"
            self._notice(_COMMAND_LINE, what, "write nats://user:password@host:6222")
        self._set(_COMMAND_LINE, found)

    def finish(self, line: CommandLine, parsed: conf.Parsed | None) -> Built:
        """Options, after the checks that need all settings."""
        if not self.is_whole:
            # A missing value makes others look wrong: "users are not defined", because one has no password.
            raise ConfigError(self.problems)
        self._take_problems_of_newer()
        self._add_accounts()
        self._check_name()
        self._check_credentials()
        self._check_system_account()
        if self.settings.get("limits.max_connections") == 0:
            self.settings["limits.max_connections"] = meant_by_0(is_like_newer=self._is_like_newer)
        sections: dict[str, dict[str, Any]] = {name: {} for name in _SECTIONS}
        top: dict[str, Any] = {}
        for field, value in self.settings.items():
            section, _, name = field.rpartition(".")
            (sections[section] if section else top)[name] = value
        tls = Tls(**sections["tls"])
        for section, encrypted in (("limits", "tls"), ("leafnodes", "leafnodes.tls"), ("cluster", "cluster.tls")):
            of_port = Tls(**sections[encrypted])
            if of_port.is_on:
                # As in the real server: one may use the whole handshake timeout, and then has a second for CONNECT.
                sections[section].setdefault("auth_timeout_s", of_port.timeout_s + 1)
        limits = Limits(**sections["limits"])
        self._check_limits(limits)
        websocket = WebSocket(tls=Tls(**sections["websocket.tls"]), **sections["websocket"])
        tls, websocket = self._check_tls(tls, websocket, line)
        self._check_monitoring(tls)
        leafnodes = self._check_leafnodes(LeafNodes(tls=Tls(**sections["leafnodes.tls"]), **sections["leafnodes"]))
        self._check_ports(websocket, leafnodes)
        self._check_cluster()
        self._check_placement()
        cluster = Cluster(tls=self._cluster_tls(Tls(**sections["cluster.tls"])), **sections["cluster"])
        if self.problems:
            raise ConfigError(self.problems)
        options = Options(
            **top,
            limits=limits,
            logging=Logging(**sections["logging"]),
            stats=Stats(**sections["stats"]),
            sharding=Sharding(**sections["sharding"]),
            placement=Placement(**sections["placement"]),
            tls=tls,
            websocket=websocket,
            leafnodes=leafnodes,
            cluster=cluster,
            has_guests=self._has_guests(parsed),
            config_file=line.config_file,
            config_digest=_digest(parsed) if self._is_like_newer else "",
            notices=tuple(str(notice) for notice in [*self.warnings, *self.notices]),
        )
        too_many = _too_many(options)
        if too_many is not None:
            raise ConfigError([Problem(Position(line.config_file), *too_many)])
        return Built(options, tuple(str(warning) for warning in self.warnings))

    def _entry(self, entry: Entry) -> None:
        name = entry.key.lower()
        key = BY_NAME.get(name)
        if entry.replaces is not None and (name in _ONCE or name in not_offered.RESTRICTS):
            # In the real server the last one counts; if it had fewer rules, it would silently open the broker.
            self.problems.append(repeated(entry, entry.replaces))
        if name == "authorization":
            from gnatswarm.router.config.authorization import Authorization

            authorization = Authorization(entry)
            self.problems += authorization.problems
            self.notices += authorization.notices
            # If the block has problems, do not compare its credentials with flags: that would report them twice.
            if not authorization.problems:
                self._set(entry.at, authorization.settings)
            self.user_places = authorization.user_places
        elif name == "accounts":
            from gnatswarm.router.config.accounts_block import Accounts

            self.accounts = Accounts(entry, self._cluster)
            self.accounts_at = entry.at
            self.problems += self.accounts.problems
            self.notices += self.accounts.notices
        elif name in ("mappings", "maps"):
            from gnatswarm.router.config.mappings_block import MappingsBlock

            mappings = MappingsBlock(entry, self.problems, self.notices, self._cluster)
            self._set(entry.at, {"mappings": mappings.mappings})
        elif name == "tls":
            from gnatswarm.router.config.tls_block import TlsBlock

            block = TlsBlock(entry, "tls")
            self.problems += block.problems
            self.notices += block.notices
            if not block.problems:
                # The place of the block: problems with the files it names are reported there.
                self._set(entry.at, block.settings)
        elif name in ("websocket", "ws"):
            from gnatswarm.router.config.websocket_block import WebSocketBlock

            websocket = WebSocketBlock(entry)
            self.problems += websocket.problems
            self.notices += websocket.notices
            if not websocket.problems:
                self._set(entry.at, websocket.settings)
                for field, place in websocket.places.items():
                    self._set(place, {field: websocket.settings[field]})
        elif name in ("leafnodes", "leaf"):
            from gnatswarm.router.config.leafnodes_block import LeafNodesBlock

            leafnodes = LeafNodesBlock(entry)
            self.problems += leafnodes.problems
            self.notices += leafnodes.notices
            if not leafnodes.problems:
                self._set(entry.at, leafnodes.settings)
        elif name == "cluster":
            from gnatswarm.router.config.cluster_block import ClusterBlock

            cluster = ClusterBlock(entry)
            self.problems += cluster.problems
            self.notices += cluster.notices
            self._set(entry.at, cluster.settings)
        elif name == "placement":
            from gnatswarm.router.config.placement_block import PlacementBlock

            placement = PlacementBlock(entry)
            self.problems += placement.problems
            self._set(entry.at, placement.settings)
            self.rule_places = placement.places
        elif key is not None:
            try:
                self._option(entry, name, key)
            except Mistake as mistake:
                self._problem(entry.at, f"{name}: {mistake.what}", mistake.advice)
        elif not self._unoffered(entry, name) and not entry.used:
            from gnatswarm.router.config.user_list import unknown_field

            problem = unknown_field(entry, _ALL_NAMES)
            if name in _ELSEWHERE:
                problem = Problem(problem.at, problem.what, _ELSEWHERE[name])
            self.problems.append(problem)

    def _option(self, entry: Entry, name: str, key: Key) -> None:
        """An option of the top level; seconds without a unit are accepted with a warning. Mistake."""
        try:
            self._set(entry.at, read_node(key, entry.value))
        except BareSeconds as bare:
            self._set(entry.at, key.read(f"{bare.seconds:.0f}s"))
            what = f'invalid use of field "{name}": {name} should be converted to a duration'
            self.warnings.append(Problem(entry.at, what, f'write "{bare.seconds:.0f}s"'))

    def _unoffered(self, entry: Entry, name: str) -> bool:
        """Whether only the real server has this key; if so, its notice or problem is added."""
        # An empty block restricts nothing, and neither does `false`.
        empty = plain(entry.value) in ({}, [], False)
        if name in not_offered.RESTRICTS:
            if not empty:
                self._not_enforced(entry.at, f'"{entry.key}": {not_offered.RESTRICTS[name]}')
        elif name in not_offered.OPENS:
            if name in not_offered.WANTS_BLOCK and not isinstance(entry.value, Block):
                self._problem(
                    entry.at, f"Expected map to define {name}, got {entry.value.kind}", f"write {name} {{ … }}"
                )
            elif name == "jetstream":
                self._jetstream(entry)
            else:
                self._notice(entry.at, f'"{entry.key}" is not offered and was ignored', not_offered.OPENS[name])
        elif name in not_offered.NO_EFFECT:
            self._notice(entry.at, f'"{entry.key}" has no effect here', not_offered.NO_EFFECT[name])
        else:
            return False
        return True

    def _jetstream(self, entry: Entry) -> None:
        value = plain(entry.value)
        word = value.lower() if isinstance(value, str) else value
        if word in ("disabled", "disable", False):
            return
        if isinstance(value, str) and word not in ("enabled", "enable"):
            self._problem(entry.at, "Expected 'enabled' or 'disabled' for string value", "write jetstream: disabled")
            return
        self._notice(entry.at, '"jetstream" is not offered and was ignored', not_offered.OPENS["jetstream"])

    def _take_problems_of_newer(self) -> None:
        found = [notice for notice in self.notices if isinstance(notice, NewerProblem)]
        self.notices = [notice for notice in self.notices if not isinstance(notice, NewerProblem)]
        if self._is_like_newer:
            self.problems += found

    def _add_accounts(self) -> None:
        """Add the accounts; their users follow those of `authorization`."""
        accounts = self.accounts
        if accounts is None or accounts.problems:
            return
        for name, place in self.user_places.items():
            if name in accounts.user_places:
                self._problem(
                    place, f'Duplicate user "{name}" detected', f"the other is at {accounts.user_places[name]}"
                )
        if accounts.accounts:
            self._set(self.accounts_at, {"accounts": accounts.accounts})
        users = self.settings.get("users")
        if accounts.users:
            self._set(self.accounts_at, {"users": (users if isinstance(users, tuple) else ()) + accounts.users})
        elif accounts.accounts and not users and not any(self.settings.get(field) for field in _CREDENTIALS):
            self._notice(self.accounts_at, "no account has a user", "nobody has to authenticate")
        if not self._is_like_newer and any(one.trace_destination for one in accounts.accounts):
            self._notice(self.accounts_at, 'message tracing needs compatibility: "2.15"', "nothing is traced")

    def _check_name(self) -> None:
        if " " in str(self.settings.get("server_name", "")) and self._is_like_newer:
            self._problem(self._place("server_name"), "server name cannot contain spaces", "write it without")

    def _check_credentials(self) -> None:
        settings = self.settings
        users = settings.get("users")
        place = self._place("auth_token", "auth_user", "auth_password", "users")
        if users and any(settings.get(field) for field in _CREDENTIALS):
            if self.accounts is not None and self.accounts.users:
                kind = "token" if settings.get("auth_token") else "single user/pass"
                self._problem(
                    place, f"Can not have a {kind} and a users array", "accounts have users; use one or the other"
                )
            else:
                self._problem(place, "credentials on the command line and users in the file", "use one or the other")
        elif settings.get("auth_token") and (settings.get("auth_user") or settings.get("auth_password")):
            self._problem(place, "Cannot have a user/pass and token", "use one or the other")
        elif settings.get("auth_password") and not settings.get("auth_user"):
            self._problem(place, "a password without a user lets everybody in", "add a user")
        for field, flag in (("auth_token", "auth"), ("auth_user", "user")):
            if settings.get(field) == "":
                self._problem(place, f"an empty {flag} lets everybody in", "give a value, or leave it out")
        self._check_hashes(place)
        self._check_websocket_credentials()
        for field in ("no_auth_user", "websocket.no_auth_user"):
            self._check_no_auth_user(field)

    def _check_websocket_credentials(self) -> None:
        """A token or only user of WebSocket clients is instead of the broker's, and cannot be beside users."""
        for field, what in (("websocket.auth_user", "username"), ("websocket.auth_token", "token")):
            if self.settings.get(field) and self.settings.get("users"):
                self._problem(
                    self._place(field),
                    f"websocket authentication {what} not compatible with presence of users/nkeys",
                    "add it to the users, with allowed_connection_types: [WEBSOCKET]",
                )

    def _check_no_auth_user(self, field: str) -> None:
        users, anybody = self.settings.get("users"), self.settings.get(field)
        if anybody:
            names = [user.shown for user in users] if isinstance(users, tuple) else []
            place = self._place(field)
            if not names:
                self._problem(place, f'no_auth_user: "{anybody}" present, but users are not defined', "define users")
            elif anybody not in names:
                what = f'no_auth_user: "{anybody}" not present as user in authorization block'
                self._problem(place, what, "name one of the users")

    def _check_hashes(self, place: Position) -> None:
        given = [value for field in ("auth_token", "auth_password") if (value := self.settings.get(field))]
        if not given:
            return
        from gnatswarm.broker.access.password_hash import is_good_hash, is_hashed
        from gnatswarm.router.config.user_list import BAD_HASH

        for value in given:
            if isinstance(value, str) and is_hashed(value) and not is_good_hash(value):
                self._problem(place, BAD_HASH, "make one with `htpasswd -nbB` or the like")

    def _has_guests(self, parsed: conf.Parsed | None) -> bool:
        """Whether only users of the system account have to log in, as on nats-server: nothing else is configured.

        2.9 lets everybody in even beside an authorization block; here no version does.
        """
        settings = self.settings
        users, accounts = settings.get("users"), settings.get("accounts")
        if not users or not isinstance(accounts, tuple) or parsed is None or settings.get("no_auth_user"):
            return False
        if any(entry.key.lower() == "authorization" for entry in parsed.tree):
            return False
        return [account.name for account in accounts] == [settings.get("system_account", SYSTEM_ACCOUNT)]

    def _check_system_account(self) -> None:
        name = self.settings.get("system_account", SYSTEM_ACCOUNT)
        accounts = self.settings.get("accounts")
        known = [account.name for account in accounts] if isinstance(accounts, tuple) else []
        if name not in (*known, SYSTEM_ACCOUNT, GLOBAL_ACCOUNT) and not (self.accounts and self.accounts.problems):
            what = f'error resolving system account: there is no account "{name}"'
            self._problem(self._place("system_account"), what, "name one of those under accounts { … }")

    def _check_leafnodes(self, leafnodes: LeafNodes) -> LeafNodes:
        """Each account that it names must exist; the same struct, with the content of its files."""
        accounts = self.settings.get("accounts")
        names = {account.name for account in accounts} if isinstance(accounts, tuple) else set()
        names |= {GLOBAL_ACCOUNT, str(self.settings.get("system_account", SYSTEM_ACCOUNT))}
        named = [(remote.account, "leafnodes.remotes") for remote in leafnodes.remotes]
        named += [(user.account, "leafnodes.users") for user in leafnodes.users]
        named += [(leafnodes.account or GLOBAL_ACCOUNT, "leafnodes.account")]
        for account, field in named:
            if account not in names:
                what = f'leafnodes: there is no account "{account}"'
                self._problem(self._place(field), what, "name one of those under accounts { … }")
        tls = leafnodes.tls
        if leafnodes.port and tls.is_on and not self.problems:
            from gnatswarm.router.config.tls_block import with_certificates

            place = self._place("leafnodes.tls.cert_file")
            tls = with_certificates(tls, place, self.problems, self.notices)
        if tls.verify_and_map and not (leafnodes.users or self.settings.get("users")):
            place = self._place("leafnodes.tls.verify_and_map")
            self._problem(place, "verify_and_map, but users are not defined", "define users, or write verify: true")
        elif (
            leafnodes.port
            and tls.verify_and_map
            and self.settings.get("websocket.port")
            and not any(self.settings.get(f"websocket.tls.{name}") for name in ("verify", "verify_and_map"))
        ):
            what = "leaf nodes by WebSocket are refused: that port asks for no certificates"
            self._notice(self._place("leafnodes.tls.verify_and_map"), what, "add verify: true to websocket { tls }")
        return msgspec.structs.replace(leafnodes, tls=tls)

    def _check_cluster(self) -> None:
        """Members are connected to by who can be connected to; a name of 2.15 has no spaces."""
        settings = self.settings
        place = self._place("cluster.routes", "cluster.name")
        if settings.get("cluster.routes") and not settings.get("cluster.port"):
            what = "solicited routes require cluster capabilities, e.g. --cluster"
            self._problem(place, what, "add cluster { port: 6222 }")
        if settings.get("fence") == "cluster" and not settings.get("cluster.port"):
            self._notice(self._place("fence"), '"fence: cluster" without a cluster', "add cluster { port: 6222 }")
        if " " in str(settings.get("cluster.name", "")) and self._is_like_newer:
            self._problem(place, "cluster name cannot contain spaces or newlines", "write it without")
        if settings.get("cluster.password") and not settings.get("cluster.user"):
            self._problem(place, "cluster: a password without a user lets every server in", "add a user")
        if str(settings.get("cluster.password", "")).startswith("$2"):
            from gnatswarm.broker.access.password_hash import is_hashed

            # Compared as text, it would be a password itself.
            if is_hashed(str(settings["cluster.password"])):
                what = "cluster: a password that is a bcrypt hash is not offered"
                self._problem(place, what, "write the password that members send")
        if settings.get("cluster.tls.verify_and_map") and not settings.get("cluster.user"):
            place = self._place("cluster.tls.verify_and_map")
            self._notice(place, "cluster: verify_and_map without a user: no member can connect", "add a user")

    def _cluster_tls(self, tls: Tls) -> Tls:
        """The same, with the content of its files."""
        if self.problems or not tls.is_on:
            return tls
        from gnatswarm.router.config.tls_block import with_certificates

        return with_certificates(tls, self._place("cluster.tls.cert_file"), self.problems, self.notices, "members")

    def _check_tls(self, tls: Tls, websocket: WebSocket, line: CommandLine) -> tuple[Tls, WebSocket]:
        """Check that ports with TLS have what they need; the same structs, with the content of their files."""
        given = [flag for flag in _TLS_FLAGS if line.values.get(flag)]
        if given and not (tls.cert_file and tls.key_file):
            what = "certificate" if not tls.cert_file else "private key"
            flag = "tlscert" if not tls.cert_file else "tlskey"
            self._problem(_COMMAND_LINE, f"TLS Server {what} must be present and valid", f"add --{flag}")
        elif "tls" in line.values and not line.asks("tls") and tls.is_on:
            self._problem(_COMMAND_LINE, "-tls=false, and a certificate", "remove one of them")
        elif not self.problems and (tls.is_on or websocket.tls.is_on):
            from gnatswarm.router.config.tls_block import with_certificates

            tls = with_certificates(tls, self._place("tls.cert_file"), self.problems, self.notices)
            if websocket.port:
                place = self._place("websocket.tls.cert_file")
                inner = with_certificates(websocket.tls, place, self.problems, self.notices)
                websocket = msgspec.structs.replace(websocket, tls=inner)
        place = self._place("tls.verify_and_map")
        if tls.verify_and_map and not self.settings.get("users"):
            # The real server starts, and accepts every client with a valid certificate.
            self._problem(place, "verify_and_map, but users are not defined", "define users, or write verify: true")
        place = self._place("websocket.tls.verify_and_map")
        if websocket.tls.verify_and_map and not self.settings.get("users"):
            self._problem(place, "verify_and_map, but users are not defined", "define users, or write verify: true")
        if self.settings.get("allow_non_tls") and tls.asks_for_certificate:
            what = "clients that do not encrypt need no certificate"
            self._notice(self._place("allow_non_tls"), what, "remove allow_non_tls if every client should have one")
        if self.settings.get("allow_non_tls") and not tls.is_on:
            what = '"allow_non_tls" has no effect here'
            self._notice(self._place("allow_non_tls"), what, "there is no TLS, every connection is plain")
        return tls, websocket

    def _check_monitoring(self, tls: Tls) -> None:
        """Check that there is at most one port, a certificate for HTTPS, and both parts of a log-in or none.

        The real server checks the ports at start, and has no such log-in.
        """
        http, https = self.settings.get("http_port"), self.settings.get("https_port")
        place = self._place("https_port")
        if https and http:
            what = f"Can't start monitoring: can't specify both HTTP ({http}) and HTTPs ({https}) ports"
            self._problem(place, what, "remove one of them")
        elif https and not tls.is_on:
            what = "Can't start monitoring: TLS cert and key required for HTTPS"
            self._problem(place, what, "add a tls block or --tlscert and --tlskey, or use http_port")
        user, password = self.settings.get("http_user"), self.settings.get("http_password")
        if password and not user:
            what = "http_password without http_user lets everybody read the pages"
            self._problem(self._place("http_password"), what, "add http_user")
        elif user and not password:
            what = "http_user without http_password lets in who knows the name"
            self._problem(self._place("http_user"), what, "add http_password")

    def _check_ports(self, websocket: WebSocket, leafnodes: LeafNodes) -> None:
        """Check that no two listeners want the same port of the same address."""
        settings = self.settings
        host = str(settings.get("host", ""))
        asked = [("clients", host, settings.get("port", Options().port), self._place("port"))]
        asked.append(("WebSocket", websocket.host, websocket.port, self._place("websocket.port")))
        at = str(settings.get("cluster.host", ""))
        asked.append(("cluster", at, settings.get("cluster.port", 0), self._place("cluster.port")))
        asked.append(("leaf nodes", leafnodes.host, leafnodes.port, self._place("leafnodes.port")))
        # As in `router.listening.monitor_socket`: the clients' host, or loopback if there is none.
        pages = str(settings.get("http_host") or host or "127.0.0.1")
        for field in ("http_port", "https_port"):
            asked.append(("monitoring", pages, settings.get(field, 0), self._place(field)))
        taken: list[tuple[str, str, object]] = []
        for name, at_host, port, place in asked:
            if not isinstance(port, int) or port <= 0:
                continue
            other = next((one for one, host_, port_ in taken if port_ == port and _overlap(host_, at_host)), "")
            if other:
                self._problem(place, f"port {port} is given to {other} and to {name}", "give each a port of its own")
            taken.append((name, at_host, port))

    def _check_placement(self) -> None:
        """Warn of rules that no client can match with these users and accounts, or for a shard that will not run."""
        settings = self.settings
        rules = settings.get("placement.rules")
        shards = settings.get("sharding.shards")
        accounts = settings.get("accounts")
        users = settings.get("users")
        known = {
            "account": {GLOBAL_ACCOUNT, str(settings.get("system_account", SYSTEM_ACCOUNT))},
            "user": {user.shown for user in users} if isinstance(users, tuple) else set(),
        }
        if isinstance(accounts, tuple):
            known["account"] |= {account.name for account in accounts}
        if settings.get("auth_user"):
            known["user"].add(str(settings["auth_user"]))
        if not isinstance(rules, tuple) or not rules:
            return
        from gnatswarm.broker.placement_rules import Names

        known_names = {kind: Names(names) for kind, names in known.items()}
        for rule, at in zip(rules, self.rule_places, strict=True):
            assert isinstance(rule, PlacementRule)
            if isinstance(shards, int) and 0 < shards <= rule.shard:
                what = f"there is no shard {rule.shard}: shards is {shards}"
                advice = f"write 0 to {shards - 1}, or more shards; till then these clients stay where they are"
                self.warnings.append(Problem(at, what, advice))
            # A name that a client gives without having to prove it is known here only if there are users.
            names = known_names.get(rule.kind)
            if names and not names.have(rule.pattern):
                what = f'no {rule.kind} of this configuration is "{rule.pattern}"'
                self.warnings.append(Problem(at, what, "check its spelling; * stands for anything"))

    def _check_limits(self, limits: Limits) -> None:
        if limits.max_payload_bytes > limits.max_pending_bytes:
            payload, pending = limits.max_payload_bytes, limits.max_pending_bytes
            what = f"max_payload ({payload}) cannot be higher than max_pending ({pending})"
            place = self._place("limits.max_pending_bytes", "limits.max_payload_bytes")
            self._problem(place, what, "a client could not be sent one message; raise max_pending")
        if limits.max_payload_bytes > DISCOURAGED_MAX_PAYLOAD_BYTES:
            what = "Maximum payloads over 8.00 MB are generally discouraged and could lead to poor performance"
            self._notice(self._place("limits.max_payload_bytes"), what, "")
        grace_s, duration_s = limits.lame_duck_grace_s, limits.lame_duck_duration_s
        if grace_s >= duration_s:
            shown = f"({grace_s:g}s) should be strictly lower than lame duck duration ({duration_s:g}s)"
            what = f"lame duck grace period {shown}"
            place = self._place("limits.lame_duck_grace_s", "limits.lame_duck_duration_s")
            self._problem(place, what, "lower the one or raise the other")

    def _set(self, at: Position, settings: Settings) -> None:
        self.settings |= settings
        self.places |= dict.fromkeys(settings, at)

    @property
    def _is_like_newer(self) -> bool:
        """As `Options.is_like_newer`, of options that are being read."""
        return self.settings.get("compatibility", DEFAULT_COMPATIBILITY) == NEW

    def _place(self, *fields: str) -> Position:
        """Where the first of these was set."""
        return next((self.places[field] for field in fields if field in self.places), _COMMAND_LINE)

    def _problem(self, at: Position, what: str, advice: str) -> None:
        self.problems.append(Problem(at, what, advice))

    def _not_enforced(self, at: Position, what: str) -> None:
        from gnatswarm.router.config.user_list import not_enforced

        self.problems.append(not_enforced(at, what))

    def _notice(self, at: Position, what: str, advice: str) -> None:
        self.notices.append(Problem(at, what, advice))


def _own_cluster(parsed: conf.Parsed | None, line: CommandLine) -> str:
    """The name of our cluster as it is given, before anything is checked."""
    found: object = ""
    for entry in parsed.tree if parsed is not None else ():
        if entry.key.lower() == "cluster" and isinstance(entry.value, Block):
            found = next((text_in(inner.value) for inner in entry.value if inner.key.lower() == "name"), "")
    if "cluster.name" in line.settings:
        found = line.settings["cluster.name"][1]
    return found if isinstance(found, str) else ""


def _digest(parsed: conf.Parsed | None) -> str:
    if parsed is None:
        return ""
    from gnatswarm.router.config.config_digest import config_digest

    return config_digest(parsed.tree)


_EVERY_ADDRESS = ("", "0.0.0.0", "::", "*")
_LOOPBACK = ("localhost", "127.0.0.1")


def _size(options: Options) -> int:
    """In bytes, as shards are told them, to some bytes for each thousand users.

    Encoded in parts: other threads wait meanwhile.
    """
    users = (options.users[at : at + 1000] for at in range(0, len(options.users), 1000))
    return sum(len(msgspec.msgpack.encode(part)) for part in (msgspec.structs.replace(options, users=()), *users))


def _too_many(options: Options) -> tuple[str, str] | None:
    """What there is too much of, as shards are told it or count it, and what to do about it."""
    size = _size(options)
    if size > LARGEST_OPTIONS_BYTES:
        what = f"the configuration is too large: {size:,} bytes as shards are told it, over {LARGEST_OPTIONS_BYTES:,}"
        return what, "fewer users, or default_permissions for those that have the same"
    counted = sum(1 for account in options.accounts if account.max_connections)
    if counted > MOST_COUNTED_ACCOUNTS:
        what = f"{counted:,} accounts have limits {{ max_connections }}"
        return (
            f"{what}, and at most {MOST_COUNTED_ACCOUNTS:,} can be counted",
            "fewer, or max_connections of the broker",
        )
    limits = [*(user.publish_limits for user in options.users), *(one.publish_limits for one in options.accounts)]
    limited = len(limits) - limits.count(None)
    if limited > MOST_PUBLISH_LIMITS:
        what = f"{limited:,} users and accounts have publish_limits"
        return (
            f"{what}, and at most {MOST_PUBLISH_LIMITS:,} can be counted",
            "those of accounts are for all their users",
        )
    return None


def _overlap(host: str, other: str) -> bool:
    """Whether both listen on one address. Names are not looked up: two of them may go unnoticed until the start."""
    if host in _EVERY_ADDRESS or other in _EVERY_ADDRESS or host == other:
        return True
    return host in _LOOPBACK and other in _LOOPBACK


# Names that other servers or other blocks use, with advice for each.
_IN_AUTHORIZATION = "it belongs into authorization { … }"
_LEVELS = "write debug: true or trace: true"
_ELSEWHERE = {
    **dict.fromkeys(
        ("user", "usr", "username", "users", "pass", "password", "token", "permissions"), _IN_AUTHORIZATION
    ),
    **dict.fromkeys(("loglevel", "log_level", "logging", "verbose", "verbosity"), _LEVELS),
    **dict.fromkeys(("bind", "addr", "address", "hostname", "bind_address"), 'did you mean "host"?'),
    "name": 'did you mean "server_name"?',
    **dict.fromkeys(("cert_file", "key_file", "ca_file", "tls_cert", "tls_key"), "it belongs into tls { … }"),
    **dict.fromkeys(("workers", "threads", "processes"), 'did you mean "shards"?'),
}
_ALL_NAMES = [
    *_ONCE,
    *BY_NAME,
    *not_offered.RESTRICTS,
    "mappings",
    *not_offered.OPENS,
    *not_offered.NO_EFFECT,
]
