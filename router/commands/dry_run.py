"""`gnatswarm suggest-permissions --dry-run FILE`: what a configuration would have denied of what users did.

What they did comes as lines of JSON from a Spark job (`--used`), which shares no code with the broker; the rules are
applied here, by the engine's own permissions. Of one-time subjects only the beginning is recorded (`_INBOX.>`), so a
rule on a part of them leaves the result open.
"""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterable
from typing import Any, NamedTuple

import msgspec

from gnatswarm.broker import options as opt
from gnatswarm.broker.permissions import Permissions
from gnatswarm.broker.placement_rules import SubjectPattern
from gnatswarm.broker.quoted import quoted
from gnatswarm.broker.subject import matches

# As the statistics name them (shards/boundary/records.py).
OTHER, REST = "*other*", "*rest*"
# One-time subjects are recorded under these names.
FOLDED = ("_INBOX.>", "_R_.>", "$JS.ACK.>")
RESPONSES = ("_INBOX.>", "_R_.>")
MOST_SHOWN = 50


class Denied(NamedTuple):
    """One subject, or subscription, of one user that would have been denied."""

    user: str
    account: str
    deed: str  # "publish" or "subscribe"
    subject: str
    queue: str
    msgs: int  # published, or received by the subscription
    rule: str
    is_open: bool  # it may have been denied, or not


class Result(NamedTuple):
    """All of it, the most messages first, and what nobody knows."""

    denied: tuple[Denied, ...]
    looked_at: int  # pairs of user and subject
    unknown_msgs: int  # of clients or subjects without rows of their own
    is_cut: bool  # there were more subjects than the job looks at


class JobFailed(Exception):
    """The Spark job could not tell; the text says why, unless it has said so itself ("")."""


def asked(command: list[str]) -> tuple[str, list[str], bool]:
    """(configuration file, the job's command that prints what users did, whether JSON is wanted). JobFailed."""
    words, path = [], ""
    rest = list(command)
    while rest:
        word = rest.pop(0)
        name, equals, value = word.partition("=")
        if name != "--dry-run":
            words.append(word)
        elif equals or rest:
            path = value if equals else rest.pop(0)
    if not path:
        raise JobFailed("suggest-permissions: --dry-run needs a configuration file")
    return path, [*(word for word in words if word != "--json"), "--used"], "--json" in words


def run(options: opt.Options, command: list[str]) -> Result:
    """Start the job, and apply the permissions of this configuration to what it prints. JobFailed."""
    try:
        done = subprocess.run(command, stdout=subprocess.PIPE, text=True, encoding="utf-8", check=False)
        found = dry_run(options, done.stdout.splitlines()) if not done.returncode else None
    except KeyboardInterrupt:
        raise JobFailed("interrupted") from None
    if found is None:
        raise JobFailed("")
    return found


def dry_run(options: opt.Options, lines: Iterable[str]) -> Result:
    """Apply the permissions of this configuration to the lines of `--used`. ValueError: they are none."""
    rules = _Rules(options)
    found: list[Denied] = []
    unknown = looked_at = 0
    is_cut = False
    for line in lines:
        row: dict[str, Any] = json.loads(line)
        if "is_cut" in row:
            is_cut = bool(row["is_cut"])
        elif "deed" not in row:  # a user with its sums
            unknown += row["in_msgs"] + row["out_msgs"] if row["user"] == OTHER else 0
        elif row["subject"] == OTHER:
            unknown += row["msgs"] if row["user"] != OTHER else 0
        elif row["user"] != OTHER:
            looked_at += 1
            rule, is_open = rules.denial(row["user"], row["deed"] == "publish", row["subject"], row["queue"])
            if rule:
                words = row["user"], row["account"], row["deed"], row["subject"], row["queue"], row["msgs"]
                found.append(Denied(*words, rule, is_open))
    found.sort(key=lambda one: (one.is_open, -one.msgs, one))
    return Result(tuple(found), looked_at, unknown, is_cut)


