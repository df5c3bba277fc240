"""The `accounts { … }` block of the configuration: accounts, and the users in them.

A restriction in an account that this broker does not enforce is a problem, never a notice: see
`router.config.not_offered`.
"""

from __future__ import annotations

from gnatswarm.broker.access.nkey import is_account_key
from gnatswarm.broker.options import GLOBAL_ACCOUNT, Account, Mapping, Permissions, PublishLimits, User
from gnatswarm.router.config import not_offered
from gnatswarm.router.config import option_values as values
from gnatswarm.router.config.conf_tree import Block, Entry, List, Position, Problem, Scalar, plain, text_in
from gnatswarm.router.config.imports_exports_block import ImportsExportsBlock
from gnatswarm.router.config.imports_exports_rules import exchange_problems
from gnatswarm.router.config.mappings_block import MappingsBlock
from gnatswarm.router.config.message_trace_block import message_trace
from gnatswarm.router.config.option_values import Mistake
from gnatswarm.router.config.permission_block import PermissionBlock
from gnatswarm.router.config.publish_limits_block import publish_limits
from gnatswarm.router.config.repetition import given_again, same
from gnatswarm.router.config.user_list import UserList, unknown_field, with_defaults

_LIMITS = {
    "max_connections": "connections",
    "max_conn": "connections",
    "max_subscriptions": "subscriptions",
    "max_subs": "subscriptions",
    "max_payload": "payload",
    "max_pay": "payload",
    "max_leafnodes": "leafs",
    "max_leafs": "leafs",
}
# Limits of an account's JetStream, which is that of other servers: they are checked, and have no effect.
_JETSTREAM_SIZES = (
    *("max_memory", "max_mem", "mem", "memory", "max_store", "max_file", "max_disk", "store", "disk"),
    *("mem_max_stream_bytes", "memory_max_stream_bytes", "disk_max_stream_bytes", "store_max_stream_bytes"),
)
_JETSTREAM_NUMBERS = ("max_streams", "streams", "max_consumers", "consumers", "max_ack_pending")
_JETSTREAM_BOOLEANS = ("max_bytes_required", "max_stream_bytes", "max_bytes")
_JETSTREAM_WORDS = {"cluster_traffic": ("system", "owner")}

_KEYS = (
    *("exports", "imports", "mappings", "users", "limits", "default_permissions", "publish_limits", "nkey"),
    "msg_trace",
)
# Every name of them: `mappings` and `maps` may be given both, and are read as one.
_NAMES = {name: name for name in (*_KEYS, "maps", "jetstream")} | same("msg_trace", "trace_dest")


