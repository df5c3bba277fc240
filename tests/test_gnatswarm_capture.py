"""A capture shows what was published: all that anybody had flushed, in order, and nothing else."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import math
import os
import signal
import socket
import ssl
import threading
import warnings
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import nats
import pytest

import gnatswarm
from gnatswarm.capture import Capture, Login, near_misses
from tests.support.authority import Authority
from tests.support.servers import KINDS, Broker, wait_until


@pytest.fixture(scope="module")
def broker() -> Iterator[gnatswarm.BrokerProcess]:
    with gnatswarm.BrokerProcess(shards=2) as broker:
        yield broker


async def flushed(client: Any) -> None:
    """Twice: the client's first PING may overtake what waits for its flusher."""
    await client.flush()
    await client.flush()


async def test_shows_what_was_flushed_without_waiting(broker):
    captured = broker.capture("orders.>")
    async with await nats.connect(broker.url) as client:
        for number in range(1000):
            await client.publish(f"orders.{number % 3}", str(number).encode())
        await flushed(client)
        await captured.asettle()
        assert captured.payloads == [str(number).encode() for number in range(1000)]
        assert captured.subjects[:4] == ["orders.0", "orders.1", "orders.2", "orders.0"]
        await client.publish("other", b"x")
        await flushed(client)
        await captured.asettle()
        assert len(captured) == 1000  # and nothing else was published
        assert (captured[0].data, captured[-1].data, [one.data for one in captured][1]) == (b"0", b"999", b"1")
    await captured.aclose()


async def test_reading_it_does_no_input_or_output(broker, monkeypatch: pytest.MonkeyPatch):
    async with await broker.acapture("a") as captured:
        async with await nats.connect(broker.url) as client:
            await client.publish("a", b"1")
            await flushed(client)
        await captured.asettle()

        def refused(*_: object) -> None:
            raise AssertionError("reading talked to the broker, or waited for it")

        with monkeypatch.context() as patch:
            for name in ("settle", "asettle", "_until", "_has_passed"):
                patch.setattr(captured, name, refused)
            patch.setattr(captured._connection, "send", refused)
            assert (captured.payloads, captured.subjects, len(captured), bool(captured)) == ([b"1"], ["a"], 1, True)
            assert [message.data for message in captured] == [captured[0].data] == [captured.messages[0].data]
            captured.clear()
            assert captured.messages == []
    assert captured.messages == []  # and when it is closed


async def test_a_message_has_its_reply_and_headers(broker):
    with broker.capture("a") as captured:
        async with await nats.connect(broker.url) as client:
            await client.publish("a", b'{"n": 1}', reply="back", headers={"Kind": "test", "Other": "ü"})
            await client.publish("a")
            await flushed(client)
        await captured.asettle()
        first, second = captured.messages
        assert (first.json, first.reply, first.headers) == ({"n": 1}, "back", {"Kind": ["test"], "Other": ["ü"]})
        assert (second.data, second.reply, second.headers) == (b"", "", {})


async def test_large_messages_come_whole(broker):
    payload = bytes(range(256)) * 2048
    with broker.capture("big") as captured:
        async with await nats.connect(broker.url) as client:
            for _ in range(5):
                await client.publish("big", payload)
            # Not flush(): nats-py writes its PING past what waits until the socket takes more.
            assert [message.data for message in await captured.areceive(5)] == [payload] * 5


async def test_waits_for_what_comes_later(broker):
    with broker.capture("later") as captured:
        client = await nats.connect(broker.url)
        waiting = asyncio.create_task(captured.areceive(2))
        await client.publish("later", b"1")
        await client.publish("later", b"2")
        assert [message.data for message in await waiting] == [b"1", b"2"]
        await client.close()


async def test_waiting_in_vain_says_what_came(broker):
    with broker.capture("vain.*") as captured:
        async with await nats.connect(broker.url) as client:
            await client.publish("vain.a", b"something")
        await captured.areceive(1)
        with pytest.raises(TimeoutError, match=r"1 of 2 messages on vain.\* within 0.2 s: vain.a b'something'"):
            await captured.areceive(2, deadline_s=0.2)


@pytest.fixture(params=["process", "embedded"])
def any_broker(request: pytest.FixtureRequest, broker: gnatswarm.BrokerProcess) -> Iterator[gnatswarm.AnyBroker]:
    if request.param == "process":
        yield broker
    else:
        with gnatswarm.Broker() as embedded:
            yield embedded


