"""`gnatswarm scale N`, `status`, `health`, `reload`: an operator's requests to a running broker, from another process.

Finds the broker by its private directory: the user's only broker, or the one with the given pid or port. Prints to
standard output, errors to standard error; returns the exit code.
"""

from __future__ import annotations

import os
import socket
import sys
import time
from collections.abc import Callable

import msgspec

from gnatswarm.router.supervision.operator_socket import (
    OperatorRequest,
    ReloadRequest,
    Reply,
    ScaleRequest,
    Status,
    StatusRequest,
    decode_reply,
    encode_request,
)
from gnatswarm.shards.boundary import linkdir

# A shard that leaves has ten seconds for its clients; a machine with many shards takes a while to start more.
REPLY_DEADLINE_S = 60.0
# A broker has no operator socket for a moment when it starts, when it stops, or when a cleaner has removed the socket.
SOCKET_DEADLINE_S = 2.0
SOCKET_POLL_S = 0.02

_COLUMNS = ("SHARD", "PID", "STATE", "CONNS", "SUBS", "IN MSG/S", "OUT MSG/S", "LAG µs", "CPU %", "LINKS", "STARTS")


class NotFound(Exception):
    """No running broker matches, or several do; the text lists those that run."""


def scale(shards: int, *, pid: int | None = None, port: int | None = None) -> int:
    """Change the number of shards, and wait until they serve."""
    return _ask(ScaleRequest(shards), pid, port, lambda reply: reply.text)


def status(*, pid: int | None = None, port: int | None = None, as_json: bool = False) -> int:
    """Print a table of the broker's shards, or the same as one JSON document."""

    def shown(reply: Reply) -> str:
        assert reply.status is not None
        return msgspec.json.encode(reply.status).decode() if as_json else status_table(reply.status)

    return _ask(StatusRequest(), pid, port, shown)


def health(*, pid: int | None = None, port: int | None = None) -> int:
    """0 if every shard serves, else 1 with the reason: for health checks that cannot reach the monitoring pages."""
    try:
        reply = ask(StatusRequest(sample_s=0.0), pid, port)
    except NotFound as error:
        return _failed(str(error))
    except (OSError, msgspec.DecodeError) as error:
        return _failed(f"the broker does not answer: {error}")
    shards = reply.status.shards if reply.status is not None else []
    faults = [f"shard {row.shard} is {row.phase}" for row in shards if row.phase != "ready"]
    if faults or not shards:
        return _failed(", ".join(faults) or "no shard runs")
    print(f"ok: {len(shards)} of {len(shards)} shards serve")
    return 0


def reload(*, pid: int | None = None, port: int | None = None) -> int:
    """Have the broker read its configuration again, and print what has changed; 0 only if all of it is in effect."""
    problems: tuple[str, ...] = ()

    def shown(reply: Reply) -> str:
        nonlocal problems
        assert reply.reload is not None
        problems = reply.reload.problems
        changed = [str(change) for change in reply.reload.changes]
        return "\n  ".join(["reloaded:", *changed]) if changed else "reloaded: nothing changed"

    def refused(error: str) -> str:
        return "\n  ".join(["not reloaded, the old configuration still holds:", *error.splitlines()])

    code = _ask(ReloadRequest(), pid, port, shown, refused)
    if problems:
        return _failed("\n  ".join(["reloaded, but for this:", *problems]))
    return code


def status_table(status: Status) -> str:
    """The table, one line per shard, and below it the reason for each shard that is not ready."""
    rows = [
        (
            str(row.shard),
            str(row.pid) if row.pid else "-",
            row.phase,
            str(row.connections),
            str(row.subscriptions),
            f"{row.in_msgs_per_s:,.0f}",
            f"{row.out_msgs_per_s:,.0f}",
            str(row.loop_lag_us),
            f"{row.cpu_percent:.1f}",
            str(row.links),
            str(row.starts),
        )
        for row in status.shards
    ]
    widths = [max(len(line[n]) for line in [_COLUMNS, *rows]) for n in range(len(_COLUMNS))]
    lines = [
        f"{status.server_name} on {status.address}, router {status.pid}, up {status.uptime_s:.0f} s, "
        f"{status.connections} connections, accept {status.accept}" + ("" if status.steering else " (not steered)")
    ]
    for cells in [_COLUMNS, *rows]:
        lines.append("  ".join(cell.rjust(width) for cell, width in zip(cells, widths, strict=True)))
    lines += [
        f"shard {row.shard}: {row.last_reason}" for row in status.shards if row.last_reason and row.phase != "ready"
    ]
    return "\n".join(lines)


def find(pid: int | None, port: int | None) -> str:
    """The path of the operator socket of the only matching broker. NotFound if there is none, or more than one."""
    brokers = [broker for base in linkdir.bases() for broker in linkdir.live(base)]
    matching = [
        (path, owner)
        for path, owner in brokers
        if (pid is None or owner.pid == pid) and (port is None or owner.port == port)
    ]
    if len(matching) == 1:
        return os.path.join(matching[0][0], linkdir.OPERATOR_SOCKET)
    known = ", ".join(f"pid {owner.pid} on port {owner.port}" for _path, owner in brokers) or "none"
    if not brokers:
        raise NotFound("no broker of this user is running")
    if not matching:
        raise NotFound(f"no such broker of this user is running (running: {known})")
    raise NotFound(f"several brokers are running, say which by --pid or --port: {known}")


def _ask(
    request: OperatorRequest,
    pid: int | None,
    port: int | None,
    shown: Callable[[Reply], str],
    refused: Callable[[str], str] = str,
) -> int:
    try:
        reply = ask(request, pid, port)
    except NotFound as error:
        return _failed(str(error))
    except OSError as error:
        return _failed(f"the broker does not answer: {error.strerror or error}")
    except msgspec.DecodeError as error:
        return _failed(f"the broker's reply cannot be decoded: {error}")
    if reply.error:
        return _failed(refused(reply.error))
    print(shown(reply))
    return 0


def ask(request: OperatorRequest, pid: int | None, port: int | None) -> Reply:
    """The reply of that broker; waits a moment for its socket. NotFound, OSError, msgspec.DecodeError."""
    give_up_at = time.monotonic() + SOCKET_DEADLINE_S
    while True:
        try:
            return exchange(find(pid, port), request)
        except (FileNotFoundError, ConnectionRefusedError):
            if time.monotonic() >= give_up_at:
                raise NotFound("the broker has no operator socket: it is starting or stopping, try again") from None
        time.sleep(SOCKET_POLL_S)


def exchange(path: str, request: OperatorRequest, deadline_s: float = REPLY_DEADLINE_S) -> Reply:
    """What the broker with this operator socket answers. OSError, msgspec.DecodeError when it does not."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as sock:
        sock.settimeout(deadline_s)
        sock.connect(path)
        sock.sendall(encode_request(request))
        reply = b""
        while not reply.endswith(b"\n"):
            data = sock.recv(65536)
            if not data:
                break
            reply += data
    return decode_reply(reply)


def _failed(text: str) -> int:
    print(f"gnatswarm: {text}", file=sys.stderr)
    return 1
