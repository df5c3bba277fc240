"""A program can take over a broker that speaks no version of a format which it does not know; another one is ended."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from pathlib import Path

import msgspec
import pytest

from gnatswarm.router.supervision import successor
from gnatswarm.router.supervision.successor import Answer, Unfit, ask, objection, own_answer, own_formats
from tests.support.servers import WAIT_DEADLINE_S, wait_pids_gone

SPOKEN = own_formats({"links": 4, "pages": 2})


@pytest.mark.parametrize(
    ("links", "said"),
    [
        ((4, 4), ""),
        ((3, 5), ""),
        ((4, 9), ""),
        ((5, 5), "it has version 5 of links, this broker version 4"),
        ((1, 3), "it has versions 1 to 3 of links, this broker version 4"),
    ],
)
def test_the_version_that_the_broker_speaks_must_be_among_those_it_knows(links, said):
    knows = {name: (version, version) for name, version in SPOKEN.items()}
    assert objection(Answer("1", 1, {**knows, "links": links, "more": (1, 1)}), SPOKEN) == said


def test_a_format_that_it_does_not_know_at_all():
    assert objection(Answer("1", 1, {"links": (4, 4)}), SPOKEN) == "it does not know the format of pages"


def test_a_version_can_take_over_itself():
    answer = msgspec.json.decode(own_answer({"links": 4, "pages": 2}), type=Answer)
    assert objection(answer, SPOKEN) == ""


@pytest.mark.parametrize("where", ["1", "2"], ids=["output", "errors"])
async def test_a_program_that_prints_without_end_is_not_listened_to(where: str, tmp_path: Path) -> None:
    program, child = tmp_path / "program", tmp_path / "child"
    program.write_text(f"#!/bin/sh\nsleep 1000 >&- 2>&- &\necho $! > {child}\nhead -c 1000000 /dev/zero >&{where}\n")
    program.chmod(0o755)
    with pytest.raises(Unfit, match=f"{program} is no gnatswarm that can take over: it printed more than 65,536 bytes"):
        await ask([str(program)], SPOKEN)
    assert not wait_pids_gone([int(child.read_text())], WAIT_DEADLINE_S), "what it has started ends with it"


@pytest.mark.parametrize(
    "text", [r'{"gnatswarm":"\377"}', '{"a":' + "[" * 5000], ids=["not UTF-8", "nested too deeply"]
)
async def test_a_program_that_prints_no_answer_is_refused(text: str, tmp_path: Path) -> None:
    program = tmp_path / "program"
    program.write_text(f"#!/bin/sh\nprintf '{text}'\n")
    program.chmod(0o755)
    with pytest.raises(Unfit, match="is no gnatswarm that can take over: it did not say which formats it has"):
        await ask([str(program)], SPOKEN)


async def test_a_program_that_says_nothing_ends_with_the_broker(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    program, told, is_read, read = tmp_path / "program", tmp_path / "told", asyncio.Event(), successor._printed

    async def noted(stream: asyncio.StreamReader) -> bytes:
        is_read.set()
        return await read(stream)

    monkeypatch.setattr(successor, "_printed", noted)
    os.mkfifo(told)
    program.write_text(f"#!/bin/sh\nsleep 1000 &\necho $! $$ > {told}\nexec sleep 1000\n")
    program.chmod(0o755)
    asking = asyncio.create_task(ask([str(program)], SPOKEN))
    pids = [int(pid) for pid in (await asyncio.to_thread(told.read_text)).split()]
    await is_read.wait()
    asking.cancel()
    with pytest.raises(asyncio.CancelledError):
        await asking
    assert not await asyncio.to_thread(wait_pids_gone, pids, WAIT_DEADLINE_S), "nor does what it has started stay"


def test_a_program_that_says_nothing_ends_with_a_router_that_is_killed(tmp_path: Path) -> None:
    program, told = tmp_path / "program", tmp_path / "told"
    os.mkfifo(told)
    program.write_text(f"#!/bin/sh\necho $$ > {told}\nexec sleep 1000\n")
    program.chmod(0o755)
    code = (
        "import uvloop; from gnatswarm.router.supervision.successor import ask; "
        f"uvloop.run(ask([{str(program)!r}], {{}}))"
    )
    with subprocess.Popen([sys.executable, "-P", "-c", code]) as router:
        pid = int(told.read_text())
        router.kill()
    assert not wait_pids_gone([pid], WAIT_DEADLINE_S)