async def test_waiting_in_vain_ends_though_the_loop_has_no_thread_left(broker):
    """As where each of them waits for the same message."""
    captured = await broker.acapture("a")
    asyncio.get_running_loop().set_default_executor(ThreadPoolExecutor(1))
    may_end = threading.Event()
    waiting = asyncio.create_task(asyncio.to_thread(may_end.wait, 60))
    try:
        with pytest.raises(TimeoutError, match="0 of 1 messages"):
            await captured.areceive(1, deadline_s=0.01)
        assert not waiting.done()
    finally:
        may_end.set()
        await waiting
        await captured.aclose()


async def test_waiting_in_vain_says_what_was_published_instead(any_broker):
    async with await nats.connect(any_broker.url) as client:
        await client.publish("near.order.created", b"")
        await client.publish("near.order.created", b"")
        await client.publish("near.early", b"")
        await flushed(client)
        with any_broker.capture("near.orders.created") as captured, pytest.raises(TimeoutError) as error:
            await captured.areceive(1, deadline_s=0.05)
    assert "nothing; published so far: near.order.created (2)" in str(error.value)
    assert str(error.value).endswith("did you mean near.order.created?")
    published = await any_broker.apublished()
    assert (published["near.order.created"], published["near.early"]) == (2, 1)


@pytest.mark.parametrize(
    ("wanted", "published", "says"),
    [
        ("a", {}, ""),
        ("orders.>", {"order.new": 1}, "; published so far: order.new (1): did you mean order.new?"),
        ("zzz", {"order.new": 1}, "; published so far: order.new (1)"),
        ("a.*", {"a.b": 2}, "; published before this capture began, or in another account: a.b (2)"),
        ("b.>", {"b": 1}, "; published so far: b (1)"),
        ("a.*", {"a.b.c": 1, "a.b": 3}, "or in another account: a.b (3); published so far: a.b.c"),
        ("q", {f"x{i}": 1 for i in range(10)}, ", and 2 other subjects"),
    ],
)
def test_near_misses(wanted: str, published: dict[str, int], says: str):
    text = near_misses(wanted, published)
    assert says in text and ("did you mean" in text) == ("did you mean" in says)


async def test_blocking_the_loop_that_would_publish_is_refused(broker):
    with broker.capture("a") as captured, pytest.raises(RuntimeError, match=r"await captured.areceive\(3\)"):
        captured.receive(3)


def test_waits_in_a_program_without_a_loop(broker):
    with broker.capture("a") as captured, pytest.raises(TimeoutError, match=r"0 of 1 messages on a .*: nothing"):
        captured.receive(deadline_s=0.05)


async def test_forgets_when_told_to(broker):
    with broker.capture("a") as captured:
        async with await nats.connect(broker.url) as client:
            await client.publish("a", b"1")
            await flushed(client)
            await captured.asettle()
            captured.clear()
            await client.publish("a", b"2")
            await flushed(client)
        await captured.asettle()
        assert captured.payloads == [b"2"]


async def test_shares_a_queue_group(broker):
    with broker.capture("jobs", queue="w") as one, broker.capture("jobs", queue="w") as other:
        async with await nats.connect(broker.url) as client:
            for _ in range(100):
                await client.publish("jobs", b"x")
            await flushed(client)
        await one.asettle()
        await other.asettle()
        assert len(one) + len(other) == 100 and len(one) and len(other)


async def test_a_closed_one_says_so(broker):
    captured = await broker.acapture("a")
    await captured.aclose()
    with pytest.raises(gnatswarm.CaptureError, match="has been closed"):
        captured.settle()
    with pytest.raises(gnatswarm.CaptureError, match="has been closed"):
        await captured.asettle()


async def test_settling_goes_on_over_a_restart(broker):
    async with gnatswarm.BrokerProcess(shards=1) as own:
        captured = await own.acapture("a")
        await own.arestart(kill=True)
        async with await nats.connect(own.url) as client:
            await client.publish("a", b"x")
            await flushed(client)
        await captured.asettle()
        assert captured.payloads == [b"x"]


async def test_a_closed_one_is_nobody_s_business_any_more(broker):
    async with gnatswarm.BrokerProcess(shards=2) as own:
        async with await own.acapture("a"):
            pass
        kept = await own.acapture("b")
        await own.akill_shard(1)
        await own.arestart()
        async with await nats.connect(own.url) as client:
            await client.publish("b", b"x")
            await flushed(client)
        await kept.asettle()
        assert kept.payloads == [b"x"]
        assert own._captures == [kept]


