"""Accounts, their imports, and their clients' permissions: as options for the broker, and as an oracle.

Nothing here is read from the engine: subjects are strings, and each question goes through every rule.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import NamedTuple

from gnatswarm.broker.options import GLOBAL_ACCOUNT, Account, Export, Import, Mapping, Options, Permissions
from tests.support import model

matches = lru_cache(maxsize=1 << 16)(model.matches)  # the same few patterns and subjects in all worlds

# Stands for a reply subject that the broker makes up. No two are alike, so only `>` matches it.
MADE_UP = "_R_.0.0"

LATE_ACCOUNT = "D"  # of a member of the cluster, until our broker has it, too
# What a client may do, by number; reloads change it. Everybody may have an inbox.
RIGHTS: tuple[Permissions | None, ...] = (
    None,
    Permissions(publish_deny=("b", "a.*")),
    Permissions(subscribe_deny=("a.b", "x.b", "b")),
    Permissions(subscribe_allow=("a", "a.*", "x.*", "_INBOX.>")),
    Permissions(publish_allow=("a", "c"), responses=1, responses_expire_s=0.5),
    Permissions(publish_deny=("_INBOX.>", "_R_.>"), responses=-1, responses_expire_s=0.0),
)


class View(NamedTuple):
    """A message as one account sees it."""

    account: str
    subject: str
    is_across: bool  # it was published in another account
    is_sure: bool = True  # it surely gets there


@dataclass(frozen=True)
class Crossing:
    """What `importer` imports from `exporter`: `subject` there is `to` here."""

    importer: str
    exporter: str
    subject: str
    to: str
    is_service: bool

    def local(self, subject: str) -> str:
        """The importer's name for a subject of the exporter's stream; "": it is not imported."""
        if not matches(self.subject, subject):
            return ""
        return self.to.replace("*", subject.split(".")[-1])

    def wanted(self, pattern: str) -> str:
        """What a subscription of the importer wants of the exporter's stream; "": nothing."""
        mine, given = pattern.split("."), self.to.split(".")
        if mine[-1] == ">" and len(given) >= len(mine):
            mine[-1:] = ["*"] * (len(given) - len(mine) + 1)
        if len(mine) != len(given):
            return ""
        both = [b if a == "*" else a if b in ("*", a) else "" for a, b in zip(mine, given, strict=True)]
        if not all(both):
            return ""
        return self.subject.replace("*", both[-1])


