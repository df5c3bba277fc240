"""What the page of an account says of others looks at those that it is about alone: there may be 100,000."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from gnatswarm.broker.options import Account, Export, Import
from gnatswarm.router.monitoring.account_rules import responses
from gnatswarm.shards.boundary.rows import DueReplyRow


class Stranger:
    """An account with which the page has nothing to do."""

    def __init__(self, name: str) -> None:
        self.name = name

    @property
    def imports(self) -> tuple[Import, ...]:
        raise AssertionError(f"looks at the imports of {self.name}")

    exports = imports


def test_of_replies_that_are_due_others_accounts_are_not_gone_through():
    measured = Export("req", is_service=True, latency_subject="took", latency_percent=100)
    wanted = Import("SERVICE", "req", is_service=True, to="ask", share=True)
    options: Any = SimpleNamespace(
        is_like_newer=False,
        accounts=(
            Stranger("A"),
            Account("SERVICE", exports=(measured,)),
            Account("ASKS", imports=(wanted,)),
            Stranger("B"),
        ),
    )
    (found,) = responses(options, "SERVICE", [DueReplyRow("_R_.1", "ASKS", "in", latency_subject="took")]).values()
    assert isinstance(found, dict)
    assert (found["share"], found["latency"]) == (True, {"sampling": 100, "results": "took"})
