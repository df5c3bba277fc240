"""Members that are parted, stopped and killed: what they find out, and how they come together again."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import socket
import ssl
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from gnatswarm.router.commands.operator_commands import exchange, find
from gnatswarm.router.supervision.operator_socket import RestartRequest
from tests.support.authority import Authority
from tests.support.pipe import Pipe
from tests.support.raw_route import DEADLINE_S, RawRoute, connect, hello
from tests.support.servers import Broker
from tests.support.turns import until
from tests.support.wire import Client
from tests.system.test_cluster import (
    ACCOUNTS,
    CREATED,
    Net,
    Start,
    all_know,
    arrived,
    cluster_config,
    is_meshed,
    know,
    net,
    page,
    route_port,
    settled,
    start,
    subscribed,
)

__all__ = ["net", "start"]  # fixtures

PINGS = 'ping_interval: "700ms"'  # (who does not run for a second goes on being a member)
CLOSED = r"Router connection closed: Stale Connection"


def pings_of(kind: str) -> str:
    """nats-server 2.9 pings other members as often as clients, by default every two minutes."""
    return "" if kind == "nats-server" else PINGS


KINDS = ("gnatswarm-2", "nats-server")


async def has_no_responders(client: Client, subject: str) -> None:
    """Returns when a request is answered by 503: the route is gone, and this client's shard has been told."""
    async with asyncio.timeout(40):
        while True:
            await client.send(f"PUB {subject} answers.here 0\r\n\r\n")
            if any(frame.headers and b"503" in frame.headers for frame in await client.flush()):
                return


@pytest.mark.parametrize("kind", KINDS)
async def test_a_partition_is_found_and_heals(start: Start, net: Net, kind: str) -> None:
    """Nothing is forwarded between two members, and no connection ends: only unanswered pings tell."""
    here = start("gnatswarm-2", cluster_config("here", inner=PINGS))
    async with Pipe(route_port(here)) as pipe:
        there = start(kind, cluster_config("there", (pipe.port,), inner=pings_of(kind)))
        await until(lambda: is_meshed([here, there]))
        near, far = clients = await net.clients([here, there])
        await subscribed(near, "answers.> 9")
        await subscribed(far, "before 1", "during.gone 2")
        await all_know(clients)
        pipe.stall()
        await asyncio.to_thread(here.log.wait_line, CLOSED, 20.0)
        # Two clusters: what only the other side subscribes to has no responders.
        await has_no_responders(near, "before")
        await far.talk("UNSUB 2\r\nPING\r\n", expect_last="PONG\r\n")
        await subscribed(far, "during.new 3")
        if pings_of(kind):
            await asyncio.to_thread(there.log.wait_line, "Router connection closed", 20.0)
        pipe.go_on()
        await until(lambda: is_meshed([here, there]))
        await all_know(clients)
        near.inbox.clear()
        far.inbox.clear()
        await has_no_responders(near, "during.gone")
        for number in range(50):
            await near.send(f"PUB before {len(str(number))}\r\n{number}\r\nPUB during.new 1\r\nx\r\n")
        await settled(clients)
        assert [frame.payload for frame in far.inbox if frame.sid == "1"] == [b"%d" % n for n in range(50)]
        assert sum(frame.sid == "3" for frame in far.inbox) == 50
        assert sum(frame.sid == "2" for frame in far.inbox) == 0


@pytest.mark.parametrize("kind", ["gnatswarm-1", "nats-server"])
async def test_a_member_that_stops_is_found_by_pings_and_comes_back(start: Start, net: Net, kind: str) -> None:
    here = start("gnatswarm-2", cluster_config("here", inner=PINGS))
    debug = "debug: true" if kind.startswith("gnat") else ""
    there = start(kind, cluster_config("there", (route_port(here),), inner=pings_of(kind), more=debug))
    await until(lambda: is_meshed([here, there]))
    near, far = clients = await net.clients([here, there])
    await subscribed(near, "answers.> 9")
    await subscribed(far, "before 1")
    await all_know(clients)
    stopped = _gateway(there) if kind.startswith("gnat") else there.pid
    os.kill(stopped, signal.SIGSTOP)
    try:
        await asyncio.to_thread(here.log.wait_line, CLOSED, 20.0)
        await has_no_responders(near, "before")
    finally:
        os.kill(stopped, signal.SIGCONT)
    await until(lambda: is_meshed([here, there]))
    await all_know(clients)
    near.inbox.clear()
    await near.send("PUB before 1\r\nx\r\n" * 20)
    await settled(clients)
    assert sum(frame.sid == "1" for frame in far.inbox) == 20


