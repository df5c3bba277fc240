"""What the router says in the system account by itself."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pytest

from gnatswarm.router.monitoring import system_account
from gnatswarm.router.monitoring.system_account import SystemAccount
from gnatswarm.router.supervision.supervision import Phase
from gnatswarm.shards.boundary.control import SystemEvent
from tests.support.turns import until

CONNECTIONS = "$SYS.ACCOUNT.A.SERVER.CONNS"


class Answers:
    """The documents: each is another one."""

    def __init__(self) -> None:
        self.asked = 0

    async def all_connections(self) -> list[tuple[str, bytes]]:
        self.asked += 1
        return [(CONNECTIONS, b"%d" % self.asked)]

    async def statsz(self) -> bytes:
        return b"{}"


async def test_the_numbers_of_connections_are_said_again_and_again_while_somebody_may_hear(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(system_account, "CONNECTIONS_EVERY_S", 0.001)
    options = SimpleNamespace(has_system_users=True)
    shard = SimpleNamespace(number=3, state=SimpleNamespace(phase=Phase.READY))
    view = SimpleNamespace(options=options, server_id="N", shards=[shard])
    said: list[tuple[int, SystemEvent]] = []
    channels = SimpleNamespace(tell=lambda number, event: said.append((number, event)))
    account = SystemAccount(cast(Any, view), cast(Any, channels), cast(Any, None))
    account._answers = cast(Any, Answers())

    def heard() -> list[bytes]:
        return [event.payload for number, event in said if number == 3 and event.subject == CONNECTIONS]

    account.configure()
    await until(lambda: len(heard()) >= 3)
    assert heard()[:3] == [b"1", b"2", b"3"]
    options.has_system_users = False
    await until(lambda: account._next_connections is None)
    assert heard() == [b"%d" % (number + 1) for number in range(len(heard()))]
    options.has_system_users = True
    account._next_statsz = None
    account.configure()
    before = len(heard())
    await until(lambda: len(heard()) > before)
    options.has_system_users = False
