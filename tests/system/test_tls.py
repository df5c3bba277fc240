"""Clients over TLS: the order of INFO and handshake, who is let in, what garbage gets, and that nothing else changes.

On one shard, on two, and on the real server where its rules are ours.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import re
import resource
import signal
import socket
import ssl
import warnings

import nats
import pytest

from tests.support import swarm
from tests.support.authority import Authority
from tests.support.framed import websocket_port
from tests.support.pages import Pages
from tests.support.secure import CONNECT, SecureClient, connect, connections, dial, read_info, said, spread
from tests.support.servers import HOST, wait_until
from tests.support.wire import Client

OURS = ("gnatswarm-1", "gnatswarm-2")
ALL = (*OURS, "nats-server")

pytestmark = pytest.mark.kinds(*ALL)


# ---------------------------------------------------------------------------------------- INFO, handshake, messages


async def test_info_comes_in_plain_and_everything_after_it_encrypted(shared_secure, lasting_authority, kind):
    broker = shared_secure
    client = await connect(broker.port, lasting_authority.client_context())
    assert client.info["tls_required"] is True
    assert "tls_available" not in client.info and "tls_verify" not in client.info
    assert client.tls.version() == "TLSv1.3"
    await client.send(b"SUB a 1\r\nPUB a 2\r\nhi\r\n")
    await client.expect(b"MSG a 1 2\r\nhi\r\n")
    client.close()


async def test_messages_cross_shards_between_tls_clients_in_order(shared_secure, lasting_authority, kind):
    broker = shared_secure
    clients = await spread(broker.port, lasting_authority.client_context(), kind.shards)
    subscriber, publisher = clients[0], clients[-1]
    await subscriber.send(b"SUB order 1\r\n")
    await subscriber.flush()
    await publisher.send(b"".join(b"PUB order 5\r\n%05d\r\n" % number for number in range(5_000)))
    for number in range(5_000):
        await subscriber.expect(b"MSG order 1 5\r\n%05d\r\n" % number)
    for client in clients:
        client.close()


async def test_a_payload_comes_through_whatever_its_size(shared_secure, lasting_authority):
    broker = shared_secure
    client = await connect(broker.port, lasting_authority.client_context())
    for size in (0, 1, 16_383, 16_384, 16_385, 40_000, 1_000_000):
        payload = os.urandom(size)
        for _ in range(3):
            await client.send(b"SUB big 1\r\nPUB big %d\r\n%b\r\n" % (size, payload))
            _, got = await client.message()
            assert got == payload
    client.close()


async def test_operations_split_over_records_byte_by_byte(shared_secure, lasting_authority):
    broker = shared_secure
    client = await connect(broker.port, lasting_authority.client_context())
    for byte in b"SUB b 1\r\nPUB b 2\r\nhi\r\nPING\r\n":
        await client.send(bytes([byte]))
    await client.expect(b"MSG b 1 2\r\nhi\r\nPONG\r\n")
    client.close()


async def test_a_client_that_writes_much_before_it_reads_gets_all_of_it(secure, authority):
    """Stalls and the unread rest of what was decrypted: nothing is lost, doubled or moved."""
    broker = secure(rest="max_pending: 16MB\n")
    reader = await connect(broker.port, authority.client_context())
    writer = await connect(broker.port, authority.client_context())
    await reader.send(b"SUB flood 1\r\n")
    await reader.flush()
    payload = os.urandom(30_000)
    count = 1_000

    async def write() -> None:
        for _ in range(count):
            writer.writer.write(b"PUB flood 30000\r\n" + payload + b"\r\n")
            await writer.writer.drain()
        await writer.send(b"PING\r\n")

    writing = asyncio.create_task(write())
    for _ in range(count):
        assert await reader.message() == (b"MSG flood 1 30000\r\n", payload)
    await asyncio.wait_for(writing, 30)
    await writer.expect(b"PONG\r\n")
    reader.close()
    writer.close()


async def test_nats_py_works_unchanged(shared_secure, lasting_authority, kind):
    broker = shared_secure
    context = lasting_authority.client_context()
    clients = [
        await nats.connect(f"tls://localhost:{broker.port}", tls=context, tls_hostname="localhost") for _ in range(4)
    ]
    got: asyncio.Queue[bytes] = asyncio.Queue()

    async def on_message(message) -> None:
        await got.put(message.data)

    async def on_request(message) -> None:
        await message.respond(message.data + b"!")

    await clients[0].subscribe("news.>", cb=on_message)
    await clients[1].subscribe("ask", cb=on_request)
    for client in clients[:2]:
        await client.flush()
    await clients[2].publish("news.a", b"x" * 100_000)
    assert await asyncio.wait_for(got.get(), 30) == b"x" * 100_000
    answer = await clients[3].request("ask", b"well", timeout=30)
    assert answer.data == b"well!"
    for client in clients:
        await client.close()


async def test_tls_1_2_is_spoken_and_1_1_is_not(shared_secure, lasting_authority):
    broker, since = shared_secure, len(shared_secure.log.lines)
    context = lasting_authority.client_context()
    context.maximum_version = ssl.TLSVersion.TLSv1_2
    client = await connect(broker.port, context)
    assert client.tls.version() == "TLSv1.2"
    client.close()
    old = lasting_authority.client_context()
    old.set_ciphers("ALL:@SECLEVEL=0")
    with warnings.catch_warnings(action="ignore", category=DeprecationWarning):
        old.minimum_version = ssl.TLSVersion.TLSv1
        old.maximum_version = ssl.TLSVersion.TLSv1_1
    with pytest.raises(ssl.SSLError):
        await dial(broker.port, old)
    await said(broker, r"cid:\d+ - TLS handshake error: .*(unsupported)", since=since)


async def test_a_cipher_suite_of_tls_1_2_can_be_demanded(secure, authority):
    broker = secure("cipher_suites: [ TLS_ECDHE_ECDSA_WITH_AES_256_GCM_SHA384 ]")
    context = authority.client_context()
    context.maximum_version = ssl.TLSVersion.TLSv1_2
    client = await connect(broker.port, context)
    assert "ECDHE-ECDSA-AES256-GCM-SHA384" in (client.tls.cipher() or ())
    client.close()
    context.set_ciphers("ECDHE-ECDSA-AES128-GCM-SHA256")
    with pytest.raises((ssl.SSLError, ConnectionError)):
        await dial(broker.port, context)


async def test_a_curve_can_be_demanded(secure, authority):
    broker = secure("curve_preferences: [ CurveP384 ]")
    context = authority.client_context()
    (await connect(broker.port, context)).close()
    context.set_ecdh_curve("prime256v1")
    with pytest.raises((ssl.SSLError, ConnectionError)):
        await dial(broker.port, context)


@pytest.mark.kinds(*OURS)
async def test_tls_1_3_alone_can_be_demanded(secure, authority):
    broker = secure('min_version: "1.3"')
    (await connect(broker.port, authority.client_context())).close()
    context = authority.client_context()
    context.maximum_version = ssl.TLSVersion.TLSv1_2
    with pytest.raises((ssl.SSLError, ConnectionError)):
        await dial(broker.port, context)


async def test_flags_alone_make_a_tls_port(start_broker, authority, server):
    flags = [
        "--tlsverify",
        "--tlscert",
        str(server.cert),
        "--tlskey",
        str(server.key),
        "--tlscacert",
        str(authority.path),
    ]
    broker = start_broker(args=flags)
    client = await connect(broker.port, authority.client_context(authority.client()))
    assert client.info["tls_verify"] is True
    client.close()


# -------------------------------------------------------------------------------- plain clients, and who says nothing


async def test_a_plain_client_on_a_tls_port_is_closed_and_logged(shared_secure, kind):
    broker, since = shared_secure, len(shared_secure.log.lines)
    client = await Client.connect(broker.port)
    await client.send(b"CONNECT {}\r\nPING\r\n")
    rest = await client.wait_closed()
    # The real server closes without a word, which leaves the user of such a client to guess.
    assert rest == (b"" if kind.is_oracle else b"-ERR 'Secure Connection - TLS Required'\r\n")
    line = await said(broker, "TLS handshake error: .*first record does not look", since=since)
    assert re.search(r"127\.0\.0\.1:\d+ - cid:\d+ - TLS handshake error: .*first record does not look like a TLS", line)


async def test_a_tls_client_on_a_plain_port_gets_an_error(start_broker, authority):
    broker = start_broker()
    with pytest.raises((ssl.SSLError, ConnectionError)):
        await dial(broker.port, authority.client_context())
    assert (await Client.connect(broker.port, {})).info.get("tls_required") is None


@pytest.mark.parametrize("begin", [b"", b"\x16", b"\x16\x03\x01\x02\x00\x01\x00"])
async def test_a_handshake_that_does_not_come_ends_at_its_timeout(secure, begin, kind):
    broker = secure("timeout: 2.5")  # longer than the default
    client = await Client.connect(broker.port)
    started = asyncio.get_running_loop().time()
    await client.send(begin)
    rest = await client.wait_closed()
    assert 2.3 < asyncio.get_running_loop().time() - started < 30
    # In the middle of a handshake a line in plain would be garbage; before it, it is what the client expects.
    required = b"-ERR 'Secure Connection - TLS Required'\r\n"
    assert rest == (required if not begin and not kind.is_oracle else b"")
    await said(broker, r"cid:\d+ - TLS handshake error: .*timeout")


@pytest.mark.kinds(*OURS)
async def test_the_log_in_has_its_time_after_the_handshake_and_not_before(secure, authority):
    broker = secure("timeout: 30", "authorization { token: t, timeout: 3 }\n")
    reader, writer = await asyncio.open_connection(HOST, broker.port)
    await read_info(reader)
    silent = await Client.connect(broker.port)
    # This one's log-in time passes before it has begun its handshake; another one tells when.
    other = await dial(broker.port, authority.client_context())
    assert b"Authentication Timeout" in await other.rest()
    await writer.start_tls(authority.client_context(), server_hostname="localhost")
    late = SecureClient(reader, writer)
    await late.send(b'CONNECT {"auth_token":"t","verbose":false}\r\n')
    await late.flush()
    late.close()
    silent.close()


async def test_allow_non_tls_lets_both_kinds_in(secure, authority):
    broker = secure(rest="allow_non_tls: true\n")
    encrypted = await connect(broker.port, authority.client_context())
    plain = await Client.connect(broker.port, {"verbose": False})
    for info in (encrypted.info, plain.info):
        assert info["tls_available"] is True
        assert "tls_required" not in info
    await plain.talk("SUB a 1\r\nPING\r\n", expect="PONG\r\n")
    await encrypted.send(b"PUB a 2\r\nhi\r\n")
    await plain.expect("MSG a 1 2\r\nhi\r\n")
    # Large ones take the plain way from the second read on.
    payload = b"y" * 500_000
    await plain.send(b"PUB a 500000\r\n" + payload + b"\r\n")
    await plain.expect(b"MSG a 1 500000\r\n" + payload + b"\r\n")
    encrypted.close()
    plain.close()


@pytest.mark.kinds(*OURS)
async def test_allow_non_tls_waits_for_the_timeout_and_not_longer(secure):
    broker = secure("timeout: 0.5", "allow_non_tls: true\nping_interval: '200ms'\n")
    client = await Client.connect(broker.port)
    # Pinged although it has said nothing: it was taken for a plain client.
    client.ignores_pings = False
    assert await client.read_line(10) == b"PING\r\n"
    client.ignores_pings = True
    await client.talk("PING\r\n", expect="PONG\r\n")
    client.close()


# ------------------------------------------------------------------------------------------------- handshake_first


@pytest.mark.kinds(*OURS)
async def test_handshake_first_says_nothing_in_plain(secure, authority):
    broker = secure("handshake_first: true\n timeout: 3")
    client = await connect(broker.port, authority.client_context(), first=True)
    await client.flush()
    client.close()
    silent = await Client.dial(broker.port)
    assert b"INFO" not in await silent.wait_closed()


@pytest.mark.kinds(*OURS)
async def test_handshake_first_auto_serves_clients_of_both_orders(secure, authority):
    broker = secure("handshake_first: auto")
    context = authority.client_context()
    (await connect(broker.port, context, first=True)).close()
    (await connect(broker.port, context)).close()


@pytest.mark.kinds(*OURS)
async def test_nats_py_with_the_handshake_first(secure, authority):
    broker = secure("handshake_first: true")
    client = await nats.connect(
        f"tls://localhost:{broker.port}",
        tls=authority.client_context(),
        tls_hostname="localhost",
        tls_handshake_first=True,
    )
    await client.flush()
    await client.close()


# -------------------------------------------------------------------------------------------------------- attacks


GARBAGE = (
    b"\x16\x03\x01\x00\x05hello",
    b"\x16" + b"\xff" * 1_000,
    b"\x16\x03\x01\xff\xff" + b"A" * 70_000,
    b"\x16\x03\x01\x40\x00\x01\xff\xff\xff" + b"A" * 300_000,
    b"GET / HTTP/1.1\r\n\r\n",
    b"\x00" * 100_000,
)


@pytest.mark.kinds(*OURS)
async def test_garbage_in_place_of_a_handshake_closes_and_is_counted_as_its_failure(secure, authority):
    broker = secure(rest="http: 127.0.0.1:-1\n")
    for count, garbage in enumerate(GARBAGE, 1):
        client = await Client.connect(broker.port)
        with contextlib.suppress(OSError):  # we may be cut off in the middle
            await client.send(garbage)
            await client.wait_closed()
        client.close()
        closed = await connections(broker, "closed")
        assert [row["reason"] for row in closed] == ["TLS Handshake Failure"] * count
    await asyncio.to_thread(broker.log.wait_line, f"cid:{len(GARBAGE)} - TLS handshake error: ", 30.0)
    assert len([line for line in broker.log.lines if "TLS handshake error: " in line]) == len(GARBAGE)
    metrics = (await asyncio.to_thread(Pages.of(broker).get, "/metrics")).text
    counted = re.findall(r"(?m)^gnatswarm_failed_handshakes_total\{.*\} (\d+)$", metrics)
    assert sum(map(int, counted)) == len(GARBAGE)
    (await connect(broker.port, authority.client_context())).close()


@pytest.mark.kinds(*OURS)
@pytest.mark.parametrize("version", [ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3], ids=lambda version: version.name)
@pytest.mark.parametrize("record", [b"\x17\x03\x03\x00\x20" + b"forged" * 6, b"\x15\x03\x03\x00\x02\x02\x28"])
async def test_a_broken_record_closes_that_connection_alone(shared_secure, lasting_authority, version, record):
    """The log says so: it was no error of ours, whatever OpenSSL calls it."""
    broker, since = shared_secure, len(shared_secure.log.lines)
    bystander = await connect(broker.port, lasting_authority.client_context())
    sock = socket.create_connection((HOST, broker.port), 30)
    sock.settimeout(30)
    assert sock.recv(65_536).startswith(b"INFO ")
    context = lasting_authority.client_context()
    context.maximum_version = version
    wrapped = context.wrap_socket(sock, server_hostname="localhost")
    wrapped.sendall(CONNECT + b"PING\r\n")
    assert wrapped.recv(100) == b"PONG\r\n"
    raw = socket.socket(fileno=os.dup(wrapped.fileno()))
    raw.sendall(record)
    with pytest.raises(ssl.SSLError):
        await asyncio.to_thread(wrapped.recv, 100)
    await said(broker, r"read error: (decryption failed or )?bad record", since=since)
    await bystander.flush()
    for one in (raw, wrapped):
        one.close()


@pytest.mark.kinds(*OURS)
async def test_nobody_renegotiates(secure, authority):
    broker = secure("handshake_first: true")
    process = await asyncio.create_subprocess_exec(
        "openssl", "s_client", "-connect", f"{HOST}:{broker.port}", "-tls1_2", "-CAfile", str(authority.path),
        stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.STDOUT,
    )  # fmt: skip
    assert process.stdout is not None and process.stdin is not None
    async with asyncio.timeout(20):
        await process.stdout.readuntil(b"INFO {")
        process.stdin.write(b"R\n")  # s_client's command for it
        said_by_client = await process.stdout.read()
        await process.wait()
    assert b"RENEGOTIATING" in said_by_client
    assert b"no renegotiation" in said_by_client
    (await connect(broker.port, authority.client_context(), first=True)).close()


@pytest.mark.kinds("gnatswarm-2", "nats-server-2.15")
@pytest.mark.parametrize(("groups", "is_taken"), [("ffdhe8192", False), ("P-384:ffdhe8192", True)])
async def test_nobody_exchanges_keys_in_a_large_group_of_a_finite_field(start_broker, authority, groups, is_taken):
    """OpenSSL would: 190 ms each, in which the shard serves nobody, for a share that a client need not compute."""
    broker = start_broker(config=f"tls {{ {authority.server().lines} }}\nwebsocket {{ port: -1, host: {HOST}, "
                                 f"tls {{ {authority.server().lines} }} }}\n")  # fmt: skip
    process = await asyncio.create_subprocess_exec(
        "openssl", "s_client", "-connect", f"{HOST}:{websocket_port(broker)}", "-groups", groups, "-brief",
        stdin=asyncio.subprocess.DEVNULL, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.STDOUT,
    )  # fmt: skip
    said_by_client, _ = await asyncio.wait_for(process.communicate(), 20)
    assert (b"CONNECTION ESTABLISHED" in said_by_client) is is_taken
    assert (b"handshake failure" in said_by_client) is not is_taken


@pytest.mark.kinds("gnatswarm-1")
@pytest.mark.parametrize("more", [10, 100], ids=["long", "too long"])
async def test_a_chain_of_certificates_that_would_stop_a_shard_is_refused(secure, authority, tmp_path, more):
    """OpenSSL looks at all, whoever has signed them: 96 KB took 73 ms, in which nobody else was served."""
    broker = secure(f'verify: true\n ca_file: "{authority.path}"')
    pair = authority.client()
    chain = tmp_path / "chain.pem"
    chain.write_bytes(pair.cert.read_bytes() + authority.path.read_bytes() * more)
    context = authority.client_context()
    context.load_cert_chain(chain, pair.key)
    if more == 10:
        (await connect(broker.port, context)).close()
    else:
        with pytest.raises((OSError, EOFError)):
            await connect(broker.port, context)
        broker.log.wait_line(r"TLS handshake error: more than \d+ bytes in the handshake")


@pytest.mark.kinds("gnatswarm-1")
async def test_a_flood_of_handshakes_keeps_no_memory_and_stops_nobody(secure, authority):
    """400 connections in the middle of a handshake at once; a client that was there goes on being served."""
    broker = secure("timeout: 3")
    bystander = await connect(broker.port, authority.client_context())
    before = broker.resident_bytes()
    hello = client_hello(authority)
    socks = []
    for _ in range(400):
        client = await Client.connect(broker.port)
        await client.send(hello)
        socks.append(client)
        if len(socks) % 50 == 0:
            await bystander.flush()
    grown = broker.resident_bytes() - before
    # An SSL object and the server's first flight; 400 of 100 KB would be more than any state of a handshake.
    assert grown < 400 * 100_000, grown
    for client in socks:
        await client.wait_closed(deadline_s=20)
    await bystander.flush()
    bystander.close()


def client_hello(authority: Authority) -> bytes:
    incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
    tls = authority.client_context().wrap_bio(incoming, outgoing, server_hostname="localhost")
    with pytest.raises(ssl.SSLWantReadError):
        tls.do_handshake()
    return outgoing.read()


# ---------------------------------------------------------------------- limits, the end, reloading, what pages show


async def test_a_slow_tls_client_is_closed_and_the_others_are_not(secure, authority):
    broker = secure(rest='max_pending: 4MB\nwrite_deadline: "2s"\n')
    sock = socket.socket()
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 16_384)
    sock.connect((HOST, broker.port))
    sock.settimeout(30)
    assert sock.recv(65_536).startswith(b"INFO ")
    slow = authority.client_context().wrap_socket(sock, server_hostname="localhost")
    slow.sendall(CONNECT + b"SUB flood 1\r\nPING\r\n")
    assert slow.recv(100) == b"PONG\r\n"
    publisher = await connect(broker.port, authority.client_context())
    message = b"PUB flood 65536\r\n" + b"x" * 65_536 + b"\r\n"
    for _ in range(16 * 16):
        await publisher.send(message)
    await publisher.flush()
    await said(broker, "Slow Consumer", 20)
    await publisher.flush()
    publisher.close()
    slow.close()


@pytest.mark.parametrize("way", ["an error", "a shutdown"])
async def test_an_end_comes_with_its_reason_and_close_notify(secure, authority, way, kind):
    broker = secure()
    client = await connect(broker.port, authority.client_context())
    if way == "an error":
        await client.send(b"BOGUS\r\n")
    else:
        broker.send_signal(signal.SIGTERM)
    rest = await client.rest()
    # Without close_notify the reader would have raised, and rest() have shown it.
    assert rest == (b"-ERR 'Unknown Protocol Operation'\r\n" if way == "an error" else b"")


async def test_a_reload_reads_the_certificate_again(secure, authority, server):
    broker = secure(f'ca_file: "{authority.path}"')
    context = authority.client_context()
    before = await connect(broker.port, context)
    serial = before.writer.get_extra_info("peercert")["serialNumber"]
    other = authority.server()
    server.cert.write_bytes(other.cert.read_bytes())
    server.key.write_bytes(other.key.read_bytes())
    start = len(broker.log.lines)
    broker.send_signal(signal.SIGHUP)
    await asyncio.to_thread(broker.log.wait_line, "Reloaded server configuration", 30.0, start)
    deadline = asyncio.get_running_loop().time() + 10
    while True:
        client = await connect(broker.port, context)
        renewed = client.writer.get_extra_info("peercert")["serialNumber"]
        client.close()
        if renewed != serial:
            break
        assert asyncio.get_running_loop().time() < deadline
    await before.flush()
    before.close()


async def test_a_reload_of_a_broken_certificate_changes_nothing(secure, authority, server):
    broker = secure()
    server.cert.write_text("not a certificate")
    start = len(broker.log.lines)
    broker.send_signal(signal.SIGHUP)
    await asyncio.to_thread(broker.log.wait_line, "(?i)fail", 30.0, start)
    (await connect(broker.port, authority.client_context())).close()


@pytest.mark.kinds("gnatswarm-1", "gnatswarm-2")
async def test_files_that_change_between_two_reloads_are_nobody_s(secure, authority, server):
    """A shard has what the router read: one that is started again as well, whatever the files hold by then."""
    broker = secure(f'verify: true\n ca_file: "{authority.path}"')
    context = authority.client_context(authority.client("CN=x"))
    before = await connect(broker.port, context)
    serial = before.writer.get_extra_info("peercert")["serialNumber"]
    before.close()
    server.cert.write_text("not a certificate")
    server.key.unlink()
    died = await swarm.kill(broker, 0)

    def is_back() -> bool:
        row = swarm.rows(broker)[0]
        return bool(row["phase"] == "ready" and row["pid"] != died)

    await asyncio.to_thread(wait_until, is_back, 10.0)
    for _ in range(8):
        client = await connect(broker.port, context)
        assert client.writer.get_extra_info("peercert")["serialNumber"] == serial
        client.close()
    assert "PRIVATE KEY" not in broker.log.text


async def test_pages_show_version_and_suite(secure, authority, kind):
    broker = secure(rest="http: 127.0.0.1:-1\n")
    context = authority.client_context()
    context.maximum_version = ssl.TLSVersion.TLSv1_2
    context.set_ciphers("ECDHE-ECDSA-AES128-GCM-SHA256")
    client = await connect(broker.port, context)
    (row,) = await connections(broker, "open")
    assert row["tls_version"] == "1.2"
    assert row["tls_cipher_suite"] == "TLS_ECDHE_ECDSA_WITH_AES_128_GCM_SHA256"
    client.close()


@pytest.mark.kinds("gnatswarm-2")
async def test_sockets_handed_over_shake_hands_as_well(secure, authority):
    broker = secure(rest="accept: handoff\n")
    one, other = await spread(broker.port, authority.client_context(), 2)
    await one.send(b"SUB a 1\r\n")
    await one.flush()
    await other.send(b"PUB a 2\r\nhi\r\n")
    await one.expect(b"MSG a 1 2\r\nhi\r\n")
    one.close()
    other.close()


@pytest.mark.kinds("gnatswarm-2")
async def test_a_shard_that_cannot_load_its_certificate_says_why_and_is_tried_again(secure, cluster_of):
    """Files may not grow (`ulimit -f`), and OpenSSL reads certificates from files alone."""
    broker = secure(rest="allow_non_tls: true")
    stays = await swarm.client_on(cluster_of(broker), 0)
    limits = resource.prlimit(broker.pid, resource.RLIMIT_FSIZE)
    resource.prlimit(broker.pid, resource.RLIMIT_FSIZE, (0, limits[1]))
    swarm.signal_shard(broker, (await swarm.pids(broker))[1])
    why = "error parsing X509 certificate/key pair: open .*: file too large; starting it again"
    await asyncio.to_thread(broker.log.wait_line, rf"\[WRN\] Shard 1 died: {why}", 20.0)
    resource.prlimit(broker.pid, resource.RLIMIT_FSIZE, limits)
    await swarm.client_on(cluster_of(broker), 1)
    await stays.talk("PING\r\n", expect="PONG\r\n")
    assert "Traceback" not in broker.log.text
