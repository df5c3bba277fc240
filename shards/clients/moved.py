"""One client, written down whole: its session, its socket and what the engine knows of it, as versioned records.

With these records and its descriptor a client goes on in another shard as if it were still in the first: its session
is announced first, the rest follows with the descriptor. Not in them: permissions, limits and anything else that
follows from the configuration; the shard that takes the client applies its own. Secrets are not in them either, but
what a reload needs to check them again.
"""

from typing import Annotated, Literal, TypeVar

import msgspec

from gnatswarm.broker.access.certificate_names import CertificateNames
from gnatswarm.broker.access.connect import ClientOptions
from gnatswarm.broker.bounds import LARGEST_MAX_CONTROL_LINE_BYTES
from gnatswarm.broker.frozen import MOST_RECORD_BYTES, Count, FrozenClient, RecordRefused, check
from gnatswarm.shards.sockets.frozen_socket import FrozenSocket

# Increased with every change of a field, or of what one means; of the engine's record and the socket's too.
CLIENT_RECORD_VERSION = 6
_VERSION = CLIENT_RECORD_VERSION.to_bytes(2, "big")

T = TypeVar("T")

# The names that a client gives are bounded by max_control_line.
Text = Annotated[str, msgspec.Meta(max_length=LARGEST_MAX_CONTROL_LINE_BYTES)]


class FrozenAdmission(msgspec.Struct, frozen=True, kw_only=True, array_like=True, forbid_unknown_fields=True):
    """How the client logged in."""

    name: Text = ""  # the user name or nkey in its CONNECT
    proof: bytes = b""  # keyed digest of the secret it gave; b"": none
    proof_key: bytes = b""  # that key
    hashed: Text = ""  # the bcrypt hash that its password was found to match; "": it was compared otherwise
    is_anonymous: bool = False
    is_nkey: bool = False
    kind: Text


class FrozenTls(msgspec.Struct, frozen=True, kw_only=True, array_like=True, forbid_unknown_fields=True):
    """What was agreed on with a client whose TLS is in another process."""

    version: Annotated[str, msgspec.Meta(max_length=16)]
    cipher_suite: Annotated[str, msgspec.Meta(max_length=64)]
    relay: Annotated[str, msgspec.Meta(min_length=1, max_length=64)]  # the boot id of that process
    names: CertificateNames | None  # of its certificate, with verify_and_map


class FrozenSession(msgspec.Struct, frozen=True, kw_only=True, array_like=True, forbid_unknown_fields=True):
    """Who the client is."""

    kind: Literal["nats", "websocket"]
    host: Text
    port: Annotated[int, msgspec.Meta(ge=0, le=65535)]
    started_s: float  # since 1970
    user: Text
    account: Text
    claimed: Text
    stated: tuple[Text, Text, Text]
    nonce: bytes
    gave_token: bool
    connect: ClientOptions | None  # without secrets; None: it has sent no CONNECT, and needed none
    admission: FrozenAdmission | None  # None: likewise
    rights: Annotated[bytes, msgspec.Meta(max_length=64)]  # what distinguishes its permissions and limits
    violations: Count = 0  # of its permissions, since the last log line about them, …
    violated_us: Count = 0  # … which was then
    tls: FrozenTls | None = None  # None: it has none


class MovedClient(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """The rest of a client, when it goes."""

    socket: FrozenSocket
    client: FrozenClient
    is_counted: bool = False  # its account has a limit of connections, and counts it
    news: Annotated[bytes, msgspec.Meta(max_length=64)] = b""  # what INFO told it of the cluster: InfoTemplate.news
    was_told_to_go: bool = False  # with all clients of its shard or relay (`ldm` in INFO)


_encoder = msgspec.msgpack.Encoder()
_session_decoder = msgspec.msgpack.Decoder(FrozenSession)
_decoder = msgspec.msgpack.Decoder(MovedClient)


def encoded_session(session: FrozenSession) -> bytes:
    """The record as bytes: its version in 2 bytes, big-endian, and MessagePack. RecordRefused: it cannot be encoded."""
    try:
        return _VERSION + _encoder.encode(session)
    except UnicodeEncodeError:
        raise RecordRefused("its CONNECT has text that is not Unicode") from None


def decoded_session(data: bytes) -> FrozenSession:
    """The record that `encoded_session` wrote; RecordRefused, with the reason, for anything else."""
    return _decoded(_session_decoder, data)


def encoded(moved: MovedClient) -> bytes:
    """The record as bytes, like that of the session."""
    return _VERSION + _encoder.encode(moved)


def decoded(data: bytes | memoryview) -> MovedClient:
    """The record that `encoded` wrote; RecordRefused, with the reason, for anything else."""
    moved = _decoded(_decoder, data)
    check(moved.client)
    if moved.socket.unsent and moved.socket.frames is None:
        raise RecordRefused(f"client {moved.client.cid}: unsent frames of a client that has none")
    return moved


def _decoded(decoder: msgspec.msgpack.Decoder[T], data: bytes | memoryview) -> T:
    if len(data) > MOST_RECORD_BYTES:
        raise RecordRefused(f"a record of {len(data):,} bytes; at most {MOST_RECORD_BYTES:,} are taken")
    if len(data) < len(_VERSION):
        raise RecordRefused("a record without a version")
    version = int.from_bytes(data[:2], "big")
    if version != CLIENT_RECORD_VERSION:
        raise RecordRefused(f"a record of version {version}; this shard understands version {CLIENT_RECORD_VERSION}")
    try:
        return decoder.decode(memoryview(data)[2:])
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise RecordRefused(f"a record that is truncated or damaged: {error}") from None
