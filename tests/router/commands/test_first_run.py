"""What somebody types wrong at first is answered in words: what, where, what to do, and no Python."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.router.routers import runtime_directory
from tests.support.forkserver import forkserver


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("nonsense", '"nonsense" (there are help, version, status, health, '),
        ("statsu", '"statsu" — did you mean status?'),
        ("--prot 1", "did you mean -port?"),
        ("top http://127.0.0.1:1", "does not answer: Connection refused (a broker has these pages with -m 8222)"),
        ("-p -1 --no-stats -a 256.1.1.1", "no address for this name (Name or service not known)"),
        (
            "-p -1 --no-stats -l {tmp}/none/x.log",
            "cannot open the log file {tmp}/none/x.log: No such file or directory",
        ),
        ("-p -1 --no-stats -P {tmp}/none/pid", "Could not write pidfile: {tmp}/none/pid: No such file or directory"),
        ("-c {tmp}/none.conf", "no such file or directory — name a readable configuration file"),
        ("-c {tmp}", "is a directory — name a readable configuration file"),
        ("status", "no broker of this user is running"),
        ("scale 2", "no broker of this user is running"),
        ("health", "no broker of this user is running"),
    ],
)
def test_a_mistake_is_answered_in_words(tmp_path: Path, words: str, said: str) -> None:
    environment = {**os.environ, "XDG_RUNTIME_DIR": str(runtime_directory(tmp_path))}
    done = forkserver().run(["gnatswarm", *words.format(tmp=tmp_path).split()], environment=environment)
    assert done.returncode == 1
    assert said.format(tmp=tmp_path) in done.stderr
    assert "Errno" not in done.stderr and "Traceback" not in done.stderr
