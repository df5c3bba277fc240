"""Tests of what is told of tasks that wait."""

from __future__ import annotations

import asyncio

import pytest

from tests.support.stuck_tasks import told_after


async def waits_for_ever(event: asyncio.Event) -> None:
    await event.wait()


async def test_what_a_task_waits_for_is_told(capsys: pytest.CaptureFixture[str]) -> None:
    event = asyncio.Event()
    task = asyncio.create_task(waits_for_ever(event))
    await asyncio.sleep(0)
    said = ""
    with told_after(0.0):
        while "Event.wait" not in said:
            await asyncio.sleep(0.01)
            said += capsys.readouterr().err
    event.set()
    await task
    assert "waits_for_ever" in said


def test_who_ends_in_time_is_not_told(capsys: pytest.CaptureFixture[str]) -> None:
    with told_after(60.0):
        pass
    assert capsys.readouterr().err == ""
