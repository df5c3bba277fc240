"""Ports are open before the modules are imported that read a configuration, where the command line cannot be wrong."""

from __future__ import annotations

import os
import pathlib
import random
import re
import signal
import socket
import subprocess
import sys

import msgspec
import pytest

from gnatswarm.broker import due_replies, frozen, limits, options
from gnatswarm.broker.access import connect
from gnatswarm.router.config.conf_tree import ConfigError
from gnatswarm.router.config.cores import usable_cores
from gnatswarm.router.config.flags import FLAGS, parse
from gnatswarm.router.config.options_build import build
from gnatswarm.router.listening.head_start import DEFAULT_PORT, simple
from gnatswarm.router.listening.listeners import Listeners
from gnatswarm.router.start_early import start_early
from gnatswarm.router.supervision.opening import Opened
from gnatswarm.shards.boundary import control, keeping, rows
from tests.support.ports import free_port

ROOT = pathlib.Path(__file__).resolve().parents[3]

# What an empty Python has not, and a broker has until its port is open; and where it reads a file.
FEW = 24
FEW_WITH_FILE = 57
FILE = """
listen: 127.0.0.1:-1
http: -1
shards: 2
max_payload: 2MB
ping_interval: "20s"
accounts { A { users: [ {user: ann, password: pw, permissions: {publish: "a.>"}} ] } }
"""
# Makes options, and opens four ports more.
WHOLE_FILE = """
listen: 127.0.0.1:-1
http: -1
shards: 2
websocket { listen: "127.0.0.1:-1", no_tls: true }
cluster { name: c, listen: "127.0.0.1:-1", routes: ["nats://127.0.0.1:1"] }
leafnodes { listen: "127.0.0.1:-1" }
mappings { a: b }
placement { bound: 1.25 }
accounts {
  A { users: [ {user: a, password: pw} ], exports: [ {stream: "x.>"}, {service: q} ] }
  B { imports: [ {stream: {account: A, subject: "x.>"}}, {service: {account: A, subject: q}} ] }
}
"""
HEAVY = {"msgspec", "logging", "asyncio", "uvloop", "ssl", "typing", "re", "encodings.idna", "inspect", "argparse"}
HEAVY |= {"enum", "socket", "signal", "ipaddress", "datetime"}
FILES = {"": set(), FILE: {"re", "enum"}, WHOLE_FILE: {"re", "enum", "msgspec", "typing", "datetime"}}


