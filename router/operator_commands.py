"""`gnatswarm scale N`, `status`, `health`: what an operator says to a running broker, from another process.

Finds the broker by its private directory: the only one of this user, or the one with this pid or port. Prints to
standard output, errors to standard error; returns the exit code.
"""

from __future__ import annotations

import os
import socket
import sys

import msgspec

from router.operator_socket import (
    Reply,
    Request,
    ScaleRequest,
    Status,
    StatusRequest,
    decode_reply,
    encode_request,
)
from shards import linkdir

# A shard that leaves has ten seconds for its clients; a machine with many shards takes a while to start more.
REPLY_DEADLINE_S = 60.0

_COLUMNS = ("SHARD", "PID", "STATE", "CONNS", "SUBS", "IN MSG/S", "OUT MSG/S", "LAG µs", "CPU %", "LINKS", "STARTS")


class NotFound(Exception):
    """No running broker answers to what was asked for; the text says which there are."""


def scale(shards: int, *, pid: int | None = None, port: int | None = None) -> int:
    """Have the broker run this many shards, and wait until it does."""
    return _ask(ScaleRequest(shards), pid, port, lambda reply: reply.text)


def status(*, pid: int | None = None, port: int | None = None, as_json: bool = False) -> int:
    """Print a table of the broker's shards, or the same as one JSON document."""

    def shown(reply: Reply) -> str:
        assert reply.status is not None
        return msgspec.json.encode(reply.status).decode() if as_json else status_table(reply.status)

    return _ask(StatusRequest(), pid, port, shown)


def health(*, pid: int | None = None, port: int | None = None) -> int:
    """0 when every shard serves, else 1 and why: for health checks that cannot reach the monitoring pages."""
    try:
        reply = exchange(find(pid, port), StatusRequest(sample_s=0.0))
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


def status_table(status: Status) -> str:
    """The table, one line per shard, and why those that are not ready are not."""
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
    """The operator socket of the broker meant. NotFound when there is none, or more than one."""
    brokers = linkdir.live(linkdir.default_base())
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


def _ask(request: Request, pid: int | None, port: int | None, shown: object) -> int:
    try:
        reply = exchange(find(pid, port), request)
    except NotFound as error:
        return _failed(str(error))
    except OSError as error:
        return _failed(f"the broker does not answer: {error.strerror or error}")
    except msgspec.DecodeError as error:
        return _failed(f"the broker's answer makes no sense: {error}")
    if reply.error:
        return _failed(reply.error)
    assert callable(shown)
    print(shown(reply))
    return 0


def exchange(path: str, request: Request) -> Reply:
    """What the broker with this operator socket answers. OSError, msgspec.DecodeError when it does not."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as sock:
        sock.settimeout(REPLY_DEADLINE_S)
        sock.connect(path)
        sock.sendall(encode_request(request))
        answer = b""
        while not answer.endswith(b"\n"):
            data = sock.recv(65536)
            if not data:
                break
            answer += data
    return decode_reply(answer)


def _failed(text: str) -> int:
    print(f"gnatswarm: {text}", file=sys.stderr)
    return 1
