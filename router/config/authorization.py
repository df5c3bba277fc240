"""The `authorization` block of the configuration: the credentials that clients need, as settings of Options.

A restriction that this broker does not enforce is a problem, never a notice: see `router.config.not_offered`. So is
every form that seems to restrict access and does not (a password without a user, an empty list of users, an empty
token): the real server accepts it and then lets every client in.
"""

from __future__ import annotations

from gnatswarm.broker.access.password_hash import is_good_hash, is_hashed
from gnatswarm.broker.options import Permissions, User
from gnatswarm.router.config import option_values as values
from gnatswarm.router.config.conf_tree import Block, Entry, List, Position, Problem, Scalar
from gnatswarm.router.config.option_keys import Settings
from gnatswarm.router.config.option_values import Mistake
from gnatswarm.router.config.permission_block import PermissionBlock
from gnatswarm.router.config.repetition import given_again
from gnatswarm.router.config.user_list import BAD_HASH, NAMES, UserList, known, text_of, with_defaults

_DEFAULTS = ("default_permission", "default_permissions", "permissions")
_BLOCK_KEYS = NAMES | {"token": "token", "timeout": "timeout", "users": "users"} | dict.fromkeys(_DEFAULTS, "defaults")


class Authorization:
    """Reads one block into `settings`; errors are in `problems`."""

    def __init__(self, entry: Entry) -> None:
        self.settings: Settings = {}
        self.problems: list[Problem] = []
        self.notices: list[Problem] = []
        self.user_places: dict[str, Position] = {}
        self._read(entry)

    def _read(self, entry: Entry) -> None:
        block = entry.value
        if not isinstance(block, Block):
            self._problem(entry.at, f"expected a block, not {block.kind}", "write authorization { user: …, pass: … }")
            return
        if not block.entries:
            self.notices.append(Problem(entry.at, "authorization is empty", "nobody has to authenticate"))
        self.problems += given_again(block, _BLOCK_KEYS)
        users: tuple[User, ...] | None = None
        defaults: Permissions | None = None
        given: dict[str, str] = {}
        for inner in block:
            name = known(inner, _BLOCK_KEYS, self.problems)
            if name == "users":
                users = self._users(inner)
            elif name == "defaults":
                defaults = PermissionBlock(inner, self.problems).permissions
            elif name == "timeout":
                self._timeout(inner)
            elif name:
                self._credential(inner, name, given)
        self._combine(entry.at, given, users, defaults)

    def _combine(
        self, at: Position, given: dict[str, str], users: tuple[User, ...] | None, defaults: Permissions | None
    ) -> None:
        if "token" in given and ("user" in given or "pass" in given):
            self._problem(at, "Cannot have a user/pass and token", "remove one of them")
        elif users is not None and "user" in given:
            self._problem(at, "Can not have a single user/pass and a users array", "move the user into users")
        elif users is not None and "token" in given:
            self._problem(at, "Can not have a token and a users array", "remove one of them")
        elif users is not None and given.pop("pass", None) is not None:
            # Often this is a variable that the users refer to; the real server ignores it without a message.
            self.notices.append(Problem(at, "the password without a user is ignored", "each of the users has its own"))
        elif "pass" in given and "user" not in given:
            self._problem(at, "a password without a user lets everybody in", "add a user")
        elif defaults is not None and users is None:
            # The real server accepts them and then allows everything.
            self._problem(at, "default permissions hold for users of a users array alone", "move the user into users")
        fields = {"token": "auth_token", "user": "auth_user", "pass": "auth_password"}
        self.settings |= {fields[name]: value for name, value in given.items()}
        if users:
            self.settings["users"] = with_defaults(users, defaults)

    def _credential(self, entry: Entry, name: str, given: dict[str, str]) -> None:
        value = text_of(entry, self.problems)
        if value is None:
            return
        if not value and name != "pass":
            self._problem(entry.at, f"an empty {name} lets everybody in", f"write a {name}, or remove the key")
        elif name != "user" and is_hashed(value) and not is_good_hash(value):
            self._problem(entry.at, BAD_HASH, "make one with `htpasswd -nbB` or the like")
        else:
            given[name] = value

    def _users(self, entry: Entry) -> tuple[User, ...]:
        if isinstance(entry.value, List) and not entry.value.items:
            self._problem(entry.at, "an empty list of users lets everybody in", "add a user, or remove the key")
        found = UserList(entry, self.problems)
        self.user_places = found.places
        return found.users

    def _timeout(self, entry: Entry) -> None:
        try:
            if not isinstance(entry.value, Scalar):
                raise Mistake(f"expected seconds, not {entry.value.kind}", "write timeout: 2")
            self.settings["limits.auth_timeout_s"] = values.auth_timeout_s(entry.value.value)
        except Mistake as mistake:
            self._problem(entry.at, f"timeout: {mistake.what}", mistake.advice)

    def _problem(self, at: Position, what: str, advice: str) -> None:
        self.problems.append(Problem(at, what, advice))
