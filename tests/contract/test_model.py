"""A running broker against the model: whatever three clients do, it delivers what the model permits.

The oracle is one of the brokers, so the model itself is checked here too. Every operation is fenced (PING, PONG) on
its own connection before the next, so that there is one order of events and the model's answer is the only one.
"""

from __future__ import annotations

import asyncio
import itertools
from dataclasses import dataclass

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.support.model import Model
from tests.support.wire import Client, Cluster

CLIENTS = ("a", "b", "c")
SIDS = ("1", "2", "3", "x")

# Each example has a first token of its own: the broker is shared, and nothing of one example reaches the next.
_examples = itertools.count()


@dataclass(frozen=True)
class Sub:
    client: str
    subject: str
    queue: str
    sid: str


@dataclass(frozen=True)
class Unsub:
    client: str
    sid: str
    most: int | None


@dataclass(frozen=True)
class Pub:
    client: str
    subject: str


@dataclass(frozen=True)
class Echo:
    client: str
    echo: bool


def subjects(*tokens: str) -> st.SearchStrategy[str]:
    return st.lists(st.sampled_from(tokens), min_size=1, max_size=4).map(".".join)


# Few tokens, so that subscriptions and messages meet; some badly formed ones on either side.
patterns = subjects("a", "b", "*", ">", "*a", "b>") | subjects("a", "*", "")
published = subjects("a", "b", "a", "b", "*a", "b>") | subjects("a", "*", ">", "")
clients = st.sampled_from(CLIENTS)
operations = st.one_of(
    st.builds(Sub, clients, patterns, st.sampled_from(["", "", "q", "r"]), st.sampled_from(SIDS)),
    st.builds(Sub, clients, patterns, st.sampled_from(["", "q"]), st.sampled_from(SIDS)),
    st.builds(Unsub, clients, st.sampled_from(SIDS), st.none() | st.integers(-1, 3)),
    st.builds(Pub, clients, published),
    st.builds(Pub, clients, published),
    st.builds(Pub, clients, published),
    st.builds(Echo, clients, st.booleans()),
)


async def play(cluster: Cluster, script: list[Sub | Unsub | Pub | Echo]) -> None:
    prefix = f"model{next(_examples)}"
    model = Model()
    connected: dict[str, Client] = {}
    for name, client in zip(CLIENTS, await cluster.clients(3, True, connect={"pedantic": False}), strict=True):
        connected[name] = client
    for number, operation in enumerate(script):
        await step(model, connected, operation, prefix, number)


async def step(model: Model, connected: dict[str, Client], operation, prefix: str, number: int) -> None:
    client = connected[operation.client]
    match operation:
        case Sub(name, subject, queue, sid):
            full = f"{prefix}.{subject}"
            accepted = model.subscribe(name, full, queue, sid)
            error = b"" if accepted else b"-ERR 'Invalid Subject'\r\n"
            await client.talk(f"SUB {full} {queue} {sid}\r\nPING\r\n", expect=error + b"PONG\r\n")
        case Unsub(name, sid, most):
            model.unsubscribe(name, sid, most)
            await client.talk(f"UNSUB {sid} {'' if most is None else most}\r\nPING\r\n", expect="PONG\r\n")
        case Echo(name, echo):
            model.set_echo(name, echo)
            text = f'CONNECT {{"verbose":false,"pedantic":false,"echo":{str(echo).lower()}}}\r\nPING\r\n'
            await client.talk(text, expect="PONG\r\n")
        case Pub(name, subject):
            full, payload = f"{prefix}.{subject}", str(number)
            await client.talk(f"PUB {full} {len(payload)}\r\n{payload}\r\nPING\r\n", expect_last="PONG\r\n")
            got = []
            for other, connection in connected.items():
                await connection.flush()
                for message in connection.inbox:
                    assert (message.subject, message.payload) == (full, payload.encode())
                    got.append((other, message.sid))
                connection.inbox.clear()
            allowed = model.candidates(name, full)
            assert allowed.permits(got), f"{operation}: got {got}, permitted {allowed}"
            model.publish(name, full, lambda _, members: next(key for key in got if key in members))


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(script=st.lists(operations, min_size=5, max_size=40))
def test_any_sequence_of_operations_delivers_what_the_model_permits(broker, script):
    async def played() -> None:
        cluster = Cluster(broker)
        try:
            await play(cluster, script)
        finally:
            cluster.close()

    asyncio.run(played())
