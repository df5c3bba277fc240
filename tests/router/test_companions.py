"""What the router's companions do before they serve."""

from __future__ import annotations

import asyncio
import logging
from types import SimpleNamespace
from typing import Any

import pytest

from gnatswarm.router.companions import Companions


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

    broker: Any = SimpleNamespace()
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