def _gateway(broker: Broker, since: int = 0) -> int:
    """The pid of the first one that this line of the log, or a later one, names."""
    return int(broker.log.wait_line(r"Gateway is process (\d+)", start=since)[1])


def _restarting(broker: Broker) -> asyncio.Task[Any]:
    """`gnatswarm restart`, on its way; its result has the error."""
    return asyncio.create_task(
        asyncio.to_thread(exchange, find(broker.pid, broker.port), RestartRequest(), 60.0, lambda _: None)
    )


async def _told(route: RawRoute, line: str) -> None:
    """Returns when the other end has told this."""
    async with asyncio.timeout(20):
        while not any(told == line for told, _ in await route.talk()):
            pass


async def _numbered(publisher: Client, subject: str, is_over: Callable[[], bool]) -> int:
    """Publishes 0, 1, … until it is over; how many."""
    number = 0
    while not is_over():
        lines = [f"PUB {subject} {len(str(n))}\r\n{n}\r\n" for n in range(number, number + 50)]
        await publisher.send("".join(lines))
        await publisher.flush(20)
        number += 50
    return number


@pytest.mark.parametrize(("kind", "fault"), [("gnatswarm-2", "gateway killed"), ("nats-server", "route cut")])
async def test_under_load_messages_may_be_lost_but_not_doubled_or_reordered(
    start: Start, net: Net, kind: str, fault: str
) -> None:
    here = start("gnatswarm-2", cluster_config("here", more="debug: true"))
    async with Pipe(route_port(here)) as pipe:
        there = start(kind, cluster_config("there", (pipe.port,)))
        await until(lambda: is_meshed([here, there]))
        near, far, near_too, far_too = clients = await net.clients([here, there, here, there])
        await subscribed(near_too, "to.here 1")
        await subscribed(far_too, "to.there 1")
        await all_know(clients)
        is_over = False
        publishing = [
            asyncio.create_task(_numbered(near, "to.there", lambda: is_over)),
            asyncio.create_task(_numbered(far, "to.here", lambda: is_over)),
        ]
        for client in (near_too, far_too):
            while len(client.inbox) < 100:
                await client.flush(20)
        lines = len(here.log.lines)
        if fault == "gateway killed":
            os.kill(_gateway(here), signal.SIGKILL)
        else:
            pipe.cut()
        await asyncio.to_thread(here.log.wait_line, CREATED, 20.0, lines)
        await know(near_too, far_too)
        await know(far_too, near_too)
        is_over = True
        counts = await asyncio.gather(*publishing)
        await settled(clients)
        for client, count in ((far_too, counts[0]), (near_too, counts[1])):
            got = [int(frame.payload) for frame in client.inbox if frame.sid == "1" and frame.payload]
            assert got == sorted(set(got))
            assert got[-1] == count - 1  # it goes on to the end
            assert got[:100] == list(range(got[0], got[0] + 100))


async def queued(route: RawRoute, said: str = "") -> list[str]:
    """Say this: the lines of the messages that came before the answer to a PING."""
    return [line for line, _ in await route.talk(said) if line.startswith("RMSG")]


async def test_a_queue_message_without_a_member_here_goes_to_another_member(start: Start, net: Net) -> None:
    """Its server did not know yet that the last one here has gone. It may come back to that server."""
    here = start("gnatswarm-2", cluster_config("here"))
    port = route_port(here)
    sender, one, other = members = [await RawRoute.dial(port, name) for name in ("SENDER", "ONE", "OTHER")]
    for member in (sender, one):
        await queued(member, "RS+ $G work group 1\r\n")
    await queued(other, "RS+ $G work rest 1\r\nRS+ $G work.* \r\n")
    message = "RMSG $G work | group rest nobody 1\r\nx\r\nRMSG $G work + re.ply group 1\r\nx\r\n"
    back = [line for _ in range(10) for line in await queued(sender, message)]
    on = await queued(one)
    assert back and on
    assert sorted(back + on) == sorted(["RMSG $G work | group 1", "RMSG $G work + re.ply group 1"] * 10)
    assert await queued(other) == ["RMSG $G work | rest 1"] * 10
    # Who has a member here sends nothing on.
    client = await net.client(here)
    await subscribed(client, "work group 1")
    assert await queued(sender, message) == []
    assert len(await arrived(client, 2)) == 2
    assert await queued(one) == []
    await client.talk("UNSUB 1\r\nPING\r\n", expect_last="PONG\r\n")
    await queued(one, "RS- $G work group\r\n")
    assert await queued(sender, message) == ["RMSG $G work | group 1", "RMSG $G work + re.ply group 1"]
    assert await queued(one) == []
    await queued(sender, "RS- $G work group\r\n")
    assert await queued(sender, message) == []
    for member in members:
        member.close()


