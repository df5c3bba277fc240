"""The official client for browsers, nats.ws, unchanged in a real Chromium, on two shards and on the real server."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path
from typing import Any

import orjson
import pytest

from tests.clients.programs import BUILT
from tests.support import browser as browsers
from tests.support.framed import websocket_port
from tests.support.pages import Pages
from tests.support.servers import Broker

pytestmark = pytest.mark.kinds("gnatswarm-2", "nats-server")

MODULE = BUILT / "node_modules" / "nats.ws" / "esm" / "nats.js"
CONFIG = """
websocket { host: 127.0.0.1, port: -1, no_tls: true, compression: true }
http: 127.0.0.1:-1
accounts { A { users: [
  {user: web, password: p, allowed_connection_types: [WEBSOCKET]}
  {user: few, password: p, permissions: {publish: "mine.>", subscribe: [">"]}}
] } }
"""

# Two clients, on different shards where there are two, and what they found; any exception is the test's.
PROGRAM = """
(async () => {
  const bundle = new Blob([SOURCE], { type: "text/javascript" });
  const { connect, headers, StringCodec } = await import(URL.createObjectURL(bundle));
  const text = StringCodec();
  const dial = (user) => connect({ servers: "ws://127.0.0.1:PORT", user, pass: "p", maxReconnectAttempts: 0 });
  const one = await dial("web");
  let other = await dial("web");
  for (let tries = 0; tries < 100 && other.info.shard === one.info.shard && one.info.shard !== undefined; tries++) {
    await other.close();
    other = await dial("web");
  }
  const found = { shards: [one.info.shard, other.info.shard] };
  const twice = (error, m) => m.respond(text.encode(text.decode(m.data).repeat(2)));
  one.subscribe("double", { callback: twice });
  const queued = [0, 0];
  one.subscribe("jobs", { queue: "q", callback: () => { queued[0]++; } });
  other.subscribe("jobs", { queue: "q", callback: () => { queued[1]++; } });
  const heard = [];
  const hear = (error, m) => heard.push([m.subject, m.headers?.get("k") ?? "", m.data.length]);
  one.subscribe("wild.*", { callback: hear });
  await Promise.all([one.flush(), other.flush()]);
  found.answer = text.decode((await other.request("double", text.encode("hi"), { timeout: 5000 })).data);
  found.nobody = await other.request("nobody", text.encode(""), { timeout: 5000 }).catch((error) => error.code);
  const head = headers();
  head.set("k", "v");
  other.publish("wild.a", new Uint8Array(100000).fill(65), { headers: head });
  other.publish("wild.b");
  for (let n = 0; n < 100; n++) other.publish("jobs");
  await other.flush();
  await one.flush();
  found.heard = heard;
  found.queued = queued[0] + queued[1];
  const few = await dial("few");
  const denied = (async () => { for await (const s of few.status()) if (s.type === "error") return s.data; })();
  few.publish("yours");
  found.denied = await denied;
  found.wrong = await connect({ servers: "ws://127.0.0.1:PORT", user: "web", pass: "no" }).catch((error) => error.code);
  await Promise.all([one.drain(), other.drain(), few.close()]);
  found.closed = one.isClosed() && other.isClosed();
  return found;
})()
"""


def source() -> str:
    """The client's own bundle for browsers."""
    missing = ""
    if browsers.find() is None:
        missing = "there is no Chromium: apt-get install chromium"
    elif not MODULE.exists():
        missing = "the npm package nats.ws is not installed: make clients"
    if missing and os.environ.get("GNATSWARM_REQUIRE_CLIENTS") == "1":
        pytest.fail(missing)
    if missing:
        pytest.skip(missing)
    return Path(MODULE).read_text(encoding="utf-8")


def visit(broker: Broker, program: str) -> Any:
    found = browsers.find()
    assert found is not None
    with browsers.Browser(found) as browser:
        browser.open(f"{Pages.of(broker).url}/healthz")  # a page that may speak to this host
        return browser.value(program)


async def test_nats_ws_in_a_browser(start_broker, kind):
    bundle = source()
    broker = start_broker(config=CONFIG)
    program = PROGRAM.replace("PORT", str(websocket_port(broker))).replace("SOURCE", orjson.dumps(bundle).decode())
    found = await asyncio.to_thread(visit, broker, program)
    if not kind.is_oracle:
        assert sorted(found.pop("shards")) == [0, 1]
    assert found["answer"] == "hihi"
    assert found["nobody"] == "503"
    assert found["heard"] == [["wild.a", "v", 100_000], ["wild.b", "", 0]]
    assert found["queued"] == 100
    assert "PERMISSIONS_VIOLATION" in found["denied"]
    assert found["wrong"] == "AUTHORIZATION_VIOLATION"
    assert found["closed"] is True
