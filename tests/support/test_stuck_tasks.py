"""Tests of what is told of tasks that wait."""

from __future__ import annotations

import asyncio
import io
import sys

import pytest

from tests.support.stuck_tasks import told_after
from tests.support.turns import until


async def test_what_a_task_waits_for_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    event = asyncio.Event()
    begun: list[bool] = []
    said = io.StringIO()  # (readouterr() loses what another thread writes meanwhile)
    monkeypatch.setattr(sys, "stderr", said)

    async def waits_for_ever() -> None:
        begun.append(True)
        await event.wait()

    task = asyncio.create_task(waits_for_ever())
    await until(lambda: begun)
    with told_after(0.0):
        await until(lambda: "Event.wait" in said.getvalue())
    event.set()
    await task
    assert "waits_for_ever" in said.getvalue()


def test_who_ends_in_time_is_not_told(capsys: pytest.CaptureFixture[str]) -> None:
    with told_after(60.0):
        pass
    assert capsys.readouterr().err == ""
