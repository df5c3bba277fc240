"""A broker starts with as many file descriptors as it needs to serve, and with fewer it says so and does not."""

from __future__ import annotations

import re
import resource
import socket
from pathlib import Path

import msgspec
import pytest

from gnatswarm.broker.bounds import NO_MAX_CONNECTIONS
from gnatswarm.broker.limits import Limits
from gnatswarm.broker.options import Options
from gnatswarm.router.supervision.descriptors import LEAST_CLIENTS, needed, scarcity
from tests.router.routers import DEADLINE_S, Router, option_tree


def least(shards: int, accept: str) -> int:
    return needed(msgspec.convert(option_tree(shards, -1, accept), Options), shards)


def test_a_start_with_too_few_descriptors_says_how_many_are_needed(tmp_path: Path) -> None:
    with Router(tmp_path, 2, is_real=True, descriptors=24) as router:
        assert router.process.wait(DEADLINE_S) == 1
        router.wait_log(
            rf"\[FTL\] too few file descriptors: each process may have 24, a broker of 2 shards needs at least "
            rf"{least(2, 'reuseport')}, .*ulimit -n.*LimitNOFILE=.*or run fewer shards"
        )
        assert router.leftovers() == []


@pytest.mark.parametrize("accept", ["reuseport", "handoff"])
@pytest.mark.parametrize("shards", [1, 4])
def test_with_the_least_it_serves(tmp_path: Path, shards: int, accept: str) -> None:
    with Router(tmp_path, shards, is_real=True, accept=accept, descriptors=least(shards, accept)) as router:
        router.wait_ready()
        clients = [
            socket.create_connection(("127.0.0.1", router.port), timeout=DEADLINE_S) for _ in range(LEAST_CLIENTS)
        ]
        for client in clients:
            client.sendall(b'CONNECT {"verbose":false}\r\nPING\r\n')
            with client.makefile("rb") as lines:
                assert lines.readline().startswith(b"INFO ")
                assert lines.readline() == b"PONG\r\n"
        assert router.operator("status").returncode == 0
        for client in clients:
            client.close()


def test_a_broker_does_not_grow_past_its_descriptors(tmp_path: Path) -> None:
    with Router(tmp_path, 2, is_real=True, descriptors=64) as router:
        router.wait_ready()
        done = router.operator("scale", "32")
        assert done.returncode == 1
        assert "too few file descriptors: each process may have 64, a broker of 32 shards needs at least" in done.stderr
        assert [row["phase"] for row in router.status()["shards"]] == ["ready"] * 2


def test_far_fewer_descriptors_than_connections_are_said_at_the_start(tmp_path: Path) -> None:
    with Router(tmp_path, 2, is_real=True, descriptors=400) as router:
        router.wait_ready()
        router.wait_log(r"\[WRN\] max_connections is 65536, but about \d+ clients fit: .* may have 400 .*LimitNOFILE=")


def test_the_limit_that_is_advised_is_enough(monkeypatch: pytest.MonkeyPatch) -> None:
    limit = 400
    monkeypatch.setattr(resource, "getrlimit", lambda _what: (limit, limit))
    for shards in (1, 3, 64):
        limit = 400
        found = re.search(r"Raise the limit to (\d+)", scarcity(Options(), shards))
        assert found is not None
        limit = int(found[1])
        assert scarcity(Options(), shards) == ""
    limit = resource.RLIM_INFINITY
    assert scarcity(Options(), 1) == ""


def test_without_a_limit_of_connections_as_many_as_by_default_should_fit(monkeypatch: pytest.MonkeyPatch) -> None:
    limit = 400
    monkeypatch.setattr(resource, "getrlimit", lambda _what: (limit, limit))
    said, usual = (scarcity(Options(limits=Limits(max_connections=most)), 2) for most in (NO_MAX_CONNECTIONS, 65_536))
    assert said == usual.replace("65536", "without limit") and "without limit" in said
    limit = 100_000
    assert scarcity(Options(limits=Limits(max_connections=NO_MAX_CONNECTIONS)), 2) == ""
