"""The load generator's own client, on our broker and on the real server."""

from __future__ import annotations

import base64
import json
import os
import queue
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import nkeys
import pytest

from gnatswarm.loadtest import natswire
from gnatswarm.loadtest.natswire import Client, Message, Settings
from tests.loadtest.bad_server import INFO, BadServer
from tests.support.authority import Authority
from tests.support.ports import free_port
from tests.support.servers import Broker, wait_until

StartBroker = Callable[..., Broker]
DAY_S = 86_400.0


@pytest.fixture
def client(broker: Broker) -> Iterator[Client]:
    with natswire.connect(broker.url) as client:
        yield client


@pytest.fixture
def subject(request: pytest.FixtureRequest) -> str:
    """A subject of this test's own: brokers are shared."""
    return f"natswire.{abs(hash(request.node.nodeid))}"


def test_what_is_published_comes_to_every_subscriber(client: Client, subject: str):
    first, second = client.subscribe(subject), client.subscribe(f"{subject[:-3]}*".rpartition(".")[0] + ".>")
    client.publish(subject, b"a\r\nb", reply="somewhere")
    for subscription in (first, second):
        message = subscription.next()
        assert (message.subject, message.payload, message.reply) == (subject, b"a\r\nb", "somewhere")


def test_a_request_is_answered_and_headers_travel_both_ways(client: Client, subject: str):
    def answer(message: Message) -> None:
        message.respond(message.payload.upper(), {"Seen": message.headers["Trace"]})

    client.subscribe(subject, answer)
    reply = client.request(subject, b"hi", headers={"Trace": "a: b"})
    assert (reply.payload, reply.headers) == (b"HI", {"Seen": "a: b"})


def test_a_request_to_nobody_fails_at_once(client: Client, subject: str):
    with pytest.raises(natswire.NoResponders, match=subject):
        client.request(subject)


def test_a_request_that_nobody_answers_times_out(client: Client, subject: str):
    client.subscribe(subject)
    with pytest.raises(natswire.RequestTimeout, match=f"no answer from {subject}"):
        client.request(subject, timeout_s=0.05)


def test_one_member_of_a_queue_group_gets_each_message(broker: Broker, client: Client, subject: str):
    with natswire.connect(broker.url) as other:
        got: list[bytes] = []
        for member in (client, other):
            member.subscribe(subject, lambda message: got.append(message.payload), queue="workers")
            member.flush()
        for number in range(50):
            client.publish(subject, b"%d" % number)
        client.flush()
        other.flush()
        assert sorted(got) == sorted(b"%d" % number for number in range(50))


@pytest.mark.parametrize("at_once", [True, False])
def test_a_subscription_ends_after_its_most_messages(client: Client, subject: str, at_once: bool):
    got: list[bytes] = []
    subscription = client.subscribe(subject, lambda message: got.append(message.payload), max_messages=2 * at_once)
    if not at_once:
        client.unsubscribe(subscription, max_messages=2)
    for number in range(4):
        client.publish(subject, b"%d" % number)
    client.flush()
    assert got == [b"0", b"1"]


def test_nothing_comes_after_unsubscribe(client: Client, subject: str):
    got: list[Message] = []
    subscription = client.subscribe(subject, got.append)
    subscription.unsubscribe()
    subscription.unsubscribe()
    client.publish(subject)
    client.flush()
    assert got == []


def test_flush_calls_back_on_pong_when_asked_to(client: Client, subject: str):
    got: list[str] = []
    done = threading.Event()
    client.subscribe(subject, lambda message: got.append("message"))
    client.publish(subject)

    def on_pong() -> None:
        got.append("pong")
        done.set()

    client.flush(on_pong=on_pong)
    assert done.wait(30)
    assert got == ["message", "pong"]


def test_drain_handles_what_is_on_its_way_and_closes(client: Client, subject: str):
    got: list[Message] = []
    client.subscribe(subject, got.append)
    for _ in range(100):
        client.publish(subject)
    client.drain()
    assert len(got) == 100
    assert not client.is_connected
    with pytest.raises(natswire.Disconnected):
        client.publish(subject)


