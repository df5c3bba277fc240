"""Stacks name the functions in which threads and tasks are, and never a value."""

from __future__ import annotations

import asyncio
import os
import threading

from gnatswarm.shards.boundary.stacks import kernel_text, stacks_text


async def waits_for_its_turn(secret: str, turn: asyncio.Event) -> str:
    await turn.wait()
    return secret


def waits_in_a_thread(began: threading.Event, turn: threading.Event) -> None:
    began.set()
    turn.wait(30)


async def test_threads_and_tasks_are_shown_where_they_are() -> None:
    turn, began, end = asyncio.Event(), threading.Event(), threading.Event()
    task = asyncio.create_task(waits_for_its_turn("hunter2", turn), name="the waiting one")
    thread = threading.Thread(target=waits_in_a_thread, args=(began, end), name="the other one")
    thread.start()
    try:
        await asyncio.to_thread(began.wait, 30)
        await asyncio.sleep(0)
        text = stacks_text()
    finally:
        end.set()
        thread.join()
        turn.set()
        await task
    assert "task the waiting one [waiting]:\nwaits_for_its_turn()\n\t" in text
    own = text[text.index(f"thread {thread.native_id} [the other one]:") :].partition("\n\n")[0]
    assert "waits_in_a_thread()" in own and f"{__file__}:" in own
    assert own.index("wait()") < own.index("waits_in_a_thread()"), "the innermost is first"
    assert "stacks_text()" in text and "hunter2" not in text


def test_the_kernel_is_asked_of_every_thread() -> None:
    began, end = threading.Event(), threading.Event()
    thread = threading.Thread(target=waits_in_a_thread, args=(began, end))
    thread.start()
    try:
        began.wait(30)
        lines = kernel_text(os.getpid()).splitlines()
    finally:
        end.set()
        thread.join()
    assert any(line.startswith(f"thread {thread.native_id} [kernel]: state ") for line in lines)
    assert any(line.startswith(f"thread {os.getpid()} [kernel]: state R") for line in lines)


def test_a_process_that_is_none_has_no_threads() -> None:
    assert kernel_text(2**22 + 1) == ""
