"""The INFO line, in which the broker describes itself to a client. Pure: values in, one line out.

Keys and their order are nats-server's; false and empty values are left out, except keys that nats-server always
sends. Two keys are our own: `gnatswarm`, our version, and `shard`. `version` is that of the nats-server that we are
compatible with, because clients enable features by it. Keys of features not offered (`jetstream`, `domain`, and of 2.15
`api_lvl`, JetStream's, and `xkey`, of auth callout) are missing, and so is its `git_commit`.
"""

from __future__ import annotations

import hashlib
from base64 import b32encode
from typing import Any

import orjson

from gnatswarm.broker.version import DEFAULT_COMPATIBILITY, LANGUAGE, OWN_VERSION, SERVER_VERSIONS

_ALWAYS = frozenset(
    {"server_id", "server_name", "version", "proto", "host", "port", "headers", "max_payload", "client_id", "shard"}
)

# As nats-server calls it.
EVERY_ADDRESS = "0.0.0.0"


def info_line(fields: dict[str, Any]) -> bytes:
    r"""`INFO {json} \r\n`; false and empty fields are left out, except those that clients rely on."""
    shown = {key: value for key, value in fields.items() if value or key in _ALWAYS}
    return b"INFO " + orjson.dumps(shown) + b" \r\n"


def advertised(client_advertise: str, host: str, port: int) -> tuple[str, int]:
    """Host and port for clients: those in `client_advertise` (host, host:port or [v6]:port), else our own."""
    if not client_advertise:
        return host, port
    name, colon, number = client_advertise.rpartition(":")
    if colon and number.isdigit() and (":" not in name or name.startswith("[")):
        return name.strip("[]"), int(number)
    return client_advertise.strip("[]"), port


def cluster_name(configured: str, server_id: str) -> str:
    """The name of the cluster; where none is configured, one that stays the same as long as the broker runs."""
    return configured or b32encode(hashlib.sha256(server_id.encode()).digest()).decode()[:22]


def _template(fields: dict[str, Any]) -> bytes:
    """An INFO line with placeholders for max_payload, client_id and client_ip."""
    most = fields["max_payload"]
    line = info_line(fields).replace(b"%", b"%%")
    return line.replace(
        b'"max_payload":%d,"client_id":0,"client_ip":"?"' % most, b'"max_payload":%d,"client_id":%d%b%b', 1
    )


class InfoTemplate:
    """The INFO of one shard, with placeholders for the values that differ between clients.

    `auth_required` is of the first INFO: whether one has to log in. `has_users`: the same of later ones, where it is
    true also if a user stands for those who give no credentials. `websocket_address`: host and port that clients by
    WebSocket are told, None: the same as all.
    """

    def __init__(
        self,
        *,
        server_id: str,
        server_name: str,
        host: str,
        port: int,
        shard: int,
        headers: bool,
        max_payload_bytes: int,
        auth_required: bool = False,
        has_users: bool = False,
        websocket_address: tuple[str, int] | None = None,
        websocket_auth_required: bool = False,
        websocket_has_users: bool = False,
        tls_required: bool = False,
        tls_available: bool = False,
        tls_verify: bool = False,
        cluster: str = "",
        connect_urls: list[str] | None = None,
        other_urls: list[str] | None = None,
        websocket_urls: list[str] | None = None,
        other_websocket_urls: list[str] | None = None,
        version: str = SERVER_VERSIONS[DEFAULT_COMPATIBILITY],
    ) -> None:
        self._fields: dict[str, Any] = {
            "server_id": server_id,
            "server_name": server_name,
            "version": version,
            "proto": 1,
            "go": LANGUAGE,
            "host": host or EVERY_ADDRESS,
            "port": port,
            "headers": headers,
            "auth_required": auth_required,
            "tls_required": tls_required,
            "tls_verify": tls_verify,
            "tls_available": tls_available,
            "max_payload": max_payload_bytes,
            "client_id": 0,
            "client_ip": "?",
            "cluster": cluster,
            "connect_urls": connect_urls or [],
            "ldm": False,
            "connect_info": False,
            "remote_account": "",
            "acc_is_sys": False,
            "gnatswarm": OWN_VERSION,
            "shard": shard,
        }
        self._template = _template(self._fields)
        self.max_payload_bytes = max_payload_bytes
        self._has_users = has_users
        urls = connect_urls, other_urls, websocket_urls, other_websocket_urls
        # What clients are told of the cluster, and any form of this template says, in a few bytes.
        self.news = hashlib.sha256(orjson.dumps([cluster, [sorted(some or ()) for some in urls]])).digest()[:8]
        self._websocket_address = websocket_address or (host, port)
        self._websocket_auth_required = websocket_auth_required
        self._websocket_has_users = websocket_has_users
        self._others = other_urls or []
        self._websocket_urls = websocket_urls or []
        self._other_websocket_urls = other_websocket_urls or []

    def _with(self, **fields: Any) -> InfoTemplate:
        changed = InfoTemplate.__new__(InfoTemplate)
        changed.__dict__ |= self.__dict__
        changed._fields = self._fields | fields
        changed._template = _template(changed._fields)
        return changed

    def for_departure(self) -> InfoTemplate:
        """The same with `ldm`: clients should reconnect elsewhere, of which our own addresses are no part."""
        leaving = self._with(ldm=True, connect_urls=self._others)
        leaving._websocket_urls = self._other_websocket_urls
        return leaving

    def for_later(self) -> InfoTemplate:
        """The same for clients that have had their first INFO."""
        later = self._with(auth_required=self._has_users)
        later._websocket_auth_required = self._websocket_has_users
        return later

    def for_told(self) -> InfoTemplate:
        """The same for clients that have heard that they should leave: they hear it once, as from nats-server."""
        return self._with(ldm=False)

    def for_connected(self, account: str, *, is_system: bool) -> InfoTemplate:
        """The same as 2.15 sends it after a log-in; it names the client's account."""
        return self._with(connect_info=True, remote_account=account, acc_is_sys=is_system)

    def for_websocket(self) -> InfoTemplate:
        """The same for a WebSocket connection, which may have to log in otherwise, and whose TLS comes before INFO."""
        host, port = self._websocket_address
        return self._with(
            host=host or EVERY_ADDRESS,
            port=port,
            auth_required=self._websocket_auth_required,
            tls_required=False,
            tls_verify=False,
            tls_available=False,
            connect_urls=self._websocket_urls,
        )

    def line(self, client_id: int, client_ip: str, nonce: bytes = b"", max_payload_bytes: int = 0) -> bytes:
        """The line for one client; `client_ip`: "" where it is not known yet; `nonce` is for it to sign.

        `max_payload_bytes`: of its account; 0: the broker's. Neither nonce nor address needs escaping.
        """
        address = b',"client_ip":"%b"' % client_ip.encode() if client_ip else b""
        most = max_payload_bytes or self.max_payload_bytes
        return self._template % (most, client_id, address, b',"nonce":"%b"' % nonce if nonce else b"")