def test_waiting_inside_a_callback_is_refused_and_the_connection_lives_on(broker: Broker, subject: str):
    errors: queue.SimpleQueue[natswire.NatsError] = queue.SimpleQueue()
    with natswire.connect(broker.url, Settings(on_error=errors.put)) as client:
        client.subscribe(subject, lambda message: client.flush())
        client.publish(subject)
        assert "would wait for itself" in str(errors.get(timeout=30))
        client.flush()


@pytest.mark.parametrize("subject", ["", "a b", "a\r\nPING", "a\tb"])
def test_what_would_break_out_of_its_line_is_refused(client: Client, subject: str):
    with pytest.raises(ValueError, match="not a subject"):
        client.publish(subject)
    with pytest.raises(ValueError, match="not a header"):
        client.publish("a", headers={"A": f"{subject}\r\nB: c"})
    with pytest.raises(ValueError, match="not a header"):
        client.publish("a", headers={"A": "\udcff"})
    if subject:
        with pytest.raises(ValueError, match="not a subject"):
            client.publish("a", reply=subject)
        with pytest.raises(ValueError, match="not the name of a queue group"):
            client.subscribe("a", queue=subject)
    client.flush()


def test_verbose_clients_count_their_ok_s(broker: Broker, subject: str):
    with natswire.connect(broker.url, Settings(verbose=True)) as client:
        client.publish(subject)
        client.flush()


def test_an_error_that_leaves_the_connection_open_is_reported(broker: Broker):
    errors: list[natswire.NatsError] = []
    with natswire.connect(broker.url, Settings(on_error=errors.append)) as client:
        client.send_raw(b"SUB a..b 1\r\n")
        client.flush()
        assert [str(error) for error in errors] == ["Invalid Subject"]


def test_an_error_that_closes_is_the_reason_given_to_whoever_waits(broker: Broker):
    client = natswire.connect(broker.url)
    client.send_raw(b"NONSENSE\r\n")
    with pytest.raises(natswire.Disconnected, match="Unknown Protocol Operation"):
        client.flush()
    client.close()


# ------------------------------------------------------------------------------------------------------- logging in


def test_user_and_password(start_broker: StartBroker):
    broker = start_broker(args=["--user", "joe", "--pass", "p@ss"])
    with natswire.connect(f"nats://joe:p%40ss@127.0.0.1:{broker.port}") as client:
        client.flush()
    for url in (broker.url, f"nats://joe:wrong@127.0.0.1:{broker.port}"):
        with pytest.raises(natswire.AuthenticationError, match="Authorization Violation"):
            natswire.connect(url)


def test_token(start_broker: StartBroker):
    broker = start_broker(args=["--auth", "secret"])
    with natswire.connect(f"nats://secret@127.0.0.1:{broker.port}") as client:
        client.flush()
    with natswire.connect(broker.url, Settings(credentials=natswire.Credentials(token="secret"))) as client:
        client.flush()


def test_nkey(start_broker: StartBroker, tmp_path: Path):
    seed = nkeys.encode_seed(b"0123456789abcdef0123456789abcdef", nkeys.PREFIX_BYTE_USER)
    public = nkeys.from_seed(bytearray(seed)).public_key.decode()
    broker = start_broker(config=f"authorization {{ users [ {{ nkey: {public} }} ] }}")
    path = tmp_path / "user.nk"
    path.write_text(f"{seed.decode()}\n")
    credentials = natswire.Credentials.from_file(str(path))
    with natswire.connect(broker.url, Settings(credentials=credentials)) as client:
        client.flush()
    with pytest.raises(natswire.BadCredentials, match="cannot be used"):
        natswire.connect(broker.url, Settings(credentials=natswire.Credentials(nkey_seed="SUNONSENSE")))


