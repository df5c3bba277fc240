"""The official Python client, unchanged."""

from __future__ import annotations

import asyncio
import contextlib
import re
import uuid

import nats
import nats.errors
import nats.js.errors
import pytest

from tests.support.ports import free_port

DEADLINE_S = 30.0


@contextlib.asynccontextmanager
async def connected(broker, **options):
    """A client that fails the test when it meets an error nobody expected."""
    errors: list[Exception] = []

    async def on_error(error: Exception) -> None:
        errors.append(error)

    options = {"error_cb": on_error, "connect_timeout": DEADLINE_S, **options}
    client = await nats.connect(broker.url, **options)
    try:
        yield client
    finally:
        if not client.is_closed:
            await client.close()
    if options["error_cb"] is on_error:
        assert errors == []


class Event(asyncio.Event):
    """An event whose `tell` can be given to the client as a callback."""

    arguments: tuple[Exception, ...] = ()

    async def tell(self, *arguments) -> None:
        self.arguments = arguments
        self.set()

    async def wait_for(self, deadline_s: float = DEADLINE_S) -> None:
        await asyncio.wait_for(self.wait(), deadline_s)


@pytest.fixture
def subject() -> str:
    return f"nats-py.{uuid.uuid4().hex}"


async def settle(client, deadline_s: float = DEADLINE_S) -> None:
    """Wait until the broker has seen all that `client` was told to send.

    Twice: nats-py's flush() writes its PING past a SUB that waits for the client's own flusher task, so that the first
    PONG may come before the SUB was read; the second PING is behind it.
    """
    await client.flush(timeout=deadline_s)
    await client.flush(timeout=deadline_s)


async def received(subscription, count: int) -> list[bytes]:
    return [(await subscription.next_msg(timeout=DEADLINE_S)).data for _ in range(count)]


async def test_connects_and_reads_what_the_broker_offers(broker):
    async with connected(broker) as client:
        assert client.is_connected
        assert client.max_payload == 1_048_576
        assert client.client_id > 0
        assert (client.connected_server_version.major, client.connected_server_version.minor) >= (2, 9)


async def test_publishes_and_subscribes(broker, subject):
    async with connected(broker) as one, connected(broker) as other:
        subscription = await one.subscribe(subject)
        await settle(one)
        await other.publish(subject, b"hello")
        message = await subscription.next_msg(timeout=DEADLINE_S)
        assert (message.subject, message.data, message.reply) == (subject, b"hello", "")


async def test_calls_back_in_order(broker, subject):
    got, done = [], asyncio.Event()

    async def on_message(message) -> None:
        got.append(int(message.data))
        if len(got) == 5_000:
            done.set()

    async with connected(broker) as one, connected(broker) as other:
        await one.subscribe(f"{subject}.*", cb=on_message)
        await settle(one)
        for number in range(5_000):
            await other.publish(f"{subject}.{number % 7}", str(number).encode())
        await asyncio.wait_for(done.wait(), 20)
    assert got == list(range(5_000))


async def test_subscribes_with_wildcards(broker, subject):
    async with connected(broker) as client:
        star = await client.subscribe(f"{subject}.*.c")
        full = await client.subscribe(f"{subject}.>")
        await client.publish(f"{subject}.b.c", b"1")
        await client.publish(f"{subject}.b.d", b"2")
        await client.publish(subject, b"3")
        await client.publish(f"{subject}.x.c", b"4")
        assert await received(star, 2) == [b"1", b"4"]
        assert await received(full, 3) == [b"1", b"2", b"4"]


async def test_queue_group_members_share_the_messages(broker, subject):
    got: list[tuple[int, bytes]] = []
    done = asyncio.Event()

    async with contextlib.AsyncExitStack() as stack:
        for member in range(4):

            async def on_message(message, member=member) -> None:
                got.append((member, message.data))
                if len(got) == 400:
                    done.set()

            client = await stack.enter_async_context(connected(broker))
            await client.subscribe(subject, queue="workers", cb=on_message)
            await settle(client)
        publisher = await stack.enter_async_context(connected(broker))
        for number in range(400):
            await publisher.publish(subject, str(number).encode())
        await asyncio.wait_for(done.wait(), DEADLINE_S)
        await settle(publisher)
    assert sorted(int(data) for _, data in got) == list(range(400))
    assert {member for member, _ in got} == {0, 1, 2, 3}


