"""Under which names the shared page counts: accounts with a connection limit, and who has publish_limits."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from gnatswarm.broker.options import Options


def of_account(name: str) -> bytes:
    """For Page.account_place()."""
    return name.encode("utf-8", "surrogateescape")


def of_publishing_user(name: str) -> bytes:
    """For Page.publisher_words(). `name`: User.shown."""
    return b"user\0" + name.encode("utf-8", "surrogateescape")


def of_publishing_account(name: str) -> bytes:
    """For Page.publisher_words()."""
    return b"account\0" + name.encode("utf-8", "surrogateescape")


def all_of(options: Options) -> tuple[list[bytes], list[bytes]]:
    """(of accounts, of publishers) that have limits, for Page.keep_names()."""
    accounts = [of_account(account.name) for account in options.accounts if account.max_connections]
    publishers = [of_publishing_user(user.shown) for user in options.users if user.publish_limits is not None]
    publishers += [of_publishing_account(one.name) for one in options.accounts if one.publish_limits is not None]
    return accounts, publishers
