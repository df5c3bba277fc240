"""What is said on the operator's socket of a running router: one JSON line in, one JSON line out, then it closes.

What takes long sends lines with `progress` before.

A Unix socket in the broker's private directory (mode 0700), so only the user who runs the broker, and root, can use
it. It listens before the broker serves (`router.supervision.runtime_files`): a request during the start is answered
after it. Served by `router.supervision.operator_server`, used by `router.commands.operator_commands`, whose processes
need neither asyncio nor logging: half of what a health check would take.
"""

from __future__ import annotations

import msgspec

from gnatswarm.router.config.arrivals import Journey
from gnatswarm.router.config.reload import Change
from gnatswarm.router.supervision.broker_view import RuleState

MAX_REQUEST_BYTES = 4096

# In a broker's environment: "1" lets it part its shards (PartRequest).
CHAOS_VARIABLE = "GNATSWARM_CHAOS"


class OperatorRequest(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag=True):
    """Base of all requests."""


class StatusRequest(OperatorRequest, frozen=True):
    """The status of all shards; rates are measured over sample_s."""

    sample_s: float = 0.5


class ScaleRequest(OperatorRequest, frozen=True):
    """Run this many shards; answered when all of them serve and retired ones have ended."""

    shards: int


class KillRequest(OperatorRequest, frozen=True):
    """Kill this shard with SIGKILL; answered when its successor serves. It does not count as a crash."""

    shard: int


class PartRequest(OperatorRequest, frozen=True):
    """Break the link between two shards for so long; 0: let them make it again. Answered when it is broken.

    Refused unless the broker was started for it, with GNATSWARM_CHAOS=1 in its environment.
    """

    shard: int
    other: int
    seconds: float


class DisconnectRequest(OperatorRequest, frozen=True):
    """Disconnect all clients whose id is first_cid or higher; answered, with the next id, when they are gone."""

    first_cid: int


class PortsRequest(OperatorRequest, frozen=True):
    """On which ports do you listen? Answered when every shard accepts clients."""


class ReloadRequest(OperatorRequest, frozen=True):
    """Read the configuration anew, as at SIGHUP; answered when it holds on every shard, or has been refused."""


class WhyRequest(OperatorRequest, frozen=True):
    """Who would get a message that this user publishes to this subject? Publishes nothing."""

    subject: str
    user: str = ""  # "": clients without credentials


class PublishedRequest(OperatorRequest, frozen=True):
    """What was published so far, by subject?"""


class RebalanceRequest(OperatorRequest, frozen=True):
    """Even the connections over the shards; answered when that is done, as far as it can be."""


class MoveRequest(OperatorRequest, frozen=True):
    """Move so many clients from one shard to another; answered when that is done, as far as it can be."""

    shard: int
    to: int
    clients: int


# So long old processes encrypt for clients with TLS that have moved, unless an operator says otherwise.
RELAY_S = 3600.0


class RestartRequest(OperatorRequest, frozen=True):
    """Replace all shards, one after another; answered with progress, and when that is done or has failed."""

    relay_s: float = RELAY_S  # 0: clients with TLS are told to reconnect


class UpgradeRequest(OperatorRequest, frozen=True):
    """Replace every process by this program; answered as RestartRequest. The router that answers may be replaced."""

    executable: str = ""  # "": the program that the broker was started with
    relay_s: float = RELAY_S


class FinishRequest(OperatorRequest, frozen=True):
    """Have clients reconnect whose TLS is in processes that were replaced; answered when those have ended."""


class FollowRequest(OperatorRequest, frozen=True):
    """How does the restart or upgrade that is under way go on, or how has the last one ended?"""


class ShardStatus(msgspec.Struct, frozen=True):
    """One row of the status table."""

    shard: int
    pid: int  # 0: no process
    phase: str
    connections: int
    subscriptions: int
    in_msgs_per_s: float
    out_msgs_per_s: float
    loop_lag_us: int
    cpu_percent: float  # of one core
    links: int
    starts: int
    last_reason: str


class RelayStatus(msgspec.Struct, frozen=True):
    """A process that was a shard, and encrypts for clients with TLS that have moved, and for leaf nodes."""

    pid: int
    shard: int  # that it was
    clients: int  # and leaf nodes
    ends_in_s: float  # then they are told to reconnect; negative: they have been


class Status(msgspec.Struct, frozen=True):
    """The answer to StatusRequest."""

    pid: int  # the broker's, which is the keeper's
    router_pid: int
    address: str
    server_name: str
    accept: str  # "reuseport" or "handoff"
    steering: bool  # False: the kernel hashes over all listeners
    connections: int
    uptime_s: float
    shards: list[ShardStatus]
    rules: list[RuleState] = []  # of placement, in their order
    relays: list[RelayStatus] = []


class Ports(msgspec.Struct, frozen=True):
    """The answer to PortsRequest; 0: there is no such port."""

    clients: int
    websocket: int
    monitoring: int


class ReloadAnswer(msgspec.Struct, frozen=True):
    """The answer to ReloadRequest. If the whole reload was refused, Reply.error has one line for each reason."""

    changes: tuple[Change, ...] = ()
    problems: tuple[str, ...] = ()  # parts that failed although the rest was applied, such as opening a log file


class Reply(msgspec.Struct, frozen=True, omit_defaults=True):
    """The reply to any request: an error, a line for the operator, or the requested values."""

    error: str = ""
    text: str = ""
    status: Status | None = None
    ports: Ports | None = None
    reload: ReloadAnswer | None = None
    journey: Journey | None = None
    published: dict[str, int] = {}  # messages by subject, the most frequent first
    shards: int = 0  # the requested number of shards; in the reply to DisconnectRequest
    clients: int = 0  # how many were disconnected
    next_cid: int = 0  # the lowest id that a client connecting from now on can have
    progress: str = ""  # not the reply yet: how it goes on


AnyRequest = (
    StatusRequest
    | ScaleRequest
    | KillRequest
    | PartRequest
    | DisconnectRequest
    | PortsRequest
    | ReloadRequest
    | WhyRequest
    | RebalanceRequest
    | MoveRequest
    | PublishedRequest
    | RestartRequest
    | UpgradeRequest
    | FinishRequest
    | FollowRequest
)
_decoder = msgspec.json.Decoder(AnyRequest)
_encoder = msgspec.json.Encoder()


def encode_request(request: OperatorRequest) -> bytes:
    """The request as one line. ValueError, with the reason, if it cannot be sent."""
    try:
        line = _encoder.encode(request) + b"\n"
    except UnicodeEncodeError:
        raise ValueError("what is asked has to be UTF-8") from None
    if len(line) > MAX_REQUEST_BYTES:
        raise ValueError(f"what is asked is too long: {len(line):,} bytes as JSON, at most {MAX_REQUEST_BYTES:,}")
    return line


def decode_reply(line: bytes) -> Reply:
    """The answer in this line; msgspec.DecodeError when it is invalid."""
    return msgspec.json.decode(line, type=Reply)


def decode_request(line: bytes) -> AnyRequest:
    """The request in this line. ValueError, with the reason, when it is none."""
    try:
        request: AnyRequest = _decoder.decode(line)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:  # (nested too deeply)
        raise ValueError(f"not a request: {error}") from None
    return request


def encode_reply(reply: Reply) -> bytes:
    """The reply as one line."""
    return _encoder.encode(reply) + b"\n"
