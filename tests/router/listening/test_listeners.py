"""Listeners have their port for themselves, give it back, and say clearly why they cannot have it."""

from __future__ import annotations

import os
import resource
import select
import socket
import subprocess
import sys
import threading
from typing import Any

import pytest

from gnatswarm.broker.options import Cluster, LeafNodes, Options, WebSocket
from gnatswarm.router.listening import listeners as listeners_module
from gnatswarm.router.listening.listeners import ListenError, Listeners, Ports, address_text, tcp_socket
from tests.support.ports import free_port


def has_ipv6() -> bool:
    try:
        with socket.socket(socket.AF_INET6) as probe:
            probe.bind(("::1", 0))
    except OSError:
        return False
    return True


def test_one_listener_per_shard_on_one_port() -> None:
    listeners = Listeners("127.0.0.1", -1, 4)
    assert len({sock.getsockname() for sock in listeners.sockets}) == 1
    assert listeners.sockets[0].getsockname() == ("127.0.0.1", listeners.port)
    assert listeners.address == f"127.0.0.1:{listeners.port}"
    listeners.close()
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(("127.0.0.1", listeners.port))


@pytest.mark.parametrize("host", ["", "0.0.0.0", "::", "[::]"])
@pytest.mark.skipif(not has_ipv6(), reason="no IPv6 here")
def test_every_address_includes_ipv6(host: str) -> None:
    listeners = Listeners(host, -1, 2)
    for dialled in ("127.0.0.1", "::1"):
        socket.create_connection((dialled, listeners.port), timeout=30).close()
    listeners.close()


def test_a_name_prefers_ipv4() -> None:
    listeners = Listeners("localhost", -1, 1)
    assert listeners.sockets[0].family == socket.AF_INET
    listeners.close()


def test_addresses_as_the_log_shows_them() -> None:
    assert address_text("", 4222) == "0.0.0.0:4222"
    assert address_text("::1", 4222) == "[::1]:4222"
    assert address_text("example.org", 1) == "example.org:1"


@pytest.mark.parametrize("theirs", ["127.0.0.1", "0.0.0.0"])
@pytest.mark.parametrize("ours", ["127.0.0.1", "0.0.0.0", ""])
@pytest.mark.parametrize("reuse", [False, True])
def test_a_port_that_somebody_listens_on_is_never_shared(theirs: str, ours: str, reuse: bool) -> None:
    with socket.socket() as other:
        if reuse:
            other.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            other.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        other.bind((theirs, 0))
        other.listen()
        port = other.getsockname()[1]
        with pytest.raises(
            ListenError,
            match=rf":{port}: bind: address already in use\" — the port is in use by another process\. Find it",
        ):
            Listeners(ours, port, 2, wait_s=0.05)
        # Nothing stays taken after the refusal.
    Listeners(ours, port, 2, wait_s=0.5).close()


@pytest.mark.parametrize("block", ["websocket", "cluster", "leafnodes"])
def test_whose_port_is_taken_is_said_with_the_block_that_names_it(block: str) -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        sections: dict[str, Any] = {"websocket": WebSocket, "cluster": Cluster, "leafnodes": LeafNodes}
        section = sections[block](host="127.0.0.1", port=other.getsockname()[1])
        options = Options(host="127.0.0.1", port=-1, **{block: section})
        with pytest.raises(ListenError) as refused:
            Ports.open(options, 1, early=True)
    advice = f"choose another port with {block} {{ port: … }} ({block} {{ port: -1 }}: any free one)"
    assert str(refused.value).endswith(advice)


def use(kind: type[socket.socket], monkeypatch: pytest.MonkeyPatch) -> None:
    """Have listeners made of sockets of this kind."""
    monkeypatch.setattr(listeners_module, "tcp_socket", lambda family: kind(fileno=tcp_socket(family).detach()))


def test_who_connects_at_once_is_never_reset(monkeypatch: pytest.MonkeyPatch) -> None:
    port = free_port()
    clients: list[socket.socket] = []

    class Dialled(socket.socket):
        def listen(self, backlog: int = 0, /) -> None:
            super().listen(backlog)
            clients.append(socket.create_connection(("127.0.0.1", port), timeout=30))

    use(Dialled, monkeypatch)
    listeners = Listeners("127.0.0.1", port, 3)
    accepted = 0
    for sock in listeners.sockets:
        while select.select([sock], [], [], 0)[0]:
            with sock.accept()[0] as server:
                server.sendall(b"here")
                accepted += 1
    assert accepted == len(clients) == 3
    for client in clients:
        with client:
            assert client.recv(10) == b"here"
    listeners.close()