@pytest.mark.parametrize("file", FILES, ids=["flags", "a simple file", "a file that is read in whole"])
def test_little_is_imported_until_the_port_is_open(file: str, tmp_path: pathlib.Path) -> None:
    (tmp_path / "nats.conf").write_text(file)
    flags = ["-a", "127.0.0.1", "-p", "-1", "-m", "-1", "--shards", "2", "-DV", "-n", "me"]
    code = (
        "import sys; before = set(sys.modules)\n"
        "from gnatswarm import keeper\n"
        "def keep(route, *, begin, **_):\n"
        "    begun = begin()\n"
        "    print(begun.ports.clients.port > 0, begun.monitor is not None, len(begun.ports.clients.sockets))\n"
        "    new = {name: type(sys.modules[name]).__name__ for name in set(sys.modules) - before}\n"
        "    print(*sorted(name for name, kind in new.items() if kind != '_Late'))\n"
        "    return 0\n"
        "keeper.keep = keep\n"
        "from gnatswarm.router.cli import main\n"
        f"main({['-c', str(tmp_path / 'nats.conf')] if file else flags})\n"
    )
    result = subprocess.run([sys.executable, "-P", "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    opened, names = result.stdout.splitlines()
    modules = set(names.split())
    assert opened == "True True 2"
    assert modules & HEAVY == FILES[file]
    if file != WHOLE_FILE:
        assert len(modules) < (FEW_WITH_FILE if file else FEW), sorted(modules)


def test_what_router_and_shards_both_need_is_imported_before_they_are_forked() -> None:
    code = (
        "import os, sys\n"
        "from gnatswarm import keeper\n"
        "import gnatswarm.router.start_early, gnatswarm.router.cli\n"
        "keeper._share()\n"
        "before = set(sys.modules)\n"
        "late = {name for name in before if type(sys.modules[name]).__name__ == '_Late'}\n"
        "if os.fork() == 0:\n"
        "    import gnatswarm.shards.worker\n"
        "    print(*sorted(set(sys.modules) - before), flush=True)\n"
        "    os._exit(0)\n"
        "os.wait()\n"
        "import gnatswarm.router.config.options_build, gnatswarm.router.serving, gnatswarm.router.companions\n"
        "from gnatswarm.router.commands import first_screen\n"
        "from gnatswarm.router.supervision import broker, supervisor, operator_answers, operator_socket, placing\n"
        "from gnatswarm.router.supervision import reloader, rolling, signal_handlers\n"
        "print(*sorted(set(sys.modules) - before))\n"
        "print(*sorted(before - late))\n"
    )
    result = subprocess.run([sys.executable, "-P", "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    shard, router, both = (set(line.split()) for line in result.stdout.splitlines())
    assert {"gnatswarm.shards.worker"} <= shard
    assert {"gnatswarm.router.serving"} <= router
    small = {"copy", "dataclasses", "gnatswarm.broker.bounds", "gnatswarm.shards.boundary.counted_names"}
    assert shard & router <= small
    # What one of them would import for one small thing, and each takes a tenth of a megabyte or more.
    single = {"shutil", "tempfile", "bz2", "lzma", "random", "gzip", "urllib.parse", "ipaddress", "pathlib"}
    assert (shard | router | both) & single == set()


def test_structs_that_are_decoded_at_each_start_have_no_annotations_as_text() -> None:
    """Each text would be compiled while a decoder is made, before the first INFO: a sixteenth of all instructions."""
    for module in (options, limits, frozen, due_replies, connect, control, keeping, rows):
        for name, found in vars(module).items():
            if isinstance(found, type) and issubclass(found, msgspec.Struct):
                texts = [field for field, kind in found.__annotations__.items() if isinstance(kind, str)]
                assert texts == [], (module.__name__, name)


VALUES = {
    "a": ["127.0.0.1", "", "0.0.0.0", "1.2.3.4.5", "127.0.0.1:5", "::1", "localhost", "1 2", "a/b", "٣", "..", "1"],
    "p": ["0", "-1", "-2", "1", "8222", "65535", "65536", "0x10"],
    "m": ["0", "-1", "-2", "4222", "8222", "65536"],
    "shards": ["0", "1", "2", "62", "63", "-1"],
    "accept": ["reuseport", "handoff", "", "both"],
    "user": ["ann", "", "$2a$11$x", "a b"],
    "pass": ["s3cret", "", "$2a$11$" + "x" * 53, "$2y"],
    "auth": ["token", "", "$2b$1"],
    "n": ["me", "", "a b"],
    "compatibility": ["2.9", "2.15", "3"],
    "log_format": ["json", "x"],
    "cluster": ["nats://0.0.0.0:4222", "x"],
    "l": ["", "/nowhere/at/all/x.log", "/"],
    "stats_window": ["1s", "x"],
    "tls": None,
    "js": None,
    "D": None,
    "no_stats": None,
}


def test_each_line_that_is_accepted_makes_options() -> None:
    draw = random.Random(20)
    accepted = 0
    for _ in range(4000):
        words = []
        for name in draw.sample(sorted(VALUES), draw.choice((1, 2, 3, 4))):
            values = VALUES[name]
            words.append(f"--{name}" + ("" if values is None else f"={draw.choice(values)}"))
        line = parse(words)
        if simple(line, None) is None:
            continue
        accepted += 1
        try:
            options = build(line).options
        except ConfigError as error:
            raise AssertionError(f"{words}: {error}") from error
        assert options.host == line.values.get("a", ""), words
        assert options.port == (int(line.values.get("p", 0)) or DEFAULT_PORT), words
        assert options.http_port == int(line.values.get("m", 0)), words
        assert (options.http_host, options.https_port) == ("", 0), words
        assert (options.websocket.port, options.server_ports) == (0, {}), words
        assert options.sharding.shards == int(line.values.get("shards", 0)), words
        assert options.sharding.accept == line.values.get("accept", "reuseport"), words
    assert accepted > 300


@pytest.mark.parametrize("flag", [flag.names[0] for flag in FLAGS])
def test_a_flag_that_needs_the_configuration_is_not_accepted(flag: str) -> None:
    known = {"c", "a", "p", "m", "n", "P", "l", "T", "D", "V", "VV", "DV", "DVV", "js", "auth", "user", "pass"}
    known |= {"compatibility", "shards", "accept", "no_stats", "stats_dir", "ports_file_dir"}
    values = {
        "compatibility": "2.15",
        "a": "127.0.0.1",
        "p": "5",
        "m": "6",
        "shards": "2",
        "accept": "handoff",
        "l": os.devnull,
    }
    kind = next(one.kind for one in FLAGS if one.names[0] == flag)
    words = [f"--{flag}" if kind is bool else f"--{flag}={values.get(flag, '7')}"]
    words += {"user": ["--pass=x"], "pass": ["--user=x"]}.get(flag, [])
    # `start_early` reads the file of -c. A log that is no file is left to who writes it: the reader of a pipe would
    # take closing it for the end.
    assert (simple(parse(words), None) is not None) == (flag in known - {"l"})


def test_it_is_what_the_router_goes_on_with() -> None:
    line = parse(["-a", "127.0.0.1", "-p", "-1", "-m", "-1", "--shards", "3"])
    begun = start_early(line)
    assert begun is not None
    opened = Opened(build(line).options, None, begun)
    try:
        assert opened.shards == 3
        assert opened.listener_groups.clients is begun.ports.clients
        assert len(begun.ports.clients.sockets) == 3
        assert opened.monitor_socket is begun.monitor
    finally:
        opened.close()
    assert begun.ports.clients.sockets == []


def _whole(tmp_path: pathlib.Path, text: str) -> list[str]:
    (tmp_path / "nats.conf").write_text(text)
    return ["-c", str(tmp_path / "nats.conf")]


def test_of_any_other_file_that_is_valid_all_ports_are_opened(tmp_path: pathlib.Path) -> None:
    line = parse(_whole(tmp_path, WHOLE_FILE))
    begun = start_early(line)
    assert begun is not None
    assert begun.options is not None
    opened = Opened(begun.options, None, begun)
    try:
        groups = opened.listener_groups
        assert begun.options == build(line).options
        assert groups.websocket is not None
        assert len(groups.websocket.sockets) == 2
        assert groups.servers.keys() == {"cluster", "leafnodes"}
        ports = [groups.clients, groups.websocket, *groups.servers.values()]
        for sock in [sock for one in ports for sock in one.sockets]:
            assert type(sock) is socket.socket
            assert not sock.getblocking()
        for one in ports:
            socket.create_connection(("127.0.0.1", one.port), timeout=20).close()
        opened.listener_groups.grow_to(3)
        assert [type(sock) for sock in groups.clients.sockets] == [socket.socket] * 3
    finally:
        opened.close()


WRONG = [
    *(
        "cluster { port: 70000 }",
        "leafnodes { remotes: [ {account: x} ] }",
        "websocket { port: 8080 }",
        "mappings { a..b: c }",
    ),
    *("tls { cert_file: '/nowhere', key_file: '/nowhere' }", "placement { bound: 0 }", "https: 8443", "operator: x"),
    *("accounts { A { imports: [ {stream: {account: B, subject: x}} ] } }", "shards: 99", "unknown: 5", "syslog: true"),
    *("log_file: '/nowhere/at/all/x.log'", "shards: 40\ncluster { listen: '127.0.0.1:-1' }", "port: $NOT_SET_ANYWHERE"),
    *("cluster { listen: 'example.org:-1' }", "leafnodes { listen: 'no.such.host:7422' }"),
]


@pytest.mark.parametrize("wrong", WRONG)
def test_a_mistake_or_a_question_in_any_file_opens_no_port(
    wrong: str, tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened: list[int] = []
    monkeypatch.setattr(Listeners, "_first", lambda *_: opened.append(1))
    monkeypatch.setattr(Listeners, "_open", lambda *_: opened.append(1))
    assert start_early(parse(_whole(tmp_path, f"host: 127.0.0.1\nmappings {{ x: y }}\n{wrong}\n"))) is None
    assert opened == []


@pytest.mark.parametrize("block", ["websocket { no_tls: true, ", "cluster { ", "leafnodes { "])
def test_a_second_port_in_use_closes_the_first(block: str, tmp_path: pathlib.Path) -> None:
    port = free_port()
    with socket.create_server(("127.0.0.1", 0)) as other:
        taken = other.getsockname()[1]
        text = f"listen: 127.0.0.1:{port}\n{block} host: 127.0.0.1, port: {taken} }}\n"
        assert start_early(parse(_whole(tmp_path, text))) is None
    socket.create_server(("127.0.0.1", port)).close()


def test_a_pipe_is_left_to_who_reads_it(tmp_path: pathlib.Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    assert start_early(parse(["-c", str(tmp_path / "pipe")])) is None


def test_whose_ports_are_all_open_early_serves_on_all_of_them(tmp_path: pathlib.Path) -> None:
    clients, websocket, leafnodes, pages = (free_port() for _ in range(4))
    text = f"""
    listen: 127.0.0.1:{clients}
    http: 127.0.0.1:{pages}
    websocket {{ listen: "127.0.0.1:{websocket}", no_tls: true }}
    leafnodes {{ listen: "127.0.0.1:{leafnodes}" }}
    """
    words = [sys.executable, "-P", "-m", "gnatswarm", *_whole(tmp_path, text), "--no_stats"]
    with subprocess.Popen(words, cwd=ROOT, stderr=subprocess.PIPE, stdout=subprocess.DEVNULL, text=True) as process:
        with (
            _connected(process, leafnodes) as leaf,
            _connected(process, clients) as client,
            _connected(process, websocket) as web,
            _connected(process, pages) as page,
        ):
            web.sendall(
                b"GET / HTTP/1.1\r\nHost: x\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
                b"Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\nSec-WebSocket-Version: 13\r\n\r\n"
            )
            page.sendall(b"GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n")
            assert client.recv(5) == b"INFO "
            assert leaf.recv(5) == b"INFO "
            assert web.recv(12) == b"HTTP/1.1 101"
            assert page.recv(9) == b"HTTP/1.1 "
        process.send_signal(signal.SIGINT)
        log = process.communicate(timeout=20)[1]
        assert process.returncode == 0, log


def test_without_a_number_there_is_a_listener_for_each_core_and_one_for_hand_off() -> None:
    for words, count in (([], usable_cores()), (["--accept", "handoff"], 1)):
        begun = start_early(parse(["-a", "127.0.0.1", "-p", "-1", *words]))
        assert begun is not None
        assert len(begun.ports.clients.sockets) == count
        assert begun.monitor is None
        begun.close()


@pytest.mark.parametrize("flag", ["-p", "-m"])
def test_a_port_in_use_is_left_to_the_router_at_once(flag: str) -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        taken = str(other.getsockname()[1])
        assert start_early(parse(["-a", "127.0.0.1", "-p", "-1", flag, taken])) is None


def test_a_log_that_cannot_be_written_opens_no_port(tmp_path: pathlib.Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    for path in (tmp_path, tmp_path / "no" / "x.log", tmp_path / "pipe"):
        assert simple(parse(["-l", str(path)]), None) is None
    assert simple(parse(["-l", str(tmp_path / "x.log")]), None) is not None


def _start(port: int, *flags: str) -> subprocess.Popen[str]:
    words = [sys.executable, "-P", "-m", "gnatswarm", "-a", "127.0.0.1", "-p", str(port), "--no_stats", *flags]
    return subprocess.Popen(words, cwd=ROOT, stderr=subprocess.PIPE, stdout=subprocess.DEVNULL, text=True)


def _connected(process: subprocess.Popen[str], port: int) -> socket.socket:
    """A connection made at the first moment at which the port is open."""
    while process.poll() is None:
        try:
            return socket.create_connection(("127.0.0.1", port), timeout=20)
        except ConnectionRefusedError:
            continue
    raise AssertionError(process.communicate()[1])


def test_who_connects_at_the_first_moment_is_served_and_a_signal_at_that_moment_is_kept() -> None:
    port = free_port()
    with _start(port, "--shards", "2") as process, _connected(process, port) as client:
        assert client.recv(5) == b"INFO "
        process.send_signal(signal.SIGTERM)
        process.communicate(timeout=20)
    port = free_port()
    with _start(port, "--shards", "2") as process, _connected(process, port):
        process.send_signal(signal.SIGTERM)
        log = process.communicate(timeout=20)[1]
        assert process.returncode == 0, log
        assert re.search(r"Server Exiting", log), log


def test_with_a_file_who_connects_at_the_first_moment_is_served_and_a_mistake_opens_no_port(
    tmp_path: pathlib.Path,
) -> None:
    port = free_port()
    path = tmp_path / "nats.conf"
    path.write_text(f"listen: 127.0.0.1:{port}\nserver_name: early\nauthorization {{ token: t }}\n")
    words = [sys.executable, "-P", "-m", "gnatswarm", "-c", str(path), "--no_stats"]
    with subprocess.Popen(words, cwd=ROOT, stderr=subprocess.PIPE, stdout=subprocess.DEVNULL, text=True) as process:
        with _connected(process, port) as client:
            path.write_text("x: y")  # options are what the port was opened for
            assert b'"server_name":"early"' in client.recv(4096)
        process.send_signal(signal.SIGTERM)
        process.communicate(timeout=20)
    assert start_early(parse(["-c", str(path)])) is None


def test_after_kill_9_while_it_imports_nothing_holds_the_port() -> None:
    port = free_port()
    with _start(port, "--shards", "2") as process, _connected(process, port):
        process.kill()
        process.wait()
        process.communicate(timeout=20)  # no process has its standard error any more
    with socket.socket() as again:
        again.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        again.bind(("127.0.0.1", port))
