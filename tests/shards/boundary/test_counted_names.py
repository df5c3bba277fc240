"""Names on the shared page: who has other publish_limits than before is counted anew, and nobody else."""

from __future__ import annotations

import pytest

from gnatswarm.broker.options import Account, Options, PublishLimits, User
from gnatswarm.shards.boundary import counted_names

LIMITS = PublishLimits(messages=10, bytes=1000, burst_s=0.5)


@pytest.mark.parametrize(
    "other", [PublishLimits(11, 1000, 0.5), PublishLimits(10, 1001, 0.5), PublishLimits(10, 1000, 0.51)]
)
def test_other_rates_have_another_name(other: PublishLimits) -> None:
    for name in counted_names.of_publishing_user, counted_names.of_publishing_account:
        assert name("a", LIMITS) == name("a", PublishLimits(10, 1000, 0.5, stall_s=3)) != name("a", other)
        assert name("a", LIMITS) != name("b", LIMITS)
    assert counted_names.of_publishing_user("a", LIMITS) != counted_names.of_publishing_account("a", LIMITS)


def test_all_that_have_limits_are_named() -> None:
    options = Options(
        users=(User("u", publish_limits=LIMITS), User("free")),
        accounts=(Account("A", publish_limits=LIMITS), Account("B", max_connections=1), Account("C")),
    )
    publishers = [counted_names.of_publishing_user("u", LIMITS), counted_names.of_publishing_account("A", LIMITS)]
    assert counted_names.all_of(options) == ([counted_names.of_account("B")], publishers)
