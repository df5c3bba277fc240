"""The first screen: a short summary on standard output for a person who has started a broker by hand.

Log lines, on standard error or in a file, are for programs, too; this text is for people only. It is not printed under
the name `nats-server`, because scripts expect its standard output to be empty.
"""

from __future__ import annotations

import os
import select
import shlex
import sys
from collections.abc import Sequence

from gnatswarm import broker
from gnatswarm.broker.version import DEFAULT_COMPATIBILITY, OWN_VERSION, SERVER_VERSIONS

_MODULES = ("parser", "sublist", "fanout")


def is_compiled() -> bool:
    """Whether the engine's compiled modules exist."""
    names = os.listdir(os.path.dirname(os.path.abspath(broker.__file__)))
    return all(any(name.startswith(module + ".") and name.endswith(".so") for name in names) for module in _MODULES)


def first_screen(
    address: str,
    pid: int,
    router_pid: int,
    shard_pids: Sequence[int],
    accept: str,
    like: str = SERVER_VERSIONS[DEFAULT_COMPATIBILITY],
    *,
    is_open: bool = True,
    own: Sequence[str] = (),
) -> str:
    """The text; `address` is HOST:PORT, `like` the version of nats-server that clients are told.

    `is_open`: clients need neither to log in nor to encrypt. `own` is the command that runs this program.
    """
    compiled = "compiled" if is_compiled() else "NOT compiled: run `make build`"
    pids = " ".join(str(shard) for shard in shard_pids[:8]) + (" …" if len(shard_pids) > 8 else "")
    shards = f"{len(shard_pids)} shard{'' if len(shard_pids) == 1 else 's'}"
    return (
        f"gnatswarm {OWN_VERSION} ({compiled}, speaks like nats-server {like})\n"
        f"  listening   {address}\n"
        f"  processes   broker {pid}, router {router_pid}, {shards} ({accept}): {pids}\n"
    ) + (_trial(address, own) if is_open else "")


def _trial(address: str, own: Sequence[str]) -> str:
    """Two lines to type, each in a terminal of its own: the first shows what the second publishes."""
    host, _, port = address.rpartition(":")
    is_near = host in ("127.0.0.1", "0.0.0.0", "[::]")
    server = f"-p {port}" if is_near else shlex.join(("-s", f"nats://{address}"))
    name = called_by(own)
    return f"  try         {name} sub hi {server}\n  and then    {name} pub hi hello {server}\n"


def called_by(own: Sequence[str]) -> str:
    """What a person types to run this program from the directory where it was started, as short as possible."""
    if not own:
        return "gnatswarm"
    script = own[-1]
    if os.path.basename(script) != "gnatswarm" or not os.path.isabs(script):
        return shlex.join((_nearby(own[0]), *own[1:]))
    return "gnatswarm" if _is_first_on_path(script) else shlex.quote(_nearby(script))


def _is_first_on_path(script: str) -> bool:
    """Whether a shell runs this one by its name. Without `shutil`, which imports compression at every start."""
    for directory in os.get_exec_path():
        found = os.path.join(directory, os.path.basename(script))
        if os.path.isfile(found) and os.access(found, os.X_OK):
            return os.path.samefile(found, script)
    return False


def _nearby(path: str) -> str:
    """Relative, if it is in this directory or below."""
    try:
        here = os.getcwd().rstrip("/") + "/"
    except OSError:  # it has been removed
        return path
    return path.removeprefix(here)


def show(text: str) -> None:
    """Write the text to standard output; if that is closed, or takes nothing now, the broker serves all the same."""
    try:
        output = select.poll()
        output.register(sys.stdout, select.POLLOUT)
        if output.poll(0):  # a pipe that is full, or a terminal after ^S, would stop the router
            sys.stdout.write(text)
            sys.stdout.flush()
    except (OSError, ValueError, AttributeError, TypeError):
        return
