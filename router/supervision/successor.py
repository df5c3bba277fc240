"""The program that a running broker may be upgraded to: asks it who it is, before anything is changed.

It is run with a hidden command, under the router's environment, and prints as JSON which versions of each format it
reads and writes. Every format that this broker speaks must be among them. Called by `router.supervision.rolling`.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import os
import signal
import subprocess
from collections.abc import Mapping, Sequence

import msgspec

from gnatswarm.broker.version import OWN_VERSION
from gnatswarm.router.supervision import record
from gnatswarm.shards.boundary import parentage

# A cold interpreter with all that a shard imports, on a busy machine.
ANSWERS_WITHIN_S = 20.0
ENDS_WITHIN_S = 2.0  # when it has been killed
MOST_ANSWER_BYTES = 64 * 1024  # of each of its two outputs
FORMATS_COMMAND = "_formats"


class Unfit(Exception):
    """The program cannot take over; the text says why."""


class Answer(msgspec.Struct, frozen=True):
    """What it prints."""

    gnatswarm: str  # its version
    pid: int
    formats: dict[str, tuple[int, int]]  # the lowest and the highest version that it reads and writes


def own_formats(of_shards: Mapping[str, int]) -> dict[str, int]:
    """The versions that this broker speaks: those of keeper and shards, and the router's own."""
    return {**of_shards, "router's record": record.RECORD_VERSION}


def own_answer(of_shards: Mapping[str, int]) -> str:
    """What this version prints: it reads and writes the present version of each format."""
    formats = {name: (version, version) for name, version in own_formats(of_shards).items()}
    return msgspec.json.encode(Answer(OWN_VERSION, os.getpid(), formats)).decode()


async def ask(command: Sequence[str], spoken: Mapping[str, int]) -> str:
    """The version of this program, which can take over a broker that speaks these formats. Unfit."""
    try:
        process = await asyncio.create_subprocess_exec(
            *command,
            FORMATS_COMMAND,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            start_new_session=True,  # so that what it starts ends with it
            preexec_fn=functools.partial(_die_with, os.getpid()),
        )
    except OSError as error:
        raise Unfit(f"cannot run {command[0]}: {error.strerror}") from None
    shown = command[0] if len(command) == 1 else " ".join(command)
    assert process.stdout is not None and process.stderr is not None
    readers = [asyncio.create_task(_printed(output)) for output in (process.stdout, process.stderr)]
    try:
        async with asyncio.timeout(ANSWERS_WITHIN_S):
            said, complained = await asyncio.gather(*readers)
            await process.wait()
    except TimeoutError:
        await _end(process, readers)
        raise Unfit(f"{command[-1]} did not say within {ANSWERS_WITHIN_S:.0f} s what it is") from None
    except _PrintsTooMuch:
        await _end(process, readers)
        raise Unfit(
            f"{shown} is no gnatswarm that can take over: it printed more than {MOST_ANSWER_BYTES:,} bytes"
        ) from None
    except asyncio.CancelledError:  # the broker ends, and nobody would be left to end it
        _kill(process)
        raise
    if process.returncode:
        last = complained.decode(errors="replace").strip().rpartition("\n")[2]
        raise Unfit(
            f"{shown} is no gnatswarm that can take over: exit code {process.returncode}, {last[:200] or 'no word'}"
        )
    try:
        answer = msgspec.json.decode(said, type=Answer)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        raise Unfit(f"{shown} is no gnatswarm that can take over: it did not say which formats it has") from None
    if answer.pid != process.pid:
        raise Unfit(f"{shown} runs gnatswarm as a child of its own; it has to become gnatswarm (`exec`)")
    why = objection(answer, spoken)
    if why:
        raise Unfit(f"{shown} (gnatswarm {answer.gnatswarm}) cannot take over: {why}")
    return answer.gnatswarm


def _die_with(router: int) -> None:
    """In the program, before it is one: have it end with the router, also with one that is killed."""
    parentage.die_with_parent(signal.SIGKILL)
    if os.getppid() != router:
        os._exit(1)


class _PrintsTooMuch(Exception):
    """More than an answer has."""


async def _printed(stream: asyncio.StreamReader) -> bytes:
    """All of it, at most MOST_ANSWER_BYTES. _PrintsTooMuch."""
    text = b""
    while data := await stream.read(MOST_ANSWER_BYTES):
        text += data
        if len(text) > MOST_ANSWER_BYTES:
            raise _PrintsTooMuch
    return text


def _kill(process: asyncio.subprocess.Process) -> None:
    """Kill it, and what it has started."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)


async def _end(process: asyncio.subprocess.Process, readers: list[asyncio.Task[bytes]]) -> None:
    """Kill it and what it has started, and wait for their end."""
    _kill(process)
    for reader in readers:
        reader.cancel()
    await asyncio.wait(readers)
    # wait() waits for the end of both outputs, too: somebody has to read them. Who has left the group may hold them.
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(ENDS_WITHIN_S):
            await asyncio.gather(process.wait(), _discarded(process.stdout), _discarded(process.stderr))


async def _discarded(stream: asyncio.StreamReader | None) -> None:
    while stream is not None and await stream.read(MOST_ANSWER_BYTES):
        pass


def objection(answer: Answer, spoken: Mapping[str, int]) -> str:
    """Why it cannot take over a broker that speaks these formats; "": it can."""
    for name, version in spoken.items():
        if name not in answer.formats:
            return f"it does not know the format of {name}"
        lowest, highest = answer.formats[name]
        if not lowest <= version <= highest:
            known = f"version {lowest}" if lowest == highest else f"versions {lowest} to {highest}"
            return f"it has {known} of {name}, this broker version {version}"
    return ""
