"""Under which names the shared page counts: accounts with a connection limit, and who has publish_limits."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from gnatswarm.broker.options import Options, PublishLimits


def of_account(name: str) -> bytes:
    """For Page.account_place()."""
    return name.encode("utf-8", "surrogateescape")


def of_publishing_user(name: str, limits: PublishLimits) -> bytes:
    """For Page.publisher_words(). `name`: User.shown."""
    return _of_publisher(b"user", name, limits)


def of_publishing_account(name: str, limits: PublishLimits) -> bytes:
    """For Page.publisher_words()."""
    return _of_publisher(b"account", name, limits)


def _of_publisher(kind: bytes, name: str, limits: PublishLimits) -> bytes:
    """With the rates: under others, after a reload, nobody owes what was published before."""
    rates = b"%d %d %r" % (limits.messages, limits.bytes, limits.burst_s)
    return b"\0".join((kind, rates, name.encode("utf-8", "surrogateescape")))


def all_of(options: Options) -> tuple[list[bytes], list[bytes]]:
    """(of accounts, of publishers) that have limits, for Page.keep_names()."""
    accounts = [of_account(account.name) for account in options.accounts if account.max_connections]
    users = [(one.shown, one.publish_limits) for one in options.users]
    publishers = [of_publishing_user(name, limits) for name, limits in users if limits is not None]
    accounts_limits = [(one.name, one.publish_limits) for one in options.accounts]
    publishers += [of_publishing_account(name, limits) for name, limits in accounts_limits if limits is not None]
    return accounts, publishers
