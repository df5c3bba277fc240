"""`/whyz`: the answer of `gnatswarm why` for the dashboard and for programs. Pure functions.

A dashboard knows the account of a subject, not who publishes there. Without a user the answer is for the first user of
the account that may publish it, and names the others.
"""

from __future__ import annotations

from itertools import islice

import msgspec

from gnatswarm.broker import options as opt
from gnatswarm.broker.quoted import quoted
from gnatswarm.router.config import arrivals
from gnatswarm.router.config.arrivals import Journey
from gnatswarm.router.config.journey import is_stopped
from gnatswarm.router.monitoring.aggregate import Document

# Of one account: names to choose from, and those of which it is looked up who may publish.
MOST_USERS = 100
# In all accounts together.
MOST_LISTENERS = 1000


def publisher(options: opt.Options, account: str, user: str, subject: str) -> str:
    """For whom the question is answered: `user`, or one of the account; "": `journey` decides.

    ValueError: there is no such account, or nobody in it.
    """
    names = {opt.GLOBAL_ACCOUNT, options.system_account, *(one.name for one in options.accounts)}
    if account and account not in names:
        raise ValueError(f"there is no account {quoted(account)}")
    known = _users(options, account)
    if user or known:
        return user or next((one for one in known if not is_stopped(options, one, subject)), known[0]).shown
    if account and options.users and not options.auth_user:
        raise ValueError(f"account {quoted(account)} has no users")
    return ""


def users(options: opt.Options, account: str) -> list[str]:
    """The users of an account, the first MOST_USERS of them."""
    return [one.shown for one in _users(options, account)]


def _users(options: opt.Options, account: str) -> list[opt.User]:
    return list(islice((one for one in options.users if one.account == account), MOST_USERS))


def document(found: Journey, known: list[str]) -> Document:
    """The answer: whether anybody gets the message, the text of the command, and its document, shortened."""
    text = arrivals.shown(found)
    left = MOST_LISTENERS
    shown = []
    for arrival in found.arrivals:
        shown.append(
            msgspec.structs.replace(
                arrival,
                may=arrival.may[:MOST_USERS],
                may_not=arrival.may_not[:MOST_USERS],
                listeners=arrival.listeners[:left],
            )
        )
        left -= len(shown[-1].listeners)
    return {
        "heard": arrivals.is_heard(found),
        "users": known,
        "text": text,
        "why": msgspec.to_builtins(msgspec.structs.replace(found, arrivals=tuple(shown))),
    }