class _Rules:
    """Users and their compiled permissions."""

    def __init__(self, options: opt.Options) -> None:
        self._users = {user.shown: user.permissions for user in options.users}
        self._is_for_all = not options.users and not options.auth_user  # a token, or nobody has to log in
        if options.auth_user:
            self._users[options.auth_user] = None
        if options.no_auth_user in self._users:
            self._users[""] = self._users[options.no_auth_user]
        elif options.has_guests:
            self._users[""] = None
        self._compiled: dict[int, tuple[opt.Permissions, Permissions]] = {}

    def denial(self, user: str, publishes: bool, subject: str, queue: str) -> tuple[str, bool]:
        """(the reason why the user may not, "": it may; whether that is open)."""
        if self._is_for_all:
            return "", False
        if user not in self._users:
            return ("there is no such user" if user else "nobody can log in without credentials"), False
        asked = self._users[user]
        if asked is None:
            return "", False
        allow = asked.publish_allow if publishes else asked.subscribe_allow
        deny = asked.publish_deny if publishes else asked.subscribe_deny
        rules = self._permissions(asked)
        raw = subject.encode("utf-8", "surrogateescape")
        if subject in FOLDED:
            if publishes and asked.responses and subject in RESPONSES:
                return "", False
            head = subject[:-1]
            part = [rule for rule in (*(allow or ()), *deny) if rule.startswith(head) and rule != subject]
            if part:
                return f'"{part[0]}" is about some of these subjects only', True
            raw = head.encode() + (b"x" if publishes else b"x.*")
        if publishes:
            return ("", False) if rules.can_publish(raw) else (_why("publish", subject, raw, allow, deny), False)
        name = queue.encode("utf-8", "surrogateescape")
        if rules.can_subscribe(raw, name):
            pattern = SubjectPattern(subject)
            kept = next((rule for rule in deny if pattern.overlaps(rule.partition(" ")[0])), "")
            return (f'subscribe deny "{kept}" keeps some of its messages from it', True) if kept else ("", False)
        return _why("subscribe", subject, raw, allow, deny), False

    def _permissions(self, asked: opt.Permissions) -> Permissions:
        found = self._compiled.get(id(asked))
        if found is None:
            found = self._compiled[id(asked)] = asked, Permissions(asked)
        return found[1]


def _why(deed: str, subject: str, raw: bytes, allow: tuple[str, ...] | None, deny: tuple[str, ...]) -> str:
    for rule in deny:
        if matches(rule.partition(" ")[0].encode("utf-8", "surrogateescape"), raw):
            return f'{deed} deny "{rule}"'
    shown = ", ".join((allow or ())[:5]) + (", …" if len(allow or ()) > 5 else "")
    return f"it is not in {deed} allow [{shown}]"


def shown(result: Result, source: str) -> str:
    """The result for a terminal."""
    sure = [one for one in result.denied if not one.is_open]
    lines = []
    if result.denied:
        lines.append(f"{source} would have denied {_count(sure)}:" if sure else f"{source} may have denied:")
    for one in result.denied[:MOST_SHOWN]:
        who = quoted(one.user) if one.user else "clients without a user"
        deed = "published to" if one.deed == "publish" else "subscribed to"
        group = f" in the group {quoted(one.queue)}" if one.queue else ""
        maybe = "perhaps: " if one.is_open else ""
        lines.append(f"  {maybe}{who} {deed} {quoted(one.subject)}{group}: {_messages(one.msgs)}; {one.rule}")
    if len(result.denied) > MOST_SHOWN:
        lines.append(f"  … and {len(result.denied) - MOST_SHOWN:,} more (--json has all)")
    if not sure:
        lines.append(f"{source} would have denied nothing else" if lines else f"{source} would have denied nothing")
    pairs = f"{result.looked_at:,} pair{'s' if result.looked_at != 1 else ''}"
    lines.append(f"({pairs} of user and subject, by all windows of the statistics)")
    if result.unknown_msgs or result.is_cut:
        cut = ", and only the heaviest subjects were looked at" if result.is_cut else ""
        lines.append(
            f"INCOMPLETE: {_messages(result.unknown_msgs)} more, of clients or subjects without rows of their own, "
            f"or refused{cut}"
        )
    return "\n".join(lines)


def as_json(result: Result) -> str:
    """The result for programs."""
    found = result._asdict() | {"denied": [one._asdict() for one in result.denied]}
    return msgspec.json.encode(found).decode()


def _count(sure: list[Denied]) -> str:
    users, msgs = len({one.user for one in sure}), sum(one.msgs for one in sure)
    return f"{_messages(msgs)} of {users} user{'s' if users != 1 else ''}"


def _messages(n: int) -> str:
    return f"{n:,} message{'s' if n != 1 else ''}"
