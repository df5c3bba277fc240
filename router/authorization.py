"""The `authorization` block of the configuration: who may connect, as settings of Options.

Whatever it says that is not enforced is a problem, never a notice: see `router.not_offered`. So is every form that
looks like a lock and is none (a password without a user, an empty list of users, an empty token), which the real
server takes and then lets everybody in.
"""

from __future__ import annotations

import difflib

from broker.conf_tree import Block, Entry, List, Position, Problem, Scalar
from broker.options import User
from router import not_offered
from router import option_values as values
from router.option_keys import Settings
from router.option_values import Mistake

_NAMES = {"user": "user", "username": "user", "pass": "pass", "password": "pass"}
_BLOCK_KEYS = _NAMES | {"token": "token", "timeout": "timeout", "users": "users"}


class Authorization:
    """Reads one block; what it found is in `settings`, what is wrong in `problems`."""

    def __init__(self, entry: Entry) -> None:
        self.settings: Settings = {}
        self.problems: list[Problem] = []
        self.notices: list[Problem] = []
        self._read(entry)

    def _read(self, entry: Entry) -> None:
        block = entry.value
        if not isinstance(block, Block):
            self._problem(entry.at, f"expected a block, not {block.kind}", "write authorization { user: …, pass: … }")
            return
        if not block.entries:
            self.notices.append(Problem(entry.at, "authorization is empty", "nobody has to authenticate"))
        users: tuple[User, ...] | None = None
        given: dict[str, str] = {}
        for inner in block:
            name = self._known(inner, _BLOCK_KEYS)
            if name == "users":
                users = self._users(inner)
            elif name == "timeout":
                self._timeout(inner)
            elif name:
                self._credential(inner, name, given)
        self._combine(entry.at, given, users)

    def _combine(self, at: Position, given: dict[str, str], users: tuple[User, ...] | None) -> None:
        if "token" in given and ("user" in given or "pass" in given):
            self._problem(at, "Cannot have a user/pass and token", "remove one of them")
        elif users is not None and ("user" in given or "pass" in given):
            self._problem(at, "Can not have a single user/pass and a users array", "move the user into users")
        elif users is not None and "token" in given:
            self._problem(at, "Can not have a token and a users array", "remove one of them")
        elif "pass" in given and "user" not in given:
            self._problem(at, "a password without a user lets everybody in", "add a user")
        fields = {"token": "auth_token", "user": "auth_user", "pass": "auth_password"}
        self.settings |= {fields[name]: value for name, value in given.items()}
        if users:
            self.settings["users"] = users

    def _credential(self, entry: Entry, name: str, given: dict[str, str]) -> None:
        value = self._text(entry)
        if value is None:
            return
        if not value and name != "pass":
            self._problem(entry.at, f"an empty {name} lets everybody in", f"write a {name}, or remove the key")
        elif name != "user" and not_offered.is_hashed(value):
            self._not_enforced(entry.at, not_offered.HASHED_PASSWORDS)
        else:
            given[name] = value

    def _users(self, entry: Entry) -> tuple[User, ...]:
        found = entry.value
        if not isinstance(found, List):
            advice = "write users: [ {user: …, pass: …} ]"
            self._problem(entry.at, f"Expected users field to be an array, got {found.kind}", advice)
            return ()
        if not found.items:
            self._problem(entry.at, "an empty list of users lets everybody in", "add a user, or remove the key")
        users: dict[str, User] = {}
        for item in found.items:
            if not isinstance(item, Block):
                advice = "write {user: …, pass: …}"
                self._problem(item.at, f"Expected user entry to be a map/struct, got {item.kind}", advice)
                continue
            user = self._user(item)
            if user is not None and user.name in users:
                self._problem(item.at, f'Duplicate user "{user.name}" detected', "give each user once")
            elif user is not None:
                users[user.name] = user
        return tuple(users.values())

    def _user(self, block: Block) -> User | None:
        given: dict[str, str] = {}
        refused = False
        for entry in block:
            name = self._known(entry, _NAMES)
            value = self._text(entry) if name else None
            refused |= value is None
            if value is None or name is None:
                continue
            if name == "pass" and not_offered.is_hashed(value):
                self._not_enforced(entry.at, not_offered.HASHED_PASSWORDS)
            given[name] = value
        if not given.get("user"):
            if not refused:
                self._problem(block.at, "User entry requires a user", "add a name, as in {user: bob, pass: …}")
            return None
        return User(given["user"], given.get("pass", ""))

    def _timeout(self, entry: Entry) -> None:
        try:
            if not isinstance(entry.value, Scalar):
                raise Mistake(f"expected seconds, not {entry.value.kind}", "write timeout: 2")
            self.settings["limits.auth_timeout_s"] = values.auth_timeout_s(entry.value.value)
        except Mistake as mistake:
            self._problem(entry.at, f"timeout: {mistake.what}", mistake.advice)

    def _known(self, entry: Entry, names: dict[str, str]) -> str | None:
        """The key's own name, or None and a problem; a variable's definition is neither."""
        key = entry.key.lower()
        if key in names:
            return names[key]
        feature = not_offered.RESTRICTS_IN_AUTHORIZATION.get(key)
        if feature is not None:
            self._not_enforced(entry.at, f'"{entry.key}": {feature}')
        elif not entry.used:
            self.problems.append(unknown_field(entry, [*names, *not_offered.RESTRICTS_IN_AUTHORIZATION]))
        return None

    def _text(self, entry: Entry) -> str | None:
        if isinstance(entry.value, Scalar) and isinstance(entry.value.value, str):
            return entry.value.value
        self._problem(entry.at, f"{entry.key}: expected text, not {entry.value.kind}", "put it in quotes")
        return None

    def _not_enforced(self, at: Position, feature: str) -> None:
        self.problems.append(not_enforced(at, feature))

    def _problem(self, at: Position, what: str, advice: str) -> None:
        self.problems.append(Problem(at, what, advice))


def not_enforced(at: Position, feature: str) -> Problem:
    """What stops a start: it restricts access and is not enforced."""
    advice = "remove it only if access may be open; this broker will not start and ignore it"
    return Problem(at, f"{feature} is not offered by this version", advice)


def unknown_field(entry: Entry, known: list[str]) -> Problem:
    """`unknown field "x"`, with the nearest name there is."""
    near = difflib.get_close_matches(entry.key.lower(), known, n=1, cutoff=0.6)
    advice = f'did you mean "{near[0]}"?' if near else "remove it, or use it as a variable"
    return Problem(entry.at, f'unknown field "{entry.key}"', advice)
