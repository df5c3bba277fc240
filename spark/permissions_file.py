"""The file that `gnatswarm suggest-permissions` writes: for each user the least `permissions` for what it did.

    PERMISSIONS_ann { publish: { allow: ["orders.new"] }, subscribe: { deny: ">" } }

Used as a variable: `{ user: ann, …, permissions: $PERMISSIONS_ann }`. A rule is a subject as it was used, but for:

* A token that looks random (16 or more letters and digits, with both) becomes `*`.
* A token becomes `*` if `least` different ones were seen beside the same others, or three that all have digits; but not
  if that would allow what another user of the account did and this one did not.
* The first token never becomes one, and `>` is only where a client subscribed so.
* Publishing to one-time subjects (`_INBOX.>`, `_R_.>`) becomes `allow_responses`; who sent requests may subscribe to
  `_INBOX.>`.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from gnatswarm.spark.figures import counted, moment, visible
from gnatswarm.spark.schema import OTHER, REST
from gnatswarm.spark.transforms.usage import PUBLISH

INBOX = "_INBOX.>"
ANSWERS = (INBOX, "_R_.>")
LEAST_VALUES = 10
LEAST_NUMBERED = 3
_RANDOM = re.compile(r"(?=.*[0-9])(?=.*[A-Za-z])[0-9A-Za-z_-]{16,}")

Row = Mapping[str, Any]
Tokens = tuple[str, ...]


class Suggestion(NamedTuple):
    """What one user needs. Rules of subscriptions may name a queue (`jobs workers`)."""

    account: str
    user: str  # "": clients without a user
    publish: tuple[str, ...]
    subscribe: tuple[str, ...]
    responses: int  # 0: none; -1: any number for a request
    in_msgs: int
    out_msgs: int
    unknown_msgs: int  # of both: on subjects without rows of their own, or refused
    unwritable: tuple[str, ...]  # subjects that no configuration can name


def covers(pattern: Tokens, subject: Tokens) -> bool:
    """Whether a rule allows all of a subject, which may be a pattern itself."""
    for i, token in enumerate(pattern):
        if token == ">":
            return len(subject) > i
        if i >= len(subject) or subject[i] == ">" or (token != subject[i] and token != "*"):
            return False
    return len(pattern) == len(subject)


def generalised(subjects: Iterable[str], others: Iterable[str], least: int = LEAST_VALUES) -> list[str]:
    """The subjects of one user, with `*` by the rules above; `others`: what other users of the account did.

    `others` is read only if there is anything to generalise.
    """
    mine = {tuple(subject.split(".")) for subject in subjects}
    found = {(one[0], *("*" if _RANDOM.fullmatch(token) else token for token in one[1:])) for one in mine}
    foreign: set[Tokens] | None = None
    changed = True
    while changed:
        changed = False
        for at in reversed(range(1, max(map(len, found), default=1))):
            beside: dict[tuple[Tokens, Tokens], set[str]] = {}
            for one in found:
                if at < len(one) and one[at] != ">":
                    beside.setdefault((one[:at], one[at + 1 :]), set()).add(one[at])
            for (head, tail), values in beside.items():
                if not _is_variable(values, least):
                    continue
                if foreign is None:
                    # What is allowed already is no reason against a wildcard.
                    wide = [rule for rule in found if set(rule) & {"*", ">"}]
                    foreign = {tuple(subject.split(".")) for subject in others} - mine
                    foreign = {one for one in foreign if not any(covers(rule, one) for rule in wide)}
                rule = (*head, "*", *tail)
                if not any(covers(rule, one) for one in foreign):
                    found -= {(*head, value, *tail) for value in values}
                    found.add(rule)
                    changed = True
    wide = [rule for rule in found if set(rule) & {"*", ">"}]
    return sorted(".".join(one) for one in found if not any(rule != one and covers(rule, one) for rule in wide))


def _is_variable(values: set[str], least: int) -> bool:
    if values == {"*"}:
        return False
    numbered = all(any(sign.isdigit() for sign in value) for value in values - {"*"})
    return "*" in values or len(values) >= least or (numbered and len(values) >= LEAST_NUMBERED)


def suggestions(users: Sequence[Row], usage: Sequence[Row], least: int = LEAST_VALUES) -> list[Suggestion]:
    """From what `transforms.usage` says: one for each user that had a client."""
    of_user: dict[tuple[str, str], list[Row]] = {}
    did: dict[tuple[str, bool], dict[str, set[str]]] = {}  # account, publishes → subject → users
    for row in usage:
        of_user.setdefault((row["account"], row["user"]), []).append(row)
        if OTHER not in (row["user"], row["subject"]):
            subjects = did.setdefault((row["account"], row["deed"] == PUBLISH), {})
            subjects.setdefault(row["subject"], set()).add(row["user"])

    def others(user: Row, publishes: bool) -> Iterator[str]:
        for subject, who in did.get((user["account"], publishes), {}).items():
            if who != {user["user"]}:
                yield subject

    found = []
    for user in users:
        if user["user"] not in (OTHER, REST) and user["account"]:  # (without an account it has not logged in)
            need = _Need(of_user.get((user["account"], user["user"]), ()))
            heard: list[str] = []
            for queue, those in sorted(need.subscribe.items()):
                heard += [f"{rule} {queue}".strip() for rule in generalised(those, others(user, False), least)]
            found.append(
                Suggestion(
                    user["account"],
                    user["user"],
                    tuple(generalised(need.publish, others(user, True), least)),
                    tuple(heard),
                    # More answers than messages that it received: it answers a request more than once.
                    0 if not need.answers else -1 if need.answers > user["out_msgs"] else 1,
                    user["in_msgs"],
                    user["out_msgs"],
                    need.unknown_msgs,
                    tuple(sorted(need.unwritable)),
                )
            )
    return found


class _Need:
    """What one user did, by what a rule can say of it."""

    def __init__(self, usage: Iterable[Row]) -> None:
        self.publish: set[str] = set()
        self.subscribe: dict[str, set[str]] = {}  # by queue
        self.answers = self.unknown_msgs = requests = 0
        self.unwritable: set[str] = set()
        for row in usage:
            subject = row["subject"]
            requests += row["requests"]
            if subject == OTHER:
                self.unknown_msgs += row["msgs"]
            elif not _is_writable(subject) or not _is_writable(row["queue"]):
                self.unwritable.add(subject)
            elif row["deed"] != PUBLISH:
                self.subscribe.setdefault(row["queue"], set()).add(subject)
            elif subject in ANSWERS:
                self.answers += row["msgs"]
            else:
                self.publish.add(subject)
        if requests:
            self.subscribe.setdefault("", set()).add(INBOX)


def _is_writable(text: str) -> bool:
    """Whether a configuration can name it. U+FFFD stands for bytes that were no UTF-8."""
    return text.isprintable() and not set(text) & set('"\\ \ufffd') and len(text) <= 1000


def written(found: Sequence[Suggestion], users: Sequence[Row], source: str, *, is_cut: bool = False) -> str:
    """The file's text. `is_cut`: there were more subjects than were looked at."""
    real = [row for row in users if row["user"] != REST]
    msgs = sum(row["in_msgs"] + row["out_msgs"] for row in real)
    lost = sum(row["in_msgs"] + row["out_msgs"] for row in real if row["user"] == OTHER)
    unknown = lost + sum(one.unknown_msgs for one in found)
    rest = sum(row["in_msgs"] for row in users if row["user"] == REST)
    first, last = min(row["first_us"] for row in users), max(row["last_us"] for row in users)
    whose = f"{counted(len(found), 'user')}, {counted(msgs, 'message')} published or received"
    lines = [
        f"# Permissions by `gnatswarm suggest-permissions`, from {visible(source)}.",
        f"# {moment(first)} to {moment(last)} (UTC): {whose}.",
        "# Use as in: { user: ann, password: …, permissions: $PERMISSIONS_ann }",
        "# A subscription that received nothing in this time is not known, and is not allowed.",
        "# Try it: gnatswarm suggest-permissions --dry-run FILE says what a configuration would have denied.",
    ]
    if unknown or is_cut:
        more = ", and only the heaviest subjects were looked at" if is_cut else ""
        lines.append(
            f"# INCOMPLETE: {unknown:,} of these messages {'is' if unknown == 1 else 'are'} of clients or subjects"
            f" without rows of their own, or refused{more} (stats {{ max_clients, client_subjects }} keep more)."
        )
    if rest > 0:
        lines.append(f"# Not counted: {counted(rest, 'message')} of the broker itself, or in no client's row.")
    names: set[str] = set()
    for one in found:
        lines += ["", *_block(one, names)]
    return "\n".join(lines) + "\n"


