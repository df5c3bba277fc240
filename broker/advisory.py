"""The broker's own messages in the system account: subjects and documents, as in nats-server 2.9.10.

Pure: the caller passes client, time and number. Empty texts are left out where Go leaves them out. Called by shards
(events of clients) and by the router (answers, and events of the broker).
"""

from __future__ import annotations

import base64
import os
from typing import Any

import msgspec
import orjson

from gnatswarm.broker.goformat import time_text
from gnatswarm.broker.options import Options

Document = dict[str, Any]

USER_INFO = b"$SYS.REQ.USER.INFO"
# How many subscriptions would get a message, or are within a pattern: in the system account, or in any.
SUBSCRIBERS = "$SYS.DEBUG.SUBSCRIBERS"
SUBSCRIPTION_COUNT = "$SYS.REQ.ACCOUNT.NSUBS"
# Requests that users of any account may make about their own account.
ABOUT_ONES_OWN = {
    b"$SYS.REQ.ACCOUNT.PING.CONNZ": "CONNZ",
    b"$SYS.REQ.SERVER.PING.CONNZ": "CONNZ",
    b"$SYS.REQ.ACCOUNT.PING.STATZ": "STATZ",
}

# Supported requests, by the last token of the subject; those of OF_THIS_SERVER only when they name it.
OF_SERVERS = (
    *("ACCOUNTZ", "CONNZ", "GATEWAYZ", "HEALTHZ", "IDZ", "JSZ", "LEAFZ", "ROUTEZ", "SHARDZ", "STATSZ", "SUBSZ"),
    "VARZ",
)
OF_THIS_SERVER = ("KICK", "LDM", "RELOAD")
_OF_NEWER = ("IDZ", "RELOAD")
OF_ACCOUNTS = ("CONNS", "CONNZ", "INFO", "JSZ", "LEAFZ", "STATZ", "SUBSZ")

_DIGITS = "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz"
_TYPE = "io.nats.server.advisory.v1."


class ServerIdentity(msgspec.Struct, frozen=True):
    """The broker, as it names itself in events and answers."""

    server_id: str
    server_name: str
    options: Options
    cluster: str = ""  # the cluster's name; "": it is in none

    def document(self, number: int, now_us: int) -> Document:
        """The member `server` of every event and answer; `number` ascends over all of them."""
        options = self.options
        found: Document = {
            "name": self.server_name,
            "host": options.host or "0.0.0.0",
            "id": self.server_id,
            **({"cluster": self.cluster} if self.cluster else {}),
            "ver": options.server_version,
        }
        if options.server_tags:
            found["tags"] = list(options.server_tags)
        if options.server_metadata:
            found["metadata"] = dict(options.server_metadata)
        if options.is_like_newer:
            return found | {"jetstream": False, "seq": number, "time": time_text(now_us)}
        return found | {"seq": number, "jetstream": False, "time": time_text(now_us)}


class Person(msgspec.Struct, frozen=True):
    """A client, or another server, in events. Times are µs since 1970; 0 means not yet."""

    cid: int
    host: str
    account: str
    user: str
    name: str
    lang: str
    version: str
    kind: str  # nats, websocket; of other servers leafnode, router
    start_us: int
    stop_us: int = 0
    rtt_us: int = 0
    name_tag: str = ""  # the account's name, in events of nats-server 2.15

    def document(self, server: str = "", cluster: str = "") -> Document:
        """The member `client`; `server` and `cluster` are where it is, for other accounts."""
        found: Document = {"start": time_text(self.start_us), "host": self.host, "id": self.cid, "acc": self.account}
        for key, text in (("user", self.user), ("name", self.name), ("lang", self.lang), ("ver", self.version)):
            if text:
                found[key] = text
        if self.rtt_us:
            found["rtt"] = self.rtt_us * 1000
        if self.stop_us:
            found["stop"] = time_text(self.stop_us)
        for key, text in (("server", server), ("cluster", cluster), ("name_tag", self.name_tag)):
            if text:
                found[key] = text
        if self.kind in ("leafnode", "router"):
            return found | {"kind": self.kind.title()}
        return found | {"kind": "Client", "client_type": self.kind}