def test_of_a_server_elsewhere_the_certificate_has_the_name_of_its_url(tmp_path: Path):
    """… and what TLS sends besides data stops nobody."""
    authority = Authority(tmp_path)
    pair = authority.server()
    context = ssl.create_default_context(cafile=str(authority.path))
    for kind in ("nats-server", "gnatswarm-1"):
        config = f"tls {{ cert_file: '{pair.cert}', key_file: '{pair.key}' }}"
        with Broker(KINDS[kind], config=config).start() as server:
            external = gnatswarm.ExternalBroker(f"tls://127.0.0.1:{server.port}").start()
            assert external.connect_options["tls_hostname"] == "127.0.0.1"
            with external.capture("a", tls=context) as captured:
                assert captured._login.tls_hostname == "127.0.0.1"
                captured.settle(1.5)  # a nats-server's first PING comes after two seconds
            external.stop()


async def test_a_deadline_that_never_passes_is_refused(broker):
    """One that is no number is before no time and after none: who waits by it would wait for ever."""
    captured = broker.capture("a")
    for wait in (captured.areceive, captured.asettle):
        with pytest.raises(ValueError, match="not a number"):
            await wait(deadline_s=math.nan)
    for block in (captured.receive, captured.settle):
        with pytest.raises(ValueError, match="not a number"):
            await asyncio.to_thread(block, deadline_s=math.nan)


@pytest.mark.parametrize("subject", ["", "a b", "a\r\nPUB x 0", "\udcff"])
def test_what_is_no_subject_is_refused(broker, subject: str):
    with pytest.raises(ValueError, match="not a subject"):
        broker.capture(subject)


def test_a_forked_child_leaves_it_to_its_parent():
    """Even if the thread that reads had the lock at that moment; and the child does not keep it subscribed."""
    with gnatswarm.Broker() as broker:
        captured = broker.capture("a")
        is_locked, may_go_on = threading.Event(), threading.Event()

        def lock() -> None:
            with captured._changed:
                is_locked.set()
                may_go_on.wait()

        thread = threading.Thread(target=lock)
        thread.start()
        is_locked.wait()
        reader, writer = os.pipe()
        its_reader, its_writer = os.pipe()
        child = os.fork()
        if not child:
            os.close(writer)
            signal.signal(signal.SIGALRM, signal.SIG_DFL)
            signal.alarm(30)  # or it would wait for the lock for ever
            captured.close()
            with contextlib.suppress(gnatswarm.CaptureError):
                captured.settle()
                os._exit(1)
            os.write(its_writer, f"{captured.messages} {captured.is_closed}".encode())
            os.read(reader, 1)
            os._exit(0)
        for end in (reader, its_writer):
            os.close(end)
        said = os.read(its_reader, 100)
        may_go_on.set()
        thread.join()
        captured.settle()
        captured.close()
        try:
            assert said == b"[] True"
            wait_until(lambda: broker.connections == 0)
        finally:
            os.close(writer)
            os.close(its_reader)
            os.waitpid(child, 0)


def test_the_brokers_refusal_is_in_the_error(broker):
    with (
        gnatswarm.Broker(users=[{"user": "ann", "password": "x", "permissions": {"subscribe": "b"}}]) as closed,
        pytest.raises(gnatswarm.CaptureError, match="Permissions Violation for Subscription to"),
    ):
        closed.capture("a")
    with pytest.raises(gnatswarm.CaptureError, match="cannot connect to"):
        closed.capture("a")


def test_attempts_to_connect_leave_nothing_open():
    """A capture dials again, many times a second, until the broker is back: with -W error each was a warning."""
    with socket.create_server(("127.0.0.1", 0)) as unused:
        port = unused.getsockname()[1]
    gc.collect()  # what tests before this one have left open
    with warnings.catch_warnings():
        warnings.simplefilter("error", ResourceWarning)
        with pytest.raises(gnatswarm.CaptureError, match="cannot connect to"):
            Capture(Login("127.0.0.1", port), "a")
        gc.collect()


def test_a_broker_that_goes_ends_it(broker):
    own = gnatswarm.BrokerProcess(shards=1).start()
    captured = own.capture("a")
    own.stop()
    with pytest.raises(gnatswarm.CaptureError, match="has been closed"):
        captured.receive(1)


def test_waiting_for_a_broker_that_has_died_says_so():
    own = gnatswarm.BrokerProcess(shards=1).start()
    captured = own.capture("a")
    os.kill(own.pid, signal.SIGKILL)
    wait_until(lambda: captured._connection is None)
    with pytest.raises(TimeoutError, match=f"0 of 1 messages .*; the broker on port {own.port} is gone"):
        captured.receive(1, deadline_s=0.1)
    with pytest.raises(gnatswarm.CaptureError, match=f"did not answer .*: the broker on port {own.port} is gone"):
        captured.settle(deadline_s=0.1)
    own.stop()