def _block(one: Suggestion, names: set[str]) -> list[str]:
    who = f"user {visible(one.user)}" if one.user else "clients without a user"
    lines = [f"# {who}, account {visible(one.account)}: messages published {one.in_msgs:,}, received {one.out_msgs:,}"]
    if one.unknown_msgs:
        lines.append(f"# INCOMPLETE: without subject here, or refused: {one.unknown_msgs:,} of them")
    lines += [f"# no rule can name the subject {visible(subject)}" for subject in one.unwritable]
    name = "PERMISSIONS_" + (re.sub(r"[^0-9A-Za-z_]", "_", one.user) or "anybody")
    while name in names:  # of two accounts, or of another user with other signs
        name += "_"
    names.add(name)
    lines.append(f"{name} {{")
    lines.append(f"    publish: {_side(one.publish)}")
    lines.append(f"    subscribe: {_side(one.subscribe)}")
    if one.responses:
        lines.append(f"    allow_responses: {'true' if one.responses > 0 else '{ max: -1 }'}")
    lines.append("}")
    return lines


def _side(rules: Sequence[str]) -> str:
    if not rules:
        return '{ deny: ">" }'
    if len(rules) == 1:
        return f'{{ allow: "{rules[0]}" }}'
    listed = "\n".join(f'        "{rule}"' for rule in rules)
    return f"{{ allow: [\n{listed}\n    ] }}"