@pytest.mark.parametrize("old_style", [False, True])
async def test_requests_and_replies(broker, subject, old_style):
    async def on_request(message) -> None:
        await message.respond(message.data + b"!")

    async with connected(broker) as service, connected(broker) as client:
        await service.subscribe(subject, cb=on_request)
        await settle(service)
        for number in range(50):
            answer = await client.request(subject, str(number).encode(), timeout=DEADLINE_S, old_style=old_style)
            assert answer.data == f"{number}!".encode()


async def test_many_requests_at_once(broker, subject):
    async def on_request(message) -> None:
        await message.respond(message.data)

    async with connected(broker) as service, connected(broker) as client:
        await service.subscribe(subject, queue="q", cb=on_request)
        await settle(service)
        answers = await asyncio.gather(
            *(client.request(subject, str(number).encode(), timeout=DEADLINE_S) for number in range(200))
        )
        assert [int(answer.data) for answer in answers] == list(range(200))


@pytest.mark.parametrize("old_style", [False, True])
async def test_request_to_nobody_says_no_responders_at_once(broker, subject, old_style):
    async with connected(broker) as client:
        with pytest.raises(nats.errors.NoRespondersError):
            await client.request(subject, b"", timeout=60, old_style=old_style)


async def test_request_that_nobody_answers_times_out(broker, subject):
    async with connected(broker) as client:
        await client.subscribe(subject)
        with pytest.raises(nats.errors.TimeoutError):
            await client.request(subject, b"", timeout=0.05)


async def test_headers_travel(broker, subject):
    async with connected(broker) as client:
        subscription = await client.subscribe(subject)
        await client.publish(subject, b"x", headers={"Trace": "ü-1", "Empty": ""})
        message = await subscription.next_msg(timeout=DEADLINE_S)
        assert message.data == b"x"
        assert message.headers is not None
        assert message.headers["Trace"] == "ü-1"


async def test_headers_travel_in_a_request(broker, subject):
    async def on_request(message) -> None:
        await service.publish(message.reply, b"", headers={"Seen": message.headers["Ask"]})

    async with connected(broker) as service, connected(broker) as client:
        await service.subscribe(subject, cb=on_request)
        await settle(service)
        answer = await client.request(subject, b"", timeout=DEADLINE_S, headers={"Ask": "42"})
        assert answer.headers == {"Seen": "42"}


async def test_after_a_flush_everybody_sees_the_subscription(broker, subject):
    async with connected(broker) as one, connected(broker) as other:
        for number in range(50):
            subscription = await one.subscribe(f"{subject}.{number}")
            await settle(one, DEADLINE_S)
            await other.publish(f"{subject}.{number}", b"x")
            assert (await subscription.next_msg(timeout=DEADLINE_S)).data == b"x"


async def test_unsubscribe_after_a_number_of_messages(broker, subject):
    async with connected(broker) as client:
        subscription = await client.subscribe(subject)
        after = await client.subscribe(subject)
        await subscription.unsubscribe(limit=3)
        for number in range(5):
            await client.publish(subject, str(number).encode())
        assert await received(after, 5) == [b"0", b"1", b"2", b"3", b"4"]
        assert await received(subscription, 3) == [b"0", b"1", b"2"]
        assert subscription.pending_msgs == 0


async def test_unsubscribe_ends_it(broker, subject):
    async with connected(broker) as client:
        got: list[bytes] = []

        async def on_message(message) -> None:
            got.append(message.data)

        subscription = await client.subscribe(subject, cb=on_message)
        await subscription.unsubscribe()
        after = await client.subscribe(subject)
        await client.publish(subject, b"x")
        assert await received(after, 1) == [b"x"]
        assert got == []