def test_a_creds_file_is_a_jwt_and_a_seed(tmp_path: Path):
    path = tmp_path / "user.creds"
    path.write_text(
        "-----BEGIN NATS USER JWT-----\nabc.def\n------END NATS USER JWT------\n\nA line.\n\n"
        "-----BEGIN USER NKEY SEED-----\nSUX\n------END USER NKEY SEED------\n"
    )
    assert natswire.Credentials.from_file(str(path)) == natswire.Credentials(jwt="abc.def", nkey_seed="SUX")
    path.write_text("nothing of the kind")
    with pytest.raises(natswire.BadCredentials, match="neither"):
        natswire.Credentials.from_file(str(path))


def jwt(issuer: nkeys.KeyPair, subject: nkeys.KeyPair, kind: str, name: str) -> str:
    """A decentralised JWT of version 2, as the tool nsc makes them."""

    def part(words: dict[str, Any]) -> str:
        return base64.urlsafe_b64encode(json.dumps(words).encode()).rstrip(b"=").decode()

    claims: dict[str, Any] = {
        "jti": name,
        "iat": 1,
        "iss": issuer.public_key.decode(),
        "name": name,
        "sub": subject.public_key.decode(),
    }
    claims["nats"] = {"type": kind, "version": 2, **({"subs": -1, "data": -1, "payload": -1} if kind == "user" else {})}
    if kind == "account":
        claims["nats"]["limits"] = {"subs": -1, "data": -1, "payload": -1, "conn": -1, "imports": -1, "exports": -1}
    signed = f"{part({'typ': 'JWT', 'alg': 'ed25519-nkey'})}.{part(claims)}"
    return f"{signed}.{base64.urlsafe_b64encode(issuer.sign(signed.encode())).rstrip(b'=').decode()}"


@pytest.mark.kinds("nats-server")  # ours knows no operators
def test_a_jwt_and_its_key_log_in(start_broker: StartBroker, tmp_path: Path):
    def pair(letter: bytes, prefix: int) -> tuple[bytes, nkeys.KeyPair]:
        seed = nkeys.encode_seed(letter * 32, prefix)
        return seed, nkeys.from_seed(bytearray(seed))

    _, operator = pair(b"o", nkeys.PREFIX_BYTE_OPERATOR)
    _, account = pair(b"a", nkeys.PREFIX_BYTE_ACCOUNT)
    seed, user = pair(b"u", nkeys.PREFIX_BYTE_USER)
    config = f"""
        operator: {jwt(operator, operator, "operator", "o")}
        resolver: MEMORY
        resolver_preload: {{ {account.public_key.decode()}: {jwt(operator, account, "account", "a")} }}
    """
    broker = start_broker(config=config)
    path = tmp_path / "user.creds"
    path.write_text(
        f"-----BEGIN NATS USER JWT-----\n{jwt(account, user, 'user', 'u')}\n------END NATS USER JWT------\n\n"
        f"-----BEGIN USER NKEY SEED-----\n{seed.decode()}\n------END USER NKEY SEED------\n"
    )
    with natswire.connect(broker.url, Settings(credentials=natswire.Credentials.from_file(str(path)))) as client:
        client.flush()
    words = [
        sys.executable,
        "-P",
        "-m",
        "gnatswarm.loadtest.bench",
        "connect",
        "--connections",
        "70",
        "-s",
        broker.url,
        "-q",
    ]
    assert subprocess.run([*words, "--creds", str(path)], timeout=60, check=False).returncode == 0
    with pytest.raises(natswire.AuthenticationError, match="Authorization Violation"):
        natswire.connect(broker.url)


@pytest.fixture
def authority(tmp_path: Path) -> Authority:
    return Authority(tmp_path)


def test_tls(start_broker: StartBroker, authority: Authority):
    broker = start_broker(config=f"tls {{ {authority.server().lines} }}")
    trust = Settings(tls=natswire.tls_context(str(authority.path)))
    for url in (f"tls://127.0.0.1:{broker.port}", broker.url):  # who is not asked for it, sees it in INFO
        with natswire.connect(url, trust) as client:
            subscription = client.subscribe("big")
            client.publish("big", bytes(500_000))
            assert len(subscription.next().payload) == 500_000
    with pytest.raises(natswire.Refused, match="certificate verify failed"):
        natswire.connect(f"tls://127.0.0.1:{broker.port}")