async def test_a_restart_takes_what_other_servers_have_sent_until_they_close(start: Start, net: Net) -> None:
    """The old gateway says that nothing more comes, and reads on; the next one connects when it has ended."""
    here = start("gnatswarm-2", cluster_config("here"))
    route = await RawRoute.dial(route_port(here), "raw")
    await route.talk("RS+ $G out\r\n")
    [client] = await net.clients([here])
    await subscribed(client, "in 1")
    async with asyncio.timeout(20):
        while not any(line == "RS+ $G in" for line, _ in await route.talk()):
            pass
        while not any(line.startswith("RMSG $G out ") for line, _ in await route.talk()):
            await client.send("PUB out 0\r\n\r\n")
            await client.flush()
    restart = _restarting(here)
    await route.ended()
    route.write("RMSG $G in 5\r\nlate1\r\nRMSG $G in 5\r\nlate2\r\n")
    route.close()
    assert not (await restart).error
    assert [frame.payload for frame in await client.messages(2, 20)] == [b"late1", b"late2"]


MANY, BODY = 400, b"y" * 20_000  # more than fits into the kernel's buffers, of which the reader's is small


async def publish(here: Broker, net: Net) -> None:
    """More than a member that does not read can take."""
    client = await net.client(here)
    await client.send(b"PUB out %d\r\n%b\r\n" % (len(BODY), BODY) * MANY)
    await client.flush()


async def with_much_to_read(here: Broker, net: Net) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    """A member for which more waits than it has been able to take."""
    sock = socket.socket()
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1 << 18)
    sock.connect(("127.0.0.1", route_port(here)))
    reader, writer = await asyncio.open_connection(sock=sock, limit=1 << 18)
    writer.write(f"{connect('raw')}{hello('raw')}RS+ $G out\r\nPING\r\n".encode())
    await reader.readuntil(b"PONG\r\n")
    await publish(here, net)
    return reader, writer


@pytest.mark.parametrize("kind", ["gnatswarm-2", "nats-server", "nats-server-2.15"])
async def test_a_member_that_says_nothing_more_is_sent_what_waits_for_it(start: Start, net: Net, kind: str) -> None:
    """As a gateway that is replaced: what others have queued for it is on its way, too."""
    here = start(kind, cluster_config("here"))
    reader, writer = await with_much_to_read(here, net)
    writer.write_eof()
    assert (await reader.read(-1)).count(BODY) == MANY
    await until(lambda: page(here, "/routez")["num_routes"] == 0)
    writer.close()


@pytest.mark.parametrize("kind", ["gnatswarm-2", "nats-server", "nats-server-2.15"])
async def test_a_broker_that_stops_sends_members_what_waits_for_them(start: Start, net: Net, kind: str) -> None:
    """A gnatswarm also reads what they say meanwhile: bytes that nobody has read take back what is on its way."""
    here = start(kind, cluster_config("here"))
    reader, writer = await with_much_to_read(here, net)
    here.send_signal(signal.SIGTERM)
    heard = bytearray()
    while data := await reader.read(1 << 18):  # (it has a second)
        if kind == "gnatswarm-2":
            writer.write(b"RMSG $G nobody 1\r\nx\r\n")
        heard += data
    assert heard.count(BODY) == MANY
    writer.close()


async def test_a_member_behind_tls_that_says_nothing_more_is_sent_what_waits_for_it(
    start: Start, net: Net, tmp_path: Path
) -> None:
    """It says close_notify, and reads on."""
    authority = Authority(tmp_path)
    tls = f"tls {{ {authority.member().lines}, ca_file: '{authority.path}', timeout: 5 }}"
    here = start("gnatswarm-2", cluster_config("here", inner=tls))
    member = Encrypted(route_port(here), authority.client_context(authority.member()))
    member.say(f"{connect('raw')}{hello('raw')}RS+ $G out\r\nPING\r\n".encode())
    member.read_until(b"PONG\r\n")
    await publish(here, net)
    member.end()
    heard = await asyncio.to_thread(member.read_until, b"")
    assert heard.count(BODY) == MANY
    member.sock.close()


