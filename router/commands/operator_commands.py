"""`gnatswarm scale N`, `rebalance`, `status`, …: an operator's requests to a running broker, from another process.

Finds the broker by its private directory: the user's only broker, or the one with the given pid or port. Prints to
standard output, errors to standard error; returns the exit code.
"""

from __future__ import annotations

import contextlib
import os
import socket
import sys
import time
from collections.abc import Callable, Sequence

import msgspec

from gnatswarm.broker.quoted import visible
from gnatswarm.router.config import arrivals
from gnatswarm.router.supervision.broker_view import RuleState
from gnatswarm.router.supervision.operator_socket import (
    FinishRequest,
    FollowRequest,
    OperatorRequest,
    RebalanceRequest,
    RelayStatus,
    ReloadRequest,
    Reply,
    RestartRequest,
    ScaleRequest,
    Status,
    StatusRequest,
    UpgradeRequest,
    WhyRequest,
    decode_reply,
    encode_request,
)
from gnatswarm.shards.boundary import linkdir

# A shard that leaves has ten seconds for its clients; a machine with many shards takes a while to start more.
REPLY_DEADLINE_S = 60.0
# Who only looks, a health check above all, is told sooner that the router does not answer (`status` measures for 1 s).
LOOK_DEADLINE_S = 5.0
# A broker has no operator socket for a moment when it starts, when it stops, or when a cleaner has removed the socket.
SOCKET_DEADLINE_S = 2.0
SOCKET_POLL_S = 0.02
# During one restart or upgrade; a broker whose router dies more often than five times in a row ends.
MOST_ROUTERS = 8

_COLUMNS = ("SHARD", "PID", "STATE", "CONNS", "SUBS", "IN MSG/S", "OUT MSG/S", "LAG µs", "CPU %", "LINKS", "STARTS")


class NotFound(Exception):
    """No running broker matches, or several do; the text lists those that run."""


# What ask() raises.
_ASK_ERRORS = (OSError, msgspec.DecodeError, NotFound, ValueError)


def scale(shards: int, *, pid: int | None = None, port: int | None = None) -> int:
    """Change the number of shards, and wait until they serve."""
    return _ask(ScaleRequest(shards), pid, port, lambda reply: reply.text)


def status(*, pid: int | None = None, port: int | None = None, as_json: bool = False) -> int:
    """Print a table of the broker's shards, or the same as one JSON document."""

    def shown(reply: Reply) -> str:
        assert reply.status is not None
        return msgspec.json.encode(reply.status).decode() if as_json else status_table(reply.status)

    return _ask(StatusRequest(), pid, port, shown, deadline_s=LOOK_DEADLINE_S)


def health(*, pid: int | None = None, port: int | None = None) -> int:
    """0 if every shard serves, else 1 with the reason: for health checks that cannot reach the monitoring pages."""
    try:
        reply = ask(StatusRequest(sample_s=0.0), pid, port, LOOK_DEADLINE_S)
    except NotFound as error:
        return _failed(str(error))
    except (OSError, msgspec.DecodeError) as error:
        return _failed(f"the broker does not answer: {error}")
    shards = reply.status.shards if reply.status is not None else []
    ready = sum(row.phase == "ready" for row in shards)
    # One that drains serves its clients, and others take new ones.
    serving = ("ready", "draining") if ready else ("ready",)
    faults = [f"shard {row.shard} is {row.phase}" for row in shards if row.phase not in serving]
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

    code = _ask(ReloadRequest(), pid, port, shown, _not_reloaded)
    if problems:
        return _failed(_reloaded_but(problems))
    return code


def reload_quietly(pid: int) -> int | None:
    """As reload(), but print only what is wrong, as `--signal reload` does. None: it cannot be asked, by this user."""
    try:
        path = find(pid, None)
        reply = exchange(path, ReloadRequest())
    except (NotFound, OSError, msgspec.DecodeError):
        return None
    if reply.error:
        return _failed(_not_reloaded(reply.error))
    if reply.reload is not None and reply.reload.problems:
        return _failed(_reloaded_but(reply.reload.problems))
    return 0


def _not_reloaded(error: str) -> str:
    return "\n  ".join(["not reloaded, the old configuration still holds:", *error.splitlines()])


def _reloaded_but(problems: Sequence[str]) -> str:
    return "\n  ".join(["reloaded, but for this:", *problems])


def why(subject: str, user: str, *, pid: int | None = None, port: int | None = None, as_json: bool = False) -> int:
    """Print who would get a message on this subject from this user, and by which rules; nothing is published."""
    is_lost = False

    def shown(reply: Reply) -> str:
        nonlocal is_lost
        assert reply.journey is not None
        is_lost = not arrivals.is_heard(reply.journey)
        return arrivals.as_json(reply.journey) if as_json else arrivals.shown(reply.journey)

    return _ask(WhyRequest(subject, user), pid, port, shown) or int(is_lost)


def rebalance(*, pid: int | None = None, port: int | None = None) -> int:
    """Even the connections over the shards, and wait until that is done."""
    return _ask(RebalanceRequest(), pid, port, lambda reply: reply.text)