def request_subjects(server: ServerIdentity) -> list[str]:
    """The subjects of the broker's own subscription; any other request gets a no-responders reply."""
    ping = "$SYS.REQ.SERVER.PING"
    unknown = () if server.options.is_like_newer else _OF_NEWER
    of_servers = [what for what in OF_SERVERS if what not in unknown]
    of_this = [what for what in (*OF_SERVERS, *OF_THIS_SERVER) if what not in unknown]
    return [
        ping,
        *(f"{ping}.{what}" for what in of_servers),
        *(f"$SYS.REQ.SERVER.{server.server_id}.{what}" for what in of_this),
        *(f"$SYS.REQ.ACCOUNT.*.{what}" for what in OF_ACCOUNTS),
        SUBSCRIBERS,
        SUBSCRIPTION_COUNT,
    ]


def counted(body: bytes) -> tuple[str, str]:
    """The subject, and the queue group or "", that a request to SUBSCRIBERS asks about; ("", ""): it is none."""
    words = body.decode("utf-8", "replace").strip().split(" ")  # (JSON, in which members are asked, has nothing else)
    return (words[0], "".join(words[1:])) if len(words) <= 2 else ("", "")


def count_request(account: str, subject: str, queue: str) -> bytes:
    """The body of a request to SUBSCRIPTION_COUNT."""
    asked = {"acc": account, "subject": subject}
    if queue:
        asked["queue"] = base64.b64encode(queue.encode()).decode()
    return orjson.dumps(asked)


def event_id() -> str:
    """A unique id of 22 letters and digits, like a NUID."""
    value = int.from_bytes(os.urandom(17), "big")
    text = ""
    for _ in range(22):
        value, digit = divmod(value, 62)
        text += _DIGITS[digit]
    return text


def _event(kind: str, now_us: int, server: Document) -> Document:
    return {"type": _TYPE + kind, "id": event_id(), "timestamp": time_text(now_us), "server": server}


def connected(server: Document, now_us: int, who: Person) -> tuple[str, bytes]:
    """(subject, document): a client has logged in."""
    event = _event("client_connect", now_us, server) | {"client": who.document()}
    return f"$SYS.ACCOUNT.{who.account}.CONNECT", orjson.dumps(event)


def _end(
    server: Document, now_us: int, who: Person, received: tuple[int, int], sent: tuple[int, int], reason: str
) -> bytes:
    # "sent" is what the client has sent, as in nats-server's event.
    event = _event("client_disconnect", now_us, server) | {
        "client": who.document(),
        "sent": {"msgs": received[0], "bytes": received[1]},
        "received": {"msgs": sent[0], "bytes": sent[1]},
        "reason": reason,
    }
    return orjson.dumps(event)


def disconnected(
    server: Document, now_us: int, who: Person, received: tuple[int, int], sent: tuple[int, int], reason: str
) -> tuple[str, bytes]:
    """(subject, document): a client has left. `received`, `sent`: messages and bytes, as the broker sees them."""
    return f"$SYS.ACCOUNT.{who.account}.DISCONNECT", _end(server, now_us, who, received, sent, reason)


def refused(server: Document, now_us: int, who: Person, reason: str) -> tuple[str, bytes]:
    """(subject, document): a client's log-in was refused."""
    return f"$SYS.SERVER.{server['id']}.CLIENT.AUTH.ERR", _end(server, now_us, who, (0, 0), (0, 0), reason)


def account_connections(server: Document, now_us: int, statistics: Document) -> bytes:
    """The number of an account's connections, and its traffic: `statistics` is an entry of /accstatz."""
    return orjson.dumps(_event("account_connections", now_us, server) | statistics)


def account_connections_subjects(account: str) -> tuple[str, str]:
    """The subjects for account_connections(): the old one and the present one."""
    return f"$SYS.SERVER.ACCOUNT.{account}.CONNS", f"$SYS.ACCOUNT.{account}.SERVER.CONNS"


def user_info(
    server: Document, user: str, account: str, permissions: orjson.Fragment | None, *, has_name: bool = False
) -> bytes:
    """The answer to $SYS.REQ.USER.INFO, as in nats-server 2.10; `has_name`: in 2.15."""
    data: Document = {"user": user, "account": account}
    if has_name:
        data["account_name"] = account
    if permissions:
        data["permissions"] = permissions
    return orjson.dumps({"server": server, "data": data})


def failure(server: Document, code: int, description: str) -> bytes:
    """The answer to a request that is invalid or cannot be served."""
    return orjson.dumps({"server": server, "error": {"code": code, "description": description}})