class Accounts:
    """Reads the block; `accounts` and `users` are what it found, `problems` what is wrong."""

    def __init__(self, entry: Entry, cluster: str) -> None:
        """`cluster`: the name of ours, or ""."""
        self._cluster = cluster
        # By name, and a list: there may be ten thousands.
        self._accounts: dict[str, Account] = {}
        self._users: list[User] = []
        self.user_places: dict[str, Position] = {}
        self.problems: list[Problem] = []
        self.notices: list[Problem] = []
        self._exchanges: list[ImportsExportsBlock] = []
        found = entry.value
        if isinstance(found, List):  # only names
            for item in found.items:
                name = text_in(item)
                if name is not None:
                    self._add(item.at, name, None)
                else:
                    self._problem(item.at, f"Expected an account name, got {item.kind}", "write a name")
        elif isinstance(found, Block):
            for inner in found:
                if inner.replaces is not None:
                    self._problem(inner.at, f'account "{inner.key}" is given again', "keep one")
                if isinstance(inner.value, Block):
                    self._add(inner.at, inner.key, inner.value)
                elif not inner.used:
                    what = f"Expected map entries for accounts, got {inner.value.kind}"
                    self._problem(inner.at, what, "write { … }")
        else:
            self._problem(
                entry.at, f"Expected accounts to be a map or an array, got {found.kind}", "write { A: { … } }"
            )
        self.problems += exchange_problems(self._exchanges, self._accounts)

    @property
    def accounts(self) -> tuple[Account, ...]:
        """The accounts, in the order of the file."""
        return tuple(self._accounts.values())

    @property
    def users(self) -> tuple[User, ...]:
        """The users of all accounts."""
        return tuple(self._users)

    def _add(self, at: Position, name: str, block: Block | None) -> None:
        if name == GLOBAL_ACCOUNT:
            self._problem(at, f'"{name}" is a Reserved Account', "name it otherwise")
            return
        if not name or any(character.isspace() or character == "\0" for character in name) or len(name) > 255:
            self._problem(at, f'"{name[:40]}": an account\'s name has no blanks', "name it otherwise")
            return
        if name in self._accounts:
            self._problem(at, f'account "{name}" is given again', "keep one")
            return
        self._limits: dict[str, int] = {}
        users: UserList | None = None
        exchange = ImportsExportsBlock(name, self.problems, self.notices)
        mappings: tuple[Mapping, ...] = ()
        defaults: Permissions | None = None
        rate: PublishLimits | None = None
        has_jetstream = False
        trace = "", 100
        self.problems += given_again(block, _NAMES) if block is not None else []
        for entry in block or ():
            key = entry.key.lower()
            if key == "users":
                users = UserList(entry, self.problems, name)
            elif key == "publish_limits":
                rate = publish_limits(entry, self.problems)
            elif key == "limits":
                self._read_limits(entry)
            elif key == "default_permissions":
                defaults = PermissionBlock(entry, self.problems).permissions
            elif key == "jetstream":
                has_jetstream = self._jetstream(entry)
            elif key == "nkey":
                self._nkey(entry)
            elif key == "exports":
                exchange.read_exports(entry)
            elif key == "imports":
                exchange.read_imports(entry)
            elif key in ("mappings", "maps"):
                mappings += MappingsBlock(entry, self.problems, self.notices, self._cluster).mappings
            elif key in ("msg_trace", "trace_dest"):
                trace = message_trace(entry, self.problems)
            elif not entry.used:
                self.problems.append(unknown_field(entry, [*_KEYS]))
        limits = self._limits
        self._exchanges.append(exchange)
        self._accounts[name] = Account(
            name,
            limits.get("subscriptions", 0),
            limits.get("payload", 0),
            limits.get("connections", 0),
            limits.get("leafs", 0),
            exports=tuple(export for export, _ in exchange.exports),
            imports=tuple(found for found, _ in exchange.imports),
            mappings=mappings,
            publish_limits=rate,
            trace_destination=trace[0],
            trace_percent=trace[1],
            jetstream=has_jetstream,
        )
        if users is None:
            return
        for user in users.users:
            if user.shown in self.user_places:
                self._problem(
                    users.places[user.shown], f'Duplicate user "{user.shown}" detected', "give each user once"
                )
        self.user_places |= users.places
        self._users += with_defaults(users.users, defaults)

    def _jetstream(self, entry: Entry) -> bool:
        """Whether the account is to have JetStream: a block of limits, or enabled."""
        value = entry.value
        word = value.value if isinstance(value, Scalar) else "enabled" if isinstance(value, Block) else None
        is_on = word.lower() in ("enabled", "enable") if isinstance(word, str) else word is True
        if not is_on and word is not False and str(word).lower() not in ("disabled", "disable"):
            self._problem(entry.at, "Expected map, bool or string to define JetStream", "write enabled or disabled")
            return False
        if isinstance(value, Block):
            for inner in value:
                self._jetstream_limit(inner)
        if is_on:
            self._notice(
                entry.at, f'"{entry.key}" stores nothing here', not_offered.OPENS_IN_ACCOUNTS[entry.key.lower()]
            )
        return is_on

    def _jetstream_limit(self, entry: Entry) -> None:
        key = entry.key.lower()
        value = plain(entry.value)
        try:
            if key in _JETSTREAM_SIZES:
                values.number(value, -1, 2**63 - 1, "bytes")
            elif key in _JETSTREAM_NUMBERS:
                values.number(value, -1, 2**63 - 1)
            elif key in _JETSTREAM_BOOLEANS and not isinstance(value, bool):
                self._problem(entry.at, f"{entry.key}: expected true or false", "write true or false")
            elif key in _JETSTREAM_WORDS and value not in _JETSTREAM_WORDS[key]:
                self._problem(entry.at, f"{entry.key}: expected a known word", "write system or owner")
            elif key not in (*_JETSTREAM_BOOLEANS, *_JETSTREAM_WORDS) and not entry.used:
                known = [*_JETSTREAM_SIZES, *_JETSTREAM_NUMBERS, *_JETSTREAM_BOOLEANS, *_JETSTREAM_WORDS]
                unknown = unknown_field(entry, known)
                self.problems.append(Problem(entry.at, f"{unknown.what} of an account's jetstream", unknown.advice))
        except Mistake as mistake:
            self._problem(entry.at, f"{entry.key}: {mistake.what}", mistake.advice)

    def _nkey(self, entry: Entry) -> None:
        text = plain(entry.value)
        if not isinstance(text, str) or not is_account_key(text):
            advice = "it begins with A, and has 56 characters; or leave it out"
            self._problem(entry.at, "Not a valid public nkey for an account", advice)
        else:
            self._notice(entry.at, '"nkey" of an account has no effect here', "accounts are known by their names")

    def _read_limits(self, entry: Entry) -> None:
        block = entry.value
        if not isinstance(block, Block):
            self._problem(entry.at, f"Expected limits to be a map/struct, got {block.kind}", "write { max_subs: 100 }")
            return
        self.problems += given_again(block, _LIMITS)
        for inner in block:
            name = _LIMITS.get(inner.key.lower())
            if name is None:
                if not inner.used:
                    self._problem(inner.at, f'Unknown field "{inner.key}" parsing account limits', "remove it")
                continue
            try:
                most = values.number(plain(inner.value), -1, 2**31 - 1, "bytes" if name == "payload" else "")
            except Mistake as mistake:
                self._problem(inner.at, f"{inner.key}: {mistake.what}", mistake.advice)
                continue
            if most == 0:
                self._problem(inner.at, f"{inner.key}: 0 would mean nothing at all", "write -1 for no limit")
            elif most > 0:
                self._limits[name] = most

    def _problem(self, at: Position, what: str, advice: str) -> None:
        self.problems.append(Problem(at, what, advice))

    def _notice(self, at: Position, what: str, advice: str) -> None:
        self.notices.append(Problem(at, what, advice))
