"""The rights of users: an account's limits lower the broker's and never raise them."""

from __future__ import annotations

import pytest

from gnatswarm.broker.fanout import Fanout
from gnatswarm.broker.limits import Limits
from gnatswarm.broker.mesh import Mesh
from gnatswarm.broker.options import Account, Options
from gnatswarm.shards.clients.rights import Rights


@pytest.mark.parametrize(("own", "expected"), [(0, 100), (50, 50), (100, 100), (200, 100)])
def test_an_accounts_limit_only_lowers_the_brokers(own: int, expected: int) -> None:
    account = Account("A", max_subscriptions=own, max_payload_bytes=own)
    options = Options(limits=Limits(max_payload_bytes=100, max_subscriptions=100), accounts=(account,))
    limits = Rights(options, Mesh(Fanout(), 0)).limits("A")
    assert (limits.max_payload_bytes, limits.max_subscriptions) == (expected, expected)


def test_an_account_has_a_subscription_limit_where_the_broker_has_none() -> None:
    options = Options(limits=Limits(max_subscriptions=0), accounts=(Account("A", max_subscriptions=5),))
    rights = Rights(options, Mesh(Fanout(), 0))
    assert (rights.limits("A").max_subscriptions, rights.limits("$G").max_subscriptions) == (5, 0)


def test_accounts_limit_connections_where_one_of_them_has_a_limit() -> None:
    """A reload then looks for those that have more: else it goes through no client for that."""
    mesh = Mesh(Fanout(), 0)
    assert not Rights(Options(accounts=(Account("A"),)), mesh).limit_accounts
    assert Rights(Options(accounts=(Account("A"), Account("B", max_connections=1))), mesh).limit_accounts
