"""A list `users: [ {user: …, pass: …} {nkey: …} ]`, in `authorization` or in an account.

A restriction that this broker does not enforce is a problem, never a notice: see `router.config.not_offered`.
"""

from __future__ import annotations

import msgspec

from gnatswarm.broker.access.nkey import user_key
from gnatswarm.broker.access.password_hash import is_good_hash, is_hashed
from gnatswarm.broker.options import CONNECTION_TYPES, GLOBAL_ACCOUNT, Permissions, PublishLimits, User
from gnatswarm.router.config import not_offered
from gnatswarm.router.config.conf_tree import Block, Entry, List, Position, Problem, Scalar, text_in
from gnatswarm.router.config.permission_block import PermissionBlock
from gnatswarm.router.config.publish_limits_block import publish_limits
from gnatswarm.router.config.repetition import given_again
from gnatswarm.router.config.spelling import nearest

NAMES = {"user": "user", "username": "user", "pass": "pass", "password": "pass"}
_TYPES = ("allowed_connection_types", "connection_types", "clients")
_PERMISSIONS = ("permission", "permissions", "authorization")
_USER_KEYS = NAMES | {"nkey": "nkey"} | dict.fromkeys(_PERMISSIONS, "permissions") | dict.fromkeys(_TYPES, "types")
_USER_KEYS |= {"publish_limits": "publish_limits"}
BAD_HASH = "not a bcrypt hash that a password could be compared with"


class UserList:
    """Reads one list into `users`; errors go to `problems`."""

    def __init__(self, entry: Entry, problems: list[Problem], account: str = GLOBAL_ACCOUNT) -> None:
        self._problems = problems
        self._account = account
        self.users: tuple[User, ...] = ()
        self.places: dict[str, Position] = {}  # of each user, by its shown name
        found = entry.value
        if not isinstance(found, List):
            advice = "write users: [ {user: …, pass: …} ]"
            self._problem(entry.at, f"Expected users field to be an array, got {found.kind}", advice)
            return
        users: dict[str, User] = {}
        for item in found.items:
            if not isinstance(item, Block):
                advice = "write {user: …, pass: …}"
                self._problem(item.at, f"Expected user entry to be a map/struct, got {item.kind}", advice)
                continue
            user = self._user(item)
            if user is not None and user.shown in users:
                self._problem(item.at, f'Duplicate user "{user.shown}" detected', "give each user once")
            elif user is not None:
                users[user.shown] = user
                self.places[user.shown] = item.at
        self.users = tuple(users.values())

    def _user(self, block: Block) -> User | None:
        given: dict[str, str] = {}
        permissions: Permissions | None = None
        types: tuple[str, ...] = ()
        limits: PublishLimits | None = None
        refused = False
        self._problems += given_again(block, _USER_KEYS)
        for entry in block:
            name = known(entry, _USER_KEYS, self._problems)
            if name == "permissions":
                permissions = PermissionBlock(entry, self._problems).permissions
                continue
            if name == "publish_limits":
                limits = publish_limits(entry, self._problems)
                continue
            if name == "types":
                types = self._types(entry)
                continue
            value = text_of(entry, self._problems) if name else None
            refused |= value is None
            if value is None or name is None:
                continue
            if name == "pass" and is_hashed(value) and not is_good_hash(value):
                self._problem(entry.at, BAD_HASH, "make one with `htpasswd -nbB` or the like")
            if name == "nkey" and user_key(value) is None:
                self._problem(entry.at, "Not a valid public nkey for a user", "it begins with U, and has 56 characters")
                refused = True
            given[name] = value
        if "nkey" in given:
            if "user" in given or "pass" in given:
                self._problem(block.at, "Nkey users do not take usernames or passwords", "make two entries")
            return None if refused else User("", "", given["nkey"], self._account, permissions, types, limits)
        if not given.get("user"):
            if not refused:
                self._problem(block.at, "User entry requires a user", "add a name, as in {user: bob, pass: …}")
            return None
        return User(given["user"], given.get("pass", ""), "", self._account, permissions, types, limits)

    def _types(self, entry: Entry) -> tuple[str, ...]:
        """The kinds of connection that the user may use. An empty list is an error, because it would allow all."""
        items = entry.value.items if isinstance(entry.value, List) else [entry.value]
        found = [item.value.upper() for item in items if isinstance(item, Scalar) and isinstance(item.value, str)]
        wrong = [name for name in found if name not in CONNECTION_TYPES]
        if len(found) != len(items) or not found:
            self._problem(
                entry.at, f"{entry.key}: expected names of kinds of connection", "write [STANDARD, WEBSOCKET]"
            )
        elif wrong:
            self._problem(entry.at, f"invalid connection types {wrong}", f"known are {', '.join(CONNECTION_TYPES)}")
        return tuple(dict.fromkeys(found))

    def _problem(self, at: Position, what: str, advice: str) -> None:
        self._problems.append(Problem(at, what, advice))


def known(entry: Entry, names: dict[str, str], problems: list[Problem]) -> str | None:
    """The key's canonical name, or None and a problem; None without a problem for a variable's definition."""
    key = entry.key.lower()
    if key in names:
        return names[key]
    feature = not_offered.RESTRICTS_IN_AUTHORIZATION.get(key)
    if feature is not None:
        if isinstance(entry.value, Scalar) and entry.value.value is False:
            return None
        problems.append(not_enforced(entry.at, f'"{entry.key}": {feature}'))
    elif not entry.used:
        problems.append(unknown_field(entry, [*names, *not_offered.RESTRICTS_IN_AUTHORIZATION]))
    return None


def text_of(entry: Entry, problems: list[Problem]) -> str | None:
    """The entry's text, or None and a problem."""
    found = text_in(entry.value)
    if found is not None:
        return found
    problems.append(Problem(entry.at, f"{entry.key}: expected text, not {entry.value.kind}", "put it in quotes"))
    return None


def not_enforced(at: Position, feature: str) -> Problem:
    """The problem of an option that restricts access and is not enforced: the broker does not start."""
    advice = "remove it only if access may be open; this broker will not start and ignore it"
    return Problem(at, f"{feature} is not offered by this version", advice)


def unknown_field(entry: Entry, known: list[str]) -> Problem:
    """`unknown field "x"`, with the most similar name."""
    near = nearest(entry.key, known)
    advice = f'did you mean "{near}"?' if near else "remove it, or use it as a variable"
    return Problem(entry.at, f'unknown field "{entry.key}"', advice)


def with_defaults(users: tuple[User, ...], permissions: Permissions | None) -> tuple[User, ...]:
    """The users; those without permissions get these."""
    if permissions is None:
        return users
    return tuple(
        user if user.permissions is not None else msgspec.structs.replace(user, permissions=permissions)
        for user in users
    )
