"""The command for a program that takes its broker along: it ends with the other end of a pipe."""

from __future__ import annotations

import os
import subprocess
import sys

from gnatswarm.shards.boundary.children import child_environment

DEADLINE_S = 30


def owned(*arguments: str, **more) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-P", "-m", "gnatswarm.router.owned", *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=child_environment(),
        **more,
    )


def test_somebody_who_runs_it_by_hand_is_told_what_to_run():
    with owned("-p", "4222") as process:
        said = process.communicate(timeout=DEADLINE_S)[1]
    assert (process.returncode, said) == (2, "gnatswarm: router.owned is started by programs; run `gnatswarm`\n")


def test_an_owner_that_is_gone_before_the_start_stops_it_all_the_same():
    theirs, ours = os.pipe()
    os.close(ours)
    with owned(str(theirs), "-a", "127.0.0.1", "-p", "-1", "--no-stats", pass_fds=(theirs,)) as process:
        os.close(theirs)
        said = process.communicate(timeout=DEADLINE_S)[1]
    assert process.returncode == 0
    assert "Server Exiting" in said