def restart(relay_s: float, *, pid: int | None = None, port: int | None = None) -> int:
    """Replace all shards one after another; prints how it goes on, and waits until it is done."""
    return _follow(RestartRequest(relay_s), pid, port)


def upgrade(executable: str, relay_s: float, *, pid: int | None = None, port: int | None = None) -> int:
    """Replace every process of the broker by this program ("": its own); prints how it goes on, and waits for it."""
    return _follow(UpgradeRequest(executable, relay_s), pid, port)


def finish(*, pid: int | None = None, port: int | None = None) -> int:
    """End the processes that a restart or upgrade has left for clients with TLS, and wait for that."""
    return _ask(FinishRequest(), pid, port, lambda reply: reply.text)


def _follow(request: OperatorRequest, pid: int | None, port: int | None) -> int:
    """Ask for what goes on even if the router is replaced, and then ask its successor."""
    for _ in range(MOST_ROUTERS):
        try:
            reply = ask(request, pid, port)
        except (ConnectionAbortedError, ConnectionResetError):
            request = FollowRequest()
            continue
        except _ASK_ERRORS as error:
            return _failed(_why_no_reply(error))
        if reply.error:
            return _failed(reply.error)
        print(reply.text)
        return 0
    return _failed("the broker's router was replaced again and again; its log says why")


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
        f"{status.server_name} on {status.address}, pid {status.pid}, router {status.router_pid}, "
        f"up {status.uptime_s:.0f} s, {status.connections} connections, accept {status.accept}"
        + ("" if status.steering else " (not steered)")
    ]
    for cells in [_COLUMNS, *rows]:
        lines.append("  ".join(cell.rjust(width) for cell, width in zip(cells, widths, strict=True)))
    lines += [_relay_line(relay) for relay in status.relays]
    lines += [_rule_line(rule) for rule in status.rules]
    lines += [
        f"shard {row.shard}: {row.last_reason}" for row in status.shards if row.last_reason and row.phase != "ready"
    ]
    return "\n".join(map(visible, lines))


def _relay_line(relay: RelayStatus) -> str:
    """One process of before."""
    carried = f"{relay.clients} connection{'' if relay.clients == 1 else 's'} with TLS"
    until = time.strftime("%H:%M", time.localtime(time.time() + relay.ends_in_s))
    when = f"until {until} at the latest" if relay.ends_in_s >= 0 else "which have been told to reconnect"
    return f"process {relay.pid}, which was shard {relay.shard}, encrypts for {carried}, {when}"


def _rule_line(rule: RuleState) -> str:
    """One placement rule."""
    if rule.shard < 0:
        return f"{rule.rule}: {rule.clients} clients" + (f" stay where they are: {rule.why}" if rule.why else "")
    text = f"{rule.rule}: {rule.in_place} of {rule.clients} clients on shard {rule.shard}"
    return f"{text}, {rule.staying} have TLS and stay where they are" if rule.staying else text


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
    deadline_s: float = REPLY_DEADLINE_S,
) -> int:
    try:
        reply = ask(request, pid, port, deadline_s)
    except _ASK_ERRORS as error:
        return _failed(_why_no_reply(error))
    if reply.error:
        return _failed(refused(reply.error))
    print(shown(reply))
    return 0


def ask(request: OperatorRequest, pid: int | None, port: int | None, deadline_s: float = REPLY_DEADLINE_S) -> Reply:
    """The reply of that broker; waits a moment for its socket. NotFound, and what exchange() raises."""
    give_up_at = time.monotonic() + SOCKET_DEADLINE_S
    while True:
        try:
            return exchange(find(pid, port), request, deadline_s)
        except (FileNotFoundError, ConnectionRefusedError):
            if time.monotonic() >= give_up_at:
                raise NotFound("the broker has no operator socket: it is starting or stopping, try again") from None
        time.sleep(SOCKET_POLL_S)


def _show_progress(text: str) -> None:
    with contextlib.suppress(OSError):  # of standard output: printing the reply says so, at the end
        print(text, flush=True)


def exchange(
    path: str,
    request: OperatorRequest,
    deadline_s: float = REPLY_DEADLINE_S,
    on_progress: Callable[[str], None] = _show_progress,
) -> Reply:
    """What the broker with this operator socket answers, each line within `deadline_s`.

    `on_progress` gets what comes before the reply. OSError, msgspec.DecodeError when there is none; ValueError as
    encode_request().
    """
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as sock:
        sock.settimeout(deadline_s)
        sock.connect(path)
        sock.sendall(encode_request(request))
        with sock.makefile("rb") as lines:
            for line in lines:
                reply = decode_reply(line)
                if not reply.progress:
                    return reply
                on_progress(reply.progress)
    raise ConnectionAbortedError(0, "it ended, or its router was replaced, before it had answered; ask again")


def _why_no_reply(error: Exception) -> str:
    """Why ask() had no reply: one of _ASK_ERRORS."""
    if isinstance(error, OSError):
        return f"the broker does not answer: {error.strerror or error}"
    if isinstance(error, msgspec.DecodeError):
        return f"the broker's reply cannot be decoded: {error}"
    return str(error)


def _failed(text: str) -> int:
    print(f"gnatswarm: {text}", file=sys.stderr)
    return 1