class Encrypted:
    """A connection behind TLS that can say its end, and read on, as those of `ssl` cannot."""

    def __init__(self, port: int, context: ssl.SSLContext) -> None:
        self.sock = socket.create_connection(("127.0.0.1", port), DEADLINE_S)
        self._incoming, self._outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        self._tls = context.wrap_bio(self._incoming, self._outgoing, server_hostname="127.0.0.1")
        self._do(self._tls.do_handshake)

    def _do(self, step: Callable[[], object]) -> object:
        while True:
            try:
                return step()
            except ssl.SSLWantReadError:
                self.sock.sendall(self._outgoing.read())
                data = self.sock.recv(1 << 16)
                assert data, "it closed the connection without close_notify"
                self._incoming.write(data)
            finally:
                self.sock.sendall(self._outgoing.read())

    def say(self, data: bytes) -> None:
        self._do(lambda: self._tls.write(data))

    def end(self) -> None:
        with contextlib.suppress(ssl.SSLWantReadError):
            self._tls.unwrap()
        self.sock.sendall(self._outgoing.read())

    def read_until(self, last: bytes) -> bytes:
        """What comes up to this; b"": up to the end."""
        found = bytearray()
        with contextlib.suppress(ssl.SSLZeroReturnError):
            while not last or not found.endswith(last):
                data = self._do(lambda: self._tls.read(1 << 16))
                assert isinstance(data, bytes)
                if not data:
                    break
                found += data
        return bytes(found)


async def test_who_asks_for_a_pong_while_the_gateway_ends_loses_nothing_of_other_servers(
    start: Start, net: Net
) -> None:
    """The gateway asked the other server, behind the end that it had closed: the kernel then ended the connection."""
    here = start("gnatswarm-2", cluster_config("here", more="fence: cluster"))
    route = await RawRoute.dial(route_port(here), "raw")
    await route.talk("RS+ $G out\r\n")
    [client] = await net.clients([here])
    await client.send("SUB in 1\r\n")
    await _told(route, "RS+ $G in")
    restart = _restarting(here)
    heard: list[str] = []

    async def hear_out() -> None:
        with contextlib.suppress(EOFError):
            while True:
                heard.append((await route.frame())[0])

    end = asyncio.create_task(hear_out())
    while not end.done():  # of the last ones the gateway does not know whether they have come
        await client.send("PUB out 0\r\n\r\n")
        await asyncio.wait([end], timeout=0.002)
    assert any(line.startswith("RMSG $G out ") for line in heard)
    await client.send("PING\r\n")
    for number in range(10):
        route.write(f"RMSG $G in 2\r\n{number:02}\r\n")
        [frame] = await client.messages(1, 20)
        assert frame.payload == b"%02d" % number
    route.close()
    assert not (await restart).error
    await client.flush(20)


async def test_a_member_of_a_group_that_leaves_while_the_gateway_ends_takes_what_others_send(
    start: Start, net: Net
) -> None:
    """The other server is told nothing any more: it takes the member to be there until it closes."""
    here = start("gnatswarm-2", cluster_config("here"))
    route = await RawRoute.dial(route_port(here), "raw")
    [client] = await net.clients([here])
    await subscribed(client, "in group 1", "left 2")
    await _told(route, "RS+ $G in group 1")
    restart = _restarting(here)
    await route.ended()
    await client.send("UNSUB 1\r\nPUB left 0\r\n\r\n")
    assert (await client.messages(1, 20))[0].subject == "left"
    for number in range(3):
        route.write(f"RMSG $G in | group 2\r\n{number:02}\r\n")
        [frame] = await client.messages(1, 20)
        assert frame.payload == b"%02d" % number
    route.close()
    assert not (await restart).error


