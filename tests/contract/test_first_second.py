"""What a script written for nats-server sees within the first second: log lines, their order, and why a start fails.

Each test starts the real server and us under its name, both versions, and compares what tools look for. Lines that only
we write, and why, are in OURS. Exit codes and flags are in test_drop_in.py and test_compatibility.py.
"""

from __future__ import annotations

import pathlib
import re
import signal
import socket
import sys

import pytest

import gnatswarm
from tests.contract.test_compatibility import PAIRS, kinds_of
from tests.support.servers import HOST, Broker, Kind

# Where statistics are, and how many clients fit: nats-server has no statistics and does not look at descriptors.
OURS = re.compile(r"Statistics are off|max_connections is")
ALL_PORTS = f"""
http: "{HOST}:-1"
cluster {{ name: here, listen: "{HOST}:-1" }}
leafnodes {{ listen: "{HOST}:-1" }}
websocket {{ listen: "{HOST}:-1", no_tls: true }}
"""
# There the port for routes is opened after all others; here before. Nobody can wait for it without its own line.
LATER = re.compile(r"route connections|Cluster name is")


@pytest.fixture(params=PAIRS)
def both(request: pytest.FixtureRequest, tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> tuple[Kind, Kind]:
    """Theirs and ours; ours is started through a program that is called nats-server."""
    program = tmp_path / "nats-server"
    place = str(pathlib.Path(gnatswarm.__file__).parent.parent)
    program.write_text(
        f"#!{sys.executable} -P\nimport sys\nsys.path.insert(0, {place!r})\n"
        "from gnatswarm.router.cli import main\nsys.exit(main())\n"
    )
    program.chmod(0o755)
    monkeypatch.setenv("GNATSWARM_COMMAND", str(program))
    return kinds_of(request.param)


def start(brokers: list[Broker], kind: Kind, config: str = "debug: false", *args: str) -> Broker:
    broker = Broker(kind, config=config, args=args)
    brokers.append(broker)
    return broker.start()


def said(broker: Broker, since: int = 0) -> list[str]:
    """The lines of its log from number `since` on, without time, ports and random names."""
    lines = []
    for line in broker.log.lines[since:]:
        text = re.sub(r"^\[\d+\] \S+ \S+ ", "", line)
        text = re.sub(rf"{HOST}:\d+", "ADDRESS", text)
        text = re.sub(r"\b[A-Z0-9]{56}\b", "ID", text)
        text = re.sub(r"/\S+/(\w+\.conf)", r"\1", text)
        text = re.sub(r"Git: .*", "Git:", text)
        if not OURS.search(text):
            lines.append(text)
    return lines


def test_the_lines_of_a_start_are_theirs_in_their_order(both: tuple[Kind, Kind], brokers: list[Broker]) -> None:
    theirs, ours = ([line for line in said(start(brokers, kind, ALL_PORTS)) if not LATER.search(line)] for kind in both)
    assert ours == theirs
    assert theirs[-2:] == ["[INF] Listening for client connections on ADDRESS", "[INF] Server is ready"]


def test_a_signal_without_effect_says_so(both: tuple[Kind, Kind], brokers: list[Broker]) -> None:
    for kind in both:
        broker = start(brokers, kind)
        broker.process.send_signal(signal.SIGUSR1)
        broker.log.wait_line(r"\[INF\] File log re-open ignored, not a file logger")


def test_a_reopened_log_begins_with_that(
    both: tuple[Kind, Kind], brokers: list[Broker], tmp_path: pathlib.Path
) -> None:
    for kind in both:
        path = tmp_path / f"{kind}.log"
        broker = Broker(kind, args=["-l", str(path)])
        brokers.append(broker)
        broker.launch()
        wait_for(path, "Server is ready")
        path.rename(tmp_path / "old.log")
        broker.process.send_signal(signal.SIGUSR1)
        assert re.search(r"\[INF\] File log re-opened\n", wait_for(path, "re-opened"))


def wait_for(path: pathlib.Path, words: str) -> str:
    """The file's text as soon as the words are in it."""
    from tests.support.servers import wait_until

    wait_until(lambda: path.exists() and words in path.read_text(), 20.0)
    return path.read_text()


def test_signals_have_their_names_in_the_log(both: tuple[Kind, Kind], brokers: list[Broker]) -> None:
    found = []
    for kind in both:
        broker = start(brokers, kind, "debug: true")
        broker.process.send_signal(signal.SIGINT)
        broker.wait_exit()
        found.append([line for line in said(broker) if "Trapped" in line])
    assert found[0] == found[1]
    assert 'Trapped "interrupt" signal' in found[0][0]


def test_a_reload_says_what_it_did(both: tuple[Kind, Kind], brokers: list[Broker]) -> None:
    found = []
    for kind in both:
        broker = start(brokers, kind, "max_payload: 1MB")
        results = []
        for config, result in (
            ("max_payload: 2MB", "Reloaded server"),
            ("debugg: true", "Failed"),
            ("server_name: b", "Fail"),
        ):
            since = len(broker.log.lines)
            assert broker.directory is not None
            (broker.directory / "broker.conf").write_text(config)
            broker.process.send_signal(signal.SIGHUP)
            broker.log.wait_line(result, start=since)
            (line,) = [line for line in said(broker, since) if result in line]
            results.append(re.sub(r"(broker.conf:1|supported for).*", r"\1", re.sub(r"sha256:\w+", "SHA", line)))
        found.append(results)
    assert found[0] == found[1]


class FromFile(Broker):
    """A broker whose ports are in its file alone."""

    def command_line(self) -> list[str]:
        line = super().command_line()
        at = line.index("-a")
        return [*line[:at], *line[at + 4 :]]


PORTS = (
    "client connections on [^:]+",
    "route connections on [^:]+",
    "leafnode connections on [^:]+",
    "websocket clients on ws://[^:]+",
)


def test_a_reload_may_name_the_ports_that_were_chosen_or_leave_them_open_again(
    both: tuple[Kind, Kind], brokers: list[Broker]
) -> None:
    for kind in both:
        monitoring = f'http: "{HOST}:-1"'
        config = f'listen: "{HOST}:-1"\n{ALL_PORTS.replace(monitoring, "")}\n{monitoring}'
        broker = FromFile(kind, config=config, by_fork=False)
        start_one(brokers, broker)
        ports = [broker.log.wait_line(rf"{words}:(\d+)")[1] for words in PORTS]
        named = config
        for port in ports:
            named = named.replace("-1", port, 1)
        clients = config.replace("-1", "1", 1)
        pages = config.replace(monitoring, f'http: "{HOST}:1"')
        found = []
        for text in (named, config, named, clients, pages):
            since = len(broker.log.lines)
            assert broker.directory is not None
            (broker.directory / "broker.conf").write_text(text)
            broker.process.send_signal(signal.SIGHUP)
            found.append(broker.log.wait_line("(Reloaded server|Failed to reload server)", start=since)[1])
        assert found == ["Reloaded server"] * 3 + ["Failed to reload server"] * 2, kind


def start_one(brokers: list[Broker], broker: Broker) -> None:
    brokers.append(broker)
    broker.start()


@pytest.mark.parametrize("flag", ["-p", "-m"])
def test_a_port_that_is_in_use_is_named_in_their_words(both: tuple[Kind, Kind], flag: str) -> None:
    with socket.create_server((HOST, 0)) as taken:
        port = taken.getsockname()[1]
        found = []
        for kind in both:
            broker = Broker(kind, args=[flag, str(port)]).launch()
            assert broker.wait_exit() == 1
            (line,) = [line for line in said(broker) if "[FTL]" in line]
            found.append(line)
    assert found[1].startswith(found[0])
    assert "address already in use" in found[0]


def test_who_cannot_be_reached_is_named_in_their_words(both: tuple[Kind, Kind], brokers: list[Broker]) -> None:
    with socket.socket() as deaf:
        deaf.bind((HOST, 0))  # and does not listen
        place = "{}:{}".format(*deaf.getsockname())
        config = f"""
cluster {{ name: here, listen: "{HOST}:-1", routes: ["nats://{place}"] }}
leafnodes {{ remotes: [ {{ url: "nats://u:secret@{place}" }} ] }}
"""
        found = []
        for kind in both:
            broker = start(brokers, kind, config)
            for what in ("connect to route", "connect as leafnode"):
                broker.log.wait_line(f"Error trying to {what}")
            found.append({line.replace("gateway - ", "") for line in said(broker) if "Error trying" in line})
    assert found[0] == found[1]
    assert not any("secret" in line for line in found[1])


def test_a_cluster_without_a_name_has_one_in_the_first_lines(both: tuple[Kind, Kind], brokers: list[Broker]) -> None:
    for kind in both:
        broker = start(brokers, kind, f'cluster {{ listen: "{HOST}:-1" }}')
        name = broker.log.wait_line(r"\[INF\]   Cluster:  (\w{22})$")[1]
        broker.log.wait_line(f"Cluster name is {name}")