def test_two_of_ours_do_not_share_a_port() -> None:
    first = Listeners("127.0.0.1", -1, 2)
    with pytest.raises(ListenError):
        Listeners("127.0.0.1", first.port, 2, wait_s=0.05)
    with pytest.raises(ListenError):
        Listeners("", first.port, 2, wait_s=0.05)
    Listeners("127.0.0.2", first.port, 2, wait_s=0.05).close()
    first.close()


def test_names_that_others_take_do_not_stop_us() -> None:
    free = Listeners("127.0.0.1", -1, 1)
    free.close()
    taken = [socket.socket(socket.AF_UNIX) for _ in range(2)]
    for sock, name in zip(taken, ("turn", "127.0.0.1"), strict=True):
        sock.bind(f"\0gnatswarm/{name}/{free.port}")  # names are for all users of a host
    Listeners("127.0.0.1", free.port, 2, wait_s=0.05).close()
    for sock in taken:
        sock.close()


class DecidedAtBind(socket.socket):
    """A socket of a kernel that settles at bind() whether a port is shared."""

    def setsockopt(self, level: int, name: int, value: Any, *rest: Any) -> None:
        if not (name == socket.SO_REUSEPORT and self.getsockname()[1]):
            super().setsockopt(level, name, value, *rest)


def test_a_kernel_that_settles_at_bind_who_shares_a_port_will_do(monkeypatch: pytest.MonkeyPatch) -> None:
    free = Listeners("127.0.0.1", -1, 1)
    free.close()
    use(DecidedAtBind, monkeypatch)
    ours = Listeners("127.0.0.1", free.port, 2, wait_s=0.05)
    assert [sock.getsockname()[1] for sock in ours.sockets] == [free.port] * 2
    ours.close()


def test_the_port_is_had_as_soon_as_the_last_holder_goes() -> None:
    other = socket.socket()
    other.bind(("127.0.0.1", 0))
    other.listen()
    timer = threading.Timer(0.3, other.close)
    timer.start()
    Listeners("127.0.0.1", other.getsockname()[1], 1, wait_s=5.0).close()
    timer.join()


def test_connections_that_linger_do_not_hold_the_port() -> None:
    listeners = Listeners("127.0.0.1", -1, 1)
    client = socket.create_connection(("127.0.0.1", listeners.port))
    listeners.sockets[0].setblocking(True)
    accepted, _ = listeners.sockets[0].accept()
    listeners.close()
    accepted.close()  # we close first: the port is in FIN-WAIT, then TIME-WAIT
    Listeners("127.0.0.1", listeners.port, 2, wait_s=0.05).close()
    client.close()


def test_of_many_that_want_one_port_at_once_one_has_it() -> None:
    port = free_port()
    code = (
        "import sys\nfrom gnatswarm.router.listening.listeners import *\n"
        "sys.stdin.readline()\n"
        "try: listeners = Listeners(sys.argv[1], int(sys.argv[2]), 2, wait_s=0.2)\n"
        "except ListenError: print('no', flush=True)\n"
        "else: print('yes', flush=True); sys.stdin.readline()\n"
    )
    processes = [
        subprocess.Popen(
            [sys.executable, "-P", "-c", code, host, str(port)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        for host in ("127.0.0.1", "", "127.0.0.1", "0.0.0.0")
    ]
    for process in processes:
        assert process.stdin is not None
        process.stdin.write("go\n")
        process.stdin.flush()
    answers = []
    for process in processes:
        assert process.stdout is not None
        answers.append(process.stdout.readline().strip())
    for process in processes:
        process.communicate("end\n", timeout=30)
    assert sorted(answers) == ["no", "no", "no", "yes"]


@pytest.mark.parametrize(
    ("host", "says"),
    [
        ("203.0.113.77", "this host has no such address"),
        ("no-such-host.invalid", "no address for this name"),
        ("a" * 70 + ".invalid", "no address for this name"),
    ],
)
def test_addresses_that_are_not_ours(host: str, says: str) -> None:
    with pytest.raises(ListenError, match=says):
        Listeners(host, -1, 1)


def test_growing_and_shrinking() -> None:
    listeners = Listeners("127.0.0.1", -1, 1)
    listeners.grow_to(3)
    listeners.grow_to(2)
    assert len(listeners.sockets) == 3
    listeners.shrink_to(1)
    assert len(listeners.sockets) == 1
    listeners.close()


def test_no_descriptors_left() -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    before = len(os.listdir("/proc/self/fd"))
    resource.setrlimit(resource.RLIMIT_NOFILE, (before + 6, hard))
    try:
        with pytest.raises(ListenError, match="no file descriptors left"):
            Listeners("127.0.0.1", -1, 64)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    assert len(os.listdir("/proc/self/fd")) <= before