@dataclass(init=False)
class Tenants:
    """The accounts and what passes between them; `kind` chooses one of several arrangements, 0: one account.

    `has_third`: a service and a stream have the same subject, and a third account, which must not get requests,
    imports the stream. `is_chunked`: a request may have any number of answers. `is_weighted`: the mapping has two
    destinations. `allows_trace`: traces follow to other accounts. `variant`: what a reload has left out: 1 the mapping,
    2 and 4 the streams of A. `is_grown`: there is one account more, with which nothing is exchanged.
    """

    threshold_s: float
    crossings: tuple[Crossing, ...]
    accounts: tuple[str, ...]
    mapping: tuple[str, tuple[tuple[str, int], ...]]  # in A: its subject, and destinations with their shares
    is_chunked: bool
    allows_trace: bool

    def __init__(
        self,
        kind: int,
        *,
        has_third: bool = False,
        is_chunked: bool = False,
        is_weighted: bool = False,
        allows_trace: bool = False,
        variant: int = 0,
        is_grown: bool = False,
    ) -> None:
        self._views: dict[tuple[str, str, str], tuple[View, ...]] = {}
        self.is_chunked = is_chunked
        self.allows_trace = allows_trace
        self.threshold_s = 0.4 if kind % 4 == 1 else 120.0
        self.crossings = ()
        self.accounts = (GLOBAL_ACCOUNT,)
        self.mapping = ("", ())
        if kind:
            middle = ("B", "b") if kind % 2 else ("A", "b")
            self.accounts = ("A", "B", "C", LATE_ACCOUNT) if is_grown else ("A", "B", "C")
            if not variant & 1:
                self.mapping = ("m", (("a", 60), ("a.b", 40)) if is_weighted else (("a", 100),))
            self.crossings = (
                *((Crossing("B", "A", "a.*", "x.*", is_service=False),) if not variant & 2 else ()),
                *((Crossing("C", "A", "a", "a", is_service=False),) if not variant & 4 else ()),
                Crossing("B", "A", "b", "b", is_service=True),
                Crossing("C", *middle, "c", is_service=True),
            )
        if has_third:
            self.crossings += (Crossing("C", "A", "b", "y.b", is_service=False),)

    def options(self) -> Options:
        """The same as options of the broker."""
        exports = (
            Export("a.*", is_service=False),
            Export("a", is_service=False),
            Export("b", is_service=False),
            Export(
                "b",
                is_service=True,
                threshold_s=self.threshold_s,
                response="chunked" if self.is_chunked else "singleton",
                allow_trace=self.allows_trace,
            ),
        )
        return Options(
            accounts=tuple(
                Account(
                    name,
                    exports=exports,
                    imports=tuple(
                        Import(
                            one.exporter,
                            one.subject,
                            one.is_service,
                            one.to,
                            allow_trace=self.allows_trace and not one.is_service,
                        )
                        for one in self.crossings
                        if one.importer == name
                    ),
                    mappings=(Mapping(*self.mapping),) if name == "A" and self.mapping[0] else (),
                )
                for name in self.accounts
                if name != GLOBAL_ACCOUNT
            )
        )

    def mapped(self, account: str, subject: str) -> tuple[str, ...]:
        """The subjects of which a mapping makes one of a published one."""
        if account == "A" and subject == self.mapping[0]:
            return tuple(to for to, _ in self.mapping[1])
        return (subject,)

    def views(self, account: str, subject: str, chosen: str = "") -> tuple[View, ...]:
        """A message in each account that it comes to. `chosen`: the destination, where one is known."""
        key = account, subject, chosen
        if key not in self._views:
            self._views[key] = tuple(self._found_views(*key))
        return self._views[key]

    def _found_views(self, account: str, subject: str, chosen: str) -> list[View]:
        subjects = (chosen,) if chosen else self.mapped(account, subject)
        found = [View(account, one, is_across=False, is_sure=len(subjects) == 1) for one in subjects]
        for at in found:
            for one in self.crossings:
                if one.is_service and one.importer == at.account and one.to == at.subject:
                    found.append(View(one.exporter, one.subject, is_across=True, is_sure=at.is_sure))
        return found

    def way_back(self, asker: str, responder: str, reply: str, *, is_sure: bool) -> tuple[View, ...]:
        """An answer to a reply subject that was made up, in each account that it comes to."""
        found = [View(responder, MADE_UP, is_across=False)]
        while found[-1].account != asker:
            here = found[-1].account
            importers = [one.importer for one in self.crossings if one.is_service and one.exporter == here]
            back = asker if asker in importers else next(one for one in importers if one != here)
            subject = reply if back == asker else MADE_UP
            found.append(View(back, subject, is_across=True, is_sure=is_sure))
        return tuple(found)

    def heard(self, view: View, account: str) -> str:
        """The subject under which `account` sees what is in a view; "": it does not see it."""
        if view.account == account:
            return view.subject
        if not view.is_across:
            for one in self.crossings:
                if not one.is_service and one.importer == account and one.exporter == view.account:
                    local = one.local(view.subject)
                    if local:
                        return local
        return ""

    def interest(self, account: str, pattern: str, *, is_leaf: bool = False) -> tuple[tuple[str, str], ...]:
        """(account, pattern) of what a subscription wants: there, and in those from which it imports; not `is_leaf`."""
        found = [(account, pattern)]
        for one in self.crossings if not is_leaf else ():
            if not one.is_service and one.importer == account:
                wanted = one.wanted(pattern)
                if wanted:
                    found.append((one.exporter, wanted))
        return tuple(found)

    def asked_by(self, account: str) -> set[str]:
        """The accounts to which requests of this one come."""
        found = [account]
        for here in found:
            found += [one.exporter for one in self.crossings if one.is_service and one.importer == here]
        return set(found[1:])

    def own_interest(self) -> dict[str, set[str]]:
        """What the broker itself wants in each account: what services import, and what is mapped."""
        found: dict[str, set[str]] = {name: set() for name in self.accounts}
        for one in self.crossings:
            if one.is_service:
                found[one.importer].add(one.to)
        if self.mapping[0]:
            found["A"].add(self.mapping[0])
        return found

    def is_a_stream(self, view: View) -> bool:
        """Whether somebody imports this subject as a stream."""
        return any(
            not one.is_service and one.exporter == view.account and one.local(view.subject) for one in self.crossings
        )


def covers(rule: str, pattern: str) -> bool:
    """Whether a rule allows everything that a pattern matches."""
    wanted, given = rule.split("."), pattern.split(".")
    for at, token in enumerate(wanted):
        if token == ">":
            return len(given) > at
        if at >= len(given) or (given[at] != token and (token != "*" or given[at] == ">")):
            return False
    return len(wanted) == len(given)


@lru_cache(maxsize=4096)
def may_publish(number: int, subject: str) -> bool:
    """Whether this client may publish to this subject, without its permissions for replies."""
    rights = RIGHTS[number]
    if rights is None:
        return True
    allow = rights.publish_allow
    if allow is None and rights.responses:
        allow = ()
    if allow is not None and not any(matches(rule, subject) for rule in allow):
        return False
    return not any(matches(rule, subject) for rule in rights.publish_deny)


@lru_cache(maxsize=4096)
def may_subscribe(number: int, pattern: str) -> bool:
    """Whether a SUB is granted."""
    rights = RIGHTS[number]
    if rights is None:
        return True
    if rights.subscribe_allow is not None and not any(covers(rule, pattern) for rule in rights.subscribe_allow):
        return False
    return not is_kept_out(number, pattern)


@lru_cache(maxsize=4096)
def is_kept_out(number: int, subject: str) -> bool:
    """Whether a granted subscription gets no message on this subject."""
    rights = RIGHTS[number]
    return rights is not None and any(matches(rule, subject) for rule in rights.subscribe_deny)
