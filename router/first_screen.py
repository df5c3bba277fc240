"""The first screen: what somebody who just started a broker by hand wants to know, on standard output, once.

Log lines go to standard error or to a file and are for machines as well; this is for people alone. Nothing when the
program was called `nats-server`: scripts that stand in for it expect an empty standard output.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence

import broker
from broker import version

_FACES = ("parser", "sublist", "fanout")


def is_compiled() -> bool:
    """Whether the engine's hot path is there as extension modules of this interpreter."""
    names = os.listdir(os.path.dirname(os.path.abspath(broker.__file__)))
    return all(any(name.startswith(face + ".") and name.endswith(".so") for name in names) for face in _FACES)


def first_screen(address: str, pid: int, shard_pids: Sequence[int], accept: str) -> str:
    """The text; `address` as clients dial it, HOST:PORT."""
    host, _, port = address.rpartition(":")
    dial = f"127.0.0.1/{port}" if host in ("0.0.0.0", "[::]") else f"{host.strip('[]')}/{port}"
    compiled = "compiled" if is_compiled() else "NOT compiled: run `make build`"
    pids = " ".join(str(shard) for shard in shard_pids[:8]) + (" …" if len(shard_pids) > 8 else "")
    shards = f"{len(shard_pids)} shard{'' if len(shard_pids) == 1 else 's'}"
    return (
        f"gnatswarm {version.OWN_VERSION} ({compiled}, speaks like nats-server {version.SERVER_VERSION})\n"
        f"  listening   {address}\n"
        f"  processes   router {pid}, {shards} ({accept}): {pids}\n"
        # bash alone, because that is what every host has.
        f"  try         exec 3<>/dev/tcp/{dial}; "
        "printf 'SUB hi 1\\r\\nPUB hi 5\\r\\nhello\\r\\n' >&3; timeout 1 cat <&3\n"
    )


def show(text: str) -> None:
    """Write it, if there is anybody to read it; a closed standard output is no reason not to serve."""
    try:
        sys.stdout.write(text)
        sys.stdout.flush()
    except (OSError, ValueError, AttributeError):
        return
