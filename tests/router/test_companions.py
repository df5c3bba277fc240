"""What the router's companions do before they serve."""

from __future__ import annotations

import asyncio
import logging
from types import SimpleNamespace
from typing import Any

import pytest

from gnatswarm.broker.options import Account, Options
from gnatswarm.router.companions import Companions, crowding
from gnatswarm.shards.boundary.page import Page


class StopHereError(Exception):
    """The test has seen enough."""


class Lines(logging.Handler):
    def __init__(self) -> None:
        super().__init__()
        self.texts: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.texts.append(f"{record.levelname} {record.getMessage()} {record.exc_info and record.exc_info[0]}")


async def test_an_error_that_nobody_expected_is_in_the_log() -> None:
    """Not on standard error alone, which may be nobody's."""

    def supervise() -> None:
        context = {"message": "Exception in callback", "exception": ZeroDivisionError()}
        asyncio.get_running_loop().call_exception_handler(context)
        raise StopHereError

    broker: Any = SimpleNamespace(left=None, options=Options())
    supervisor: Any = SimpleNamespace(supervise=supervise)
    notifier: Any = None
    lines = Lines()
    log = logging.getLogger("gnatswarm.router")
    log.addHandler(lines)
    try:
        with pytest.raises(StopHereError):
            await Companions(broker, notifier, reparse=None).run(supervisor)
    finally:
        log.removeHandler(lines)
    assert lines.texts == ["CRITICAL Exception in callback <class 'ZeroDivisionError'>"]


def test_an_account_that_is_configured_no_more_is_counted_until_all_shards_have_confirmed_it() -> None:
    page = Page.create()
    broker: Any = SimpleNamespace(left=None, options=Options(accounts=(Account("A", max_connections=1),)), page=page)
    notifier: Any = SimpleNamespace(reloaded=lambda: None)
    companions = Companions(broker, notifier, reparse=None)
    place = page.account_place(b"A")
    broker.options = Options(accounts=(Account("B", max_connections=1),))
    companions._echo.expect({0, 1}, 1)
    companions._echo.on_reloaded(0, 1)
    assert page.account_place(b"A") == place != page.account_place(b"B")
    companions._echo.on_reloaded(1, 1)
    broker.options = Options(accounts=(Account("B", max_connections=1), Account("C", max_connections=1)))
    companions._echo.expect(set(), 2)
    assert page.account_place(b"C") == place


def test_a_reload_with_more_limits_before_and_behind_it_than_can_be_counted_says_what_to_expect() -> None:
    accounts, publishers = ([b"%d" % number for number in range(most)] for most in (16_384, 65_536))
    assert crowding(accounts + accounts, publishers + publishers) == []
    assert [text.split()[0] for text in crowding([*accounts, b"one"], [*publishers, b"one"])] == ["16,385", "65,537"]


@pytest.mark.parametrize("fails", ["echo", "system", "placing", "questions"])
def test_whoever_cannot_be_told_of_the_end_of_a_shard_the_others_are(fails: str) -> None:
    told: list[str] = []

    def tells(what: str) -> Any:
        def tell(*_given: object) -> None:
            told.append(what)
            assert what != fails

        return tell

    companions: Any = SimpleNamespace(
        _broker=SimpleNamespace(is_stopping=False),
        _echo=SimpleNamespace(on_gone=tells("echo")),
        _system=SimpleNamespace(on_shard_gone=tells("system")),
        _placing=SimpleNamespace(on_shard_gone=tells("placing")),
        _monitoring=SimpleNamespace(questions=SimpleNamespace(on_gone=tells("questions"))),
    )
    with pytest.raises(AssertionError):
        Companions.on_shard_gone(companions, 1)
    assert sorted(told) == ["echo", "placing", "questions", "system"]