def test_a_tls_connection_is_read_and_written_at_the_same_time(start_broker: StartBroker, authority: Authority):
    """OpenSSL does not allow that: without turns, every third connection broke here."""
    broker = start_broker(config=f"tls {{ {authority.server().lines} }}")
    trust = Settings(tls=natswire.tls_context(str(authority.path)))
    for _ in range(8):
        with natswire.connect(f"tls://127.0.0.1:{broker.port}", trust) as client:
            subscription = client.subscribe("big")
            for _ in range(50):
                client.publish("big", bytes(500_000))
            assert [len(subscription.next().payload) for _ in range(50)] == [500_000] * 50
            assert client.reconnects == 0


def test_a_certificate_of_our_own(start_broker: StartBroker, authority: Authority):
    broker = start_broker(config=f'tls {{ {authority.server().lines}, ca_file: "{authority.path}", verify: true }}')
    own = authority.client()
    context = natswire.tls_context(str(authority.path), str(own.cert), str(own.key))
    with natswire.connect(f"tls://127.0.0.1:{broker.port}", Settings(tls=context)) as client:
        client.flush()
    with pytest.raises(natswire.Refused, match="while logging in"):
        natswire.connect(f"tls://127.0.0.1:{broker.port}", Settings(tls=natswire.tls_context(str(authority.path))))


@pytest.mark.kinds("gnatswarm-1")  # nats-server has it from 2.10 on
def test_the_handshake_before_info(start_broker: StartBroker, authority: Authority):
    broker = start_broker(config=f"tls {{ {authority.server().lines}, handshake_first: true }}")
    settings = Settings(tls=natswire.tls_context(str(authority.path)), tls_first=True)
    with natswire.connect(f"tls://127.0.0.1:{broker.port}", settings) as client:
        client.flush()


def test_tls_where_there_is_none_is_said(broker: Broker):
    with pytest.raises(natswire.Refused, match="tls:// asks for TLS, which this server does not offer"):
        natswire.connect(f"tls://127.0.0.1:{broker.port}")


def test_certificates_that_cannot_be_used_are_named(authority: Authority, tmp_path: Path):
    own = authority.client()
    for words, why in [
        (("/nonexistent.pem",), "/nonexistent.pem: cannot be used as trusted certificates: no such file"),
        ((str(own.key),), "cannot be used as trusted certificates"),
        (("", str(authority.path), str(own.key)), "cannot be used as certificate and key"),
        (("", "", str(own.key)), "a key without its certificate"),
    ]:
        with pytest.raises(natswire.BadCredentials, match=why):
            natswire.tls_context(*words)


# ------------------------------------------------------------------------------------------------ lost connections


def test_nobody_listens(unused_port: int):
    with pytest.raises(natswire.Refused, match=f"127.0.0.1:{unused_port}: cannot connect: connection refused"):
        natswire.connect(f"nats://127.0.0.1:{unused_port}")


def test_a_name_that_no_host_can_have_is_refused():
    with pytest.raises(natswire.Refused, match="cannot connect: this is no name of a host"):
        natswire.connect("nats://\udcff:4222")


@pytest.mark.parametrize(("error", "how"), [(BrokenPipeError(), socket.SHUT_WR), (TimeoutError(), socket.SHUT_RDWR)])
def test_a_connection_that_takes_no_more_is_read_to_its_end(client: Client, error: OSError, how: int):
    """There the server says why it has closed it. Under gevent, shutdown() cuts a reader off."""

    class Broken(socket.socket):
        def sendall(self, *_arguments: object) -> None:
            raise error

        def shutdown(self, how: int) -> None:
            said.append(how)

    said: list[int] = []
    plain = client._sock
    assert isinstance(plain, socket.socket)
    with Broken(fileno=os.dup(plain.fileno())) as client._sock, pytest.raises(natswire.Disconnected, match="sending"):
        client.publish("a")
    client._sock = plain
    assert said == [how]


