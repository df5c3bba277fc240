"""`gnatswarm health`: an exit code for whoever cannot reach the monitoring pages."""

from __future__ import annotations

import os
import signal
import subprocess
from pathlib import Path

import pytest

from gnatswarm.router.commands import operator_commands
from gnatswarm.router.supervision.operator_socket import Reply, ShardStatus, Status
from tests.router.routers import Router, wait_until
from tests.support.forkserver import forkserver


def health(router: Router) -> subprocess.CompletedProcess[str]:
    return forkserver().run(["gnatswarm", "health"], environment=router.environment)


def test_well_when_every_shard_serves_and_again_when_a_hung_one_is_back(tmp_path: Path) -> None:
    with Router(tmp_path, 2) as router:
        router.wait_ready()
        done = health(router)
        assert (done.returncode, done.stdout) == (0, "ok: 2 of 2 shards serve\n")
        os.kill(router.pid_of(1), signal.SIGSTOP)

        def is_back() -> bool:  # (whether it was away is often over before it can be asked)
            row = router.status()["shards"][1]
            return (row["starts"], row["phase"]) == (2, "ready")

        wait_until(is_back, "the shard is found hung, and is back")
        assert health(router).returncode == 0


@pytest.mark.parametrize(
    ("phases", "said"),
    [
        (["ready", "backing off"], "shard 1 is backing off"),
        (["draining"], "shard 0 is draining"),
        ([], "no shard runs"),
    ],
)
def test_what_is_wrong_is_said(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], phases: list[str], said: str
) -> None:
    rows = [ShardStatus(n, 1, phase, 0, 0, 0.0, 0.0, 0, 0.0, 0, 1, "") for n, phase in enumerate(phases)]
    status = Status(1, 2, "", "", "reuseport", True, 0, 1.0, rows)
    monkeypatch.setattr(operator_commands, "find", lambda pid, port: "/x")
    monkeypatch.setattr(operator_commands, "exchange", lambda path, request, deadline_s: Reply(status=status))
    assert operator_commands.health() == 1
    assert capsys.readouterr().err == f"gnatswarm: {said}\n"


def test_a_shard_that_drains_serves_while_another_takes_new_clients(monkeypatch: pytest.MonkeyPatch) -> None:
    rows = [ShardStatus(n, 1, phase, 0, 0, 0.0, 0.0, 0, 0.0, 0, 1, "") for n, phase in enumerate(("ready", "draining"))]
    status = Status(1, 2, "", "", "reuseport", True, 0, 1.0, rows)
    monkeypatch.setattr(operator_commands, "find", lambda pid, port: "/x")
    monkeypatch.setattr(operator_commands, "exchange", lambda path, request, deadline_s: Reply(status=status))
    assert operator_commands.health() == 0


def test_no_broker_is_not_well(tmp_path: Path) -> None:
    with Router(tmp_path, 1) as router:
        router.wait_ready()
    done = health(router)
    assert (done.returncode, done.stderr) == (1, "gnatswarm: no broker of this user is running\n")