@pytest.mark.parametrize("fault", ["killed", "restarted"])
async def test_the_next_gateway_dials_who_had_dialled_the_one_before(start: Start, net: Net, fault: str) -> None:
    """A nats-server tries again only after a second. Clients hear nothing of it."""
    here = start("gnatswarm-2", cluster_config("here", more="debug: true"))
    dialled: asyncio.Queue[tuple[asyncio.StreamReader, asyncio.StreamWriter]] = asyncio.Queue()
    listener = await asyncio.start_server(lambda *streams: dialled.put_nowait(streams), "127.0.0.1", 0)
    info = {"port": listener.sockets[0].getsockname()[1], "connect_urls": ["198.51.100.1:4222"]}
    before = [
        await RawRoute.dial(route_port(here), "one", **info),
        await RawRoute.dial(route_port(here), "odd", port=7000, ip="nats-route://[:99999/"),
    ]
    for route in before:
        await route.talk()
    client = await net.client(here)
    async with asyncio.timeout(20):
        while "198.51.100.1:4222" not in client.info.get("connect_urls", []):
            client = await net.client(here)
    if fault == "killed":
        lines = len(here.log.lines)
        os.kill(_gateway(here), signal.SIGKILL)
        await asyncio.wait_for(dialled.get(), 20)
        os.kill(_gateway(here, lines), signal.SIGKILL)  # before that one has an answer
    else:
        restarting = _restarting(here)
        await _closed_when_told(before[0])
        clock = asyncio.get_running_loop().time
        until_s = clock() + 0.2  # it could be said meanwhile: the gateway waits for the other one
        while clock() < until_s:
            assert [frame for frame in await client.flush() if frame.verb == "INFO"] == []
        await _closed_when_told(before[1])
        assert not (await restarting).error
    again = RawRoute(*await asyncio.wait_for(dialled.get(), 20), "one")
    again.write(hello("one", **info))
    await again.talk()
    assert page(here, "/routez")["num_routes"] == 1
    assert [frame for frame in await client.flush() if frame.verb == "INFO"] == []
    again.close()
    listener.close()


async def _closed_when_told(route: RawRoute) -> None:
    await route.ended()
    route.close()


async def test_a_restart_loses_no_message_of_a_group_with_members_on_both_sides(start: Start, net: Net) -> None:
    here = start("gnatswarm-2", cluster_config("here"))
    there = start("gnatswarm-2", cluster_config("there", (route_port(here),)))
    await until(lambda: is_meshed([here, there]))
    members, publishers = await net.clients([here, there]), await net.clients([here, there])
    for member in members:
        await subscribed(member, "work.* group 1")
    await all_know([*members, *publishers])
    restart = _restarting(here)
    sent = 0
    got: Counter[bytes] = Counter()
    while not restart.done():
        for who, publisher in enumerate(publishers):
            lines = [f"PUB work.{who} 9\r\n{who}{number:08}\r\n" for number in range(sent, sent + 500)]
            await publisher.send("".join(lines))
        sent += 500
        for client in (*publishers, *members):
            await client.flush(20)
        for member in members:
            got.update(frame.payload for frame in member.inbox)
            member.inbox.clear()
    assert not (await restart).error
    await until(lambda: is_meshed([here, there]))
    await settled([*members, *publishers])
    for member in members:
        got.update(frame.payload for frame in member.inbox if frame.subject.startswith("work."))
    wanted = {b"%d%08d" % (who, number) for who in (0, 1) for number in range(sent)}
    assert got == Counter(wanted)


@pytest.mark.parametrize("kind", ["gnatswarm-2", "nats-server"])
@pytest.mark.parametrize("whose", ["asker's", "responder's"])
async def test_an_answer_that_is_due_comes_also_over_a_new_connection(
    start: Start, net: Net, kind: str, whose: str
) -> None:
    """Other servers are told where answers to requests between accounts go; a new gateway, or route, tells it again."""
    asked = start(kind, cluster_config("there", more=f"{ACCOUNTS}\ndebug: true"))
    asking = start("gnatswarm-2", cluster_config("here", (route_port(asked),), more=f"{ACCOUNTS}\ndebug: true"))
    await until(lambda: is_meshed([asking, asked]))
    responder, asker = await net.client(asked, "e"), await net.client(asking, "i")
    await subscribed(responder, "svc 1")
    await subscribed(asker, "inbox.* 1")
    await all_know([responder, await net.client(asking, "e")])
    await asker.send("PUB svc inbox.1 1\r\nx\r\n")
    (request,) = await responder.messages(1, 20)
    lines = len(asking.log.lines)
    if whose == "asker's" or kind == "nats-server":
        os.kill(_gateway(asking), signal.SIGKILL)
    else:
        os.kill(_gateway(asked), signal.SIGKILL)
    await asyncio.to_thread(asking.log.wait_line, CREATED, 20.0, lines)
    await until(lambda: is_meshed([asking, asked]))
    await all_know([responder, await net.client(asking, "e")])
    await responder.send(f"PUB {request.reply} 1\r\ny\r\n")
    (answer,) = await asker.messages(1, 20)
    assert (answer.subject, answer.payload) == ("inbox.1", b"y")
