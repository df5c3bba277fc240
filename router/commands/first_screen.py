"""The first screen: a short summary on standard output for a person who has started a broker by hand.

Log lines, on standard error or in a file, are for programs, too; this text is for people only. It is not printed under
the name `nats-server`, because scripts expect its standard output to be empty.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence

from gnatswarm import broker
from gnatswarm.broker import version

_MODULES = ("parser", "sublist", "fanout")


def is_compiled() -> bool:
    """Whether the engine's compiled modules exist."""
    names = os.listdir(os.path.dirname(os.path.abspath(broker.__file__)))
    return all(any(name.startswith(module + ".") and name.endswith(".so") for name in names) for module in _MODULES)


def first_screen(address: str, pid: int, shard_pids: Sequence[int], accept: str, *, is_open: bool = True) -> str:
    """The text; `address` is HOST:PORT. `is_open`: clients need neither to log in nor to encrypt."""
    host, _, port = address.rpartition(":")
    dial = f"127.0.0.1/{port}" if host in ("0.0.0.0", "[::]") else f"{host.strip('[]')}/{port}"
    compiled = "compiled" if is_compiled() else "NOT compiled: run `make build`"
    pids = " ".join(str(shard) for shard in shard_pids[:8]) + (" …" if len(shard_pids) > 8 else "")
    shards = f"{len(shard_pids)} shard{'' if len(shard_pids) == 1 else 's'}"
    return (
        f"gnatswarm {version.OWN_VERSION} ({compiled}, speaks like nats-server {version.SERVER_VERSION})\n"
        f"  listening   {address}\n"
        f"  processes   router {pid}, {shards} ({accept}): {pids}\n"
    ) + (_trial(dial) if is_open else "")


def _trial(dial: str) -> str:
    """A line to type; needs only bash, which every host has."""
    return (
        f"  try         exec 3<>/dev/tcp/{dial}; "
        "printf 'SUB hi 1\\r\\nPUB hi 5\\r\\nhello\\r\\n' >&3; timeout 1 cat <&3\n"
    )


def show(text: str) -> None:
    """Write the text to standard output; if that is closed, the broker serves all the same."""
    try:
        sys.stdout.write(text)
        sys.stdout.flush()
    except (OSError, ValueError, AttributeError):
        return