async def test_drain_delivers_what_is_on_its_way_and_closes(broker, subject):
    got: list[bytes] = []

    async def on_message(message) -> None:
        await asyncio.sleep(0)
        got.append(message.data)

    async with connected(broker) as one, connected(broker) as other:
        await one.subscribe(subject, cb=on_message)
        await settle(one)
        for number in range(200):
            await other.publish(subject, str(number).encode())
        await settle(other)
        await asyncio.wait_for(one.drain(), DEADLINE_S)
        assert one.is_closed
    assert [int(data) for data in got] == list(range(200))


async def test_a_thousand_subscriptions(broker, subject):
    async with connected(broker) as client, connected(broker) as other:
        subscriptions = [await client.subscribe(f"{subject}.{number}") for number in range(1_000)]
        await settle(client, DEADLINE_S)
        for number in range(1_000):
            await other.publish(f"{subject}.{number}", str(number).encode())
        for number, subscription in enumerate(subscriptions):
            assert (await subscription.next_msg(timeout=DEADLINE_S)).data == str(number).encode()
        for subscription in subscriptions:
            await subscription.unsubscribe()
        await settle(client, DEADLINE_S)
        with pytest.raises(nats.errors.NoRespondersError):
            await other.request(f"{subject}.7", b"", timeout=DEADLINE_S)


async def test_a_payload_over_the_maximum_is_refused_by_the_broker(broker, subject):
    error, closed = Event(), Event()
    async with connected(broker, allow_reconnect=False, error_cb=error.tell, closed_cb=closed.tell) as client:
        with pytest.raises(nats.errors.MaxPayloadError):
            await client.publish(subject, b"x" * (client.max_payload + 1))
        # The client checks by itself; make it believe that there is no limit, to hear what the broker says.
        client._max_payload = 1 << 30
        await client.publish(subject, b"x" * (1_048_576 + 1))
        await closed.wait_for()
        assert "maximum payload violation" in str(client.last_error).lower()