def test_a_server_that_says_nothing_is_not_waited_for():
    with BadServer(info=INFO[:20]) as server, pytest.raises(natswire.Refused, match="while logging in: timed out"):
        natswire.connect(server.url, Settings(timeout_s=0.1))


def test_the_next_server_of_the_list_is_tried(broker: Broker, unused_port: int):
    with natswire.connect([f"nats://127.0.0.1:{unused_port}", broker.url]) as client:
        client.flush()


def test_a_server_that_goes_ends_every_wait(start_broker: StartBroker):
    broker = start_broker()
    lost: queue.SimpleQueue[natswire.NatsError] = queue.SimpleQueue()
    client = natswire.connect(broker.url, Settings(on_disconnect=lost.put))
    client.subscribe("service")
    broker.send_signal(signal.SIGKILL)
    with pytest.raises(natswire.Disconnected):
        client.request("service")
    assert lost.get(timeout=30)
    assert not client.is_connected


def test_the_end_of_the_connection_ends_waiting_for_a_message(start_broker: StartBroker):
    broker = start_broker()
    client = natswire.connect(broker.url)
    subscription = client.subscribe("service")
    client.publish("service", b"before")
    client.flush()
    ended: queue.SimpleQueue[Exception | bytes] = queue.SimpleQueue()

    def wait() -> None:
        for _ in range(2):
            try:
                ended.put(subscription.next(DAY_S).payload)
            except natswire.NatsError as error:
                ended.put(error)

    threading.Thread(target=wait, daemon=True).start()
    assert ended.get(timeout=30) == b"before"
    broker.send_signal(signal.SIGKILL)
    error = ended.get(timeout=30)
    assert isinstance(error, natswire.Disconnected)
    assert str(error) == str(client.closed_because)
    with pytest.raises(natswire.Disconnected):  # nor is there anything to wait for later
        subscription.next(DAY_S)


def test_what_came_before_the_connection_ended_is_had_after_it():
    with BadServer(hang_up_after=1) as server:
        client = natswire.connect(server.url)
        subscription = client.subscribe("a")
        client.publish("a", b"first")
        client.flush()
        client.publish("a", b"second")
        wait_until(lambda: client.has_ended)
        assert subscription.next(0).payload == b"first"
        with pytest.raises(natswire.Disconnected):
            subscription.next(DAY_S)


def test_whoever_waits_for_a_message_is_told_of_a_lost_connection_though_there_will_be_another():
    with BadServer() as server, natswire.connect(server.url, Settings(max_reconnects=-1)) as client:
        ended: queue.SimpleQueue[str] = queue.SimpleQueue()

        def wait(subscription: natswire.Subscription) -> None:
            with pytest.raises(natswire.Disconnected) as error:
                subscription.next(DAY_S)
            ended.put(str(error.value))

        threading.Thread(target=wait, args=(client.subscribe("a"),), daemon=True).start()

        def hung_up() -> bool:
            server.hang_up()  # again, if nobody waited yet
            return not ended.empty()

        wait_until(hung_up)
        assert "connection" in ended.get()


def test_a_client_comes_back_with_its_subscriptions(start_broker: StartBroker):
    broker = start_broker(port=free_port())
    back = threading.Event()
    settings = Settings(max_reconnects=-1, reconnect_wait_s=0.02, on_reconnect=back.set)
    with natswire.connect(broker.url, settings) as client:
        client.subscribe("limited", max_messages=3)
        subscription = client.subscribe("service")
        client.flush()
        broker.stop(signal.SIGINT)
        wait_until(lambda: not client.is_connected)
        start_broker(port=broker.port)
        assert back.wait(30)
        client.publish("service", b"again")
        assert subscription.next().payload == b"again"
        assert client.reconnects == 1


@pytest.mark.parametrize(
    ("url", "why"),
    [
        ("http://h:1", "begins with nats://"),
        ("nats://h:0x", "the port is no number"),
        ("nats://h:99999", "the port is no number"),
        ("nats://:4222", "no host"),
    ],
)
def test_what_is_no_address_is_refused(url: str, why: str):
    with pytest.raises(ValueError, match=why):
        natswire.connect(url)