async def test_a_payload_of_eight_mebibytes_with_a_raised_limit(start_broker, subject):
    broker = start_broker(config="max_payload: 8MB\n")
    async with connected(broker) as one, connected(broker) as other:
        assert one.max_payload == 8 * 1_048_576
        subscription = await one.subscribe(subject, pending_bytes_limit=1 << 26)
        await settle(one)
        payload = bytes(range(256)) * (8 * 1_048_576 // 256)
        await other.publish(subject, payload)
        await settle(other, 20)
        message = await subscription.next_msg(timeout=20)
        assert message.data == payload


async def test_reconnects_to_a_restarted_broker_and_subscribes_again(start_broker, subject):
    broker = start_broker(port=free_port())
    disconnected, reconnected = Event(), Event()
    async with connected(
        broker,
        disconnected_cb=disconnected.tell,
        reconnected_cb=reconnected.tell,
        reconnect_time_wait=0.05,
        max_reconnect_attempts=-1,
        error_cb=Event().tell,
    ) as client:
        subscription = await client.subscribe(subject)
        await settle(client)
        broker.stop()
        await disconnected.wait_for()
        start_broker(port=broker.port)
        await reconnected.wait_for(20)
        async with connected(broker) as other:
            await settle(client)
            await other.publish(subject, b"again")
            assert await received(subscription, 1) == [b"again"]


async def test_authenticates_with_user_and_password(start_broker, subject):
    broker = start_broker(args=["--user", "derek", "--pass", "pa55"])
    async with connected(broker, user="derek", password="pa55") as client:
        subscription = await client.subscribe(subject)
        await client.publish(subject, b"x")
        assert await received(subscription, 1) == [b"x"]
    with pytest.raises(nats.errors.Error, match=r"(?i)authorization violation"):
        await nats.connect(
            broker.url,
            user="derek",
            password="wrong",
            allow_reconnect=False,
            max_reconnect_attempts=1,
            error_cb=Event().tell,
        )


async def test_authenticates_with_a_token(start_broker, subject):
    broker = start_broker(args=["--auth", "s3cret"])
    async with connected(broker, token="s3cret") as client:
        await settle(client)


async def test_a_permission_violation_is_told_and_the_connection_stays(start_broker, subject):
    broker = start_broker(
        config="""
        authorization {
          users = [ {user: a, password: a, permissions: {publish: "ok.>", subscribe: ["ok.>", "_INBOX.>"]}} ]
        }
        """
    )
    error = Event()
    async with connected(broker, user="a", password="a", error_cb=error.tell) as client:
        await client.publish("other", b"")
        await settle(client)
        await error.wait_for()
        assert "permissions violation for publish to" in str(error.arguments[0]).lower()
        subscription = await client.subscribe("ok.x")
        await client.publish("ok.x", b"y")
        assert await received(subscription, 1) == [b"y"]


async def test_a_client_that_stops_reading_is_closed_and_comes_back(start_broker, subject):
    broker = start_broker(config='max_pending: 2MB\nwrite_deadline: "2s"\n')
    disconnected, reconnected = Event(), Event()
    async with (
        connected(
            broker,
            disconnected_cb=disconnected.tell,
            reconnected_cb=reconnected.tell,
            reconnect_time_wait=0.05,
            error_cb=Event().tell,
        ) as slow,
        connected(broker) as other,
    ):
        await slow.subscribe(subject)
        await settle(slow)
        reading = slow._transport._io_reader._transport
        reading.pause_reading()
        payload = b"x" * 65_536
        for _ in range(64 * 16):
            await other.publish(subject, payload)
        await settle(other, 30)
        found = await asyncio.to_thread(broker.log.wait_line, "Slow Consumer", 20.0)
        assert re.search("Slow Consumer", found.string)
        reading.resume_reading()
        await disconnected.wait_for(20)
        await reconnected.wait_for(20)
        again = await slow.subscribe(f"{subject}.again")
        await settle(slow)
        await other.publish(f"{subject}.again", b"y")
        assert await received(again, 1) == [b"y"]


async def test_jetstream_is_not_offered(broker):
    """The real server without -js answers the same way."""
    async with connected(broker) as client:
        with pytest.raises(
            (nats.js.errors.ServiceUnavailableError, nats.js.errors.NoStreamResponseError, nats.errors.Error)
        ):
            await client.jetstream(timeout=DEADLINE_S).account_info()


ACCOUNTS = """
accounts {
  A { users: [ {user: a, password: x} ], exports: [ {service: "quote.>"}, {stream: "prices.>"} ] }
  B { users: [ {user: b, password: x}, {user: b2, password: x} ]
      imports: [ {service: {account: A, subject: "quote.*"}, to: "ask.*"},
                 {stream: {account: A, subject: "prices.>"}, prefix: "from.A"} ] }
}
"""


@pytest.mark.kinds("gnatswarm-1", "gnatswarm-2", "nats-server")
async def test_accounts_serve_and_hear_each_other(start_broker):
    broker = start_broker(config=ACCOUNTS)

    async def answer(request) -> None:
        await request.respond(request.subject.encode() + b" costs 5")

    async with contextlib.AsyncExitStack() as stack:
        # several of each: some pairs are on different shards
        sellers = [await stack.enter_async_context(connected(broker, user="a", password="x")) for _ in range(3)]
        buyers = [await stack.enter_async_context(connected(broker, user="b", password="x")) for _ in range(3)]
        for seller in sellers:
            await seller.subscribe("quote.>", queue="sellers", cb=answer)
            await settle(seller)
        heard = [await buyer.subscribe("from.A.prices.*") for buyer in buyers]
        for buyer in buyers:
            await settle(buyer)
        answers = await asyncio.gather(*(buyer.request("ask.tea", b"", timeout=DEADLINE_S) for buyer in buyers * 20))
        assert {reply.data for reply in answers} == {b"quote.tea costs 5"}
        for number, seller in enumerate(sellers):
            await seller.publish("prices.tea", str(number).encode())
            await settle(seller)
        for subscription in heard:
            messages = [await subscription.next_msg(DEADLINE_S) for _ in sellers]
            assert [(message.subject, message.data) for message in messages] == [
                ("from.A.prices.tea", str(number).encode()) for number in range(3)
            ]
