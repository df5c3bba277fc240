"""The command `gnatswarm`, also under the name `nats-server`: flags in, exit code out.

Starts fast: `-v` and `-h` import nothing of ours, `-t` no network code.
"""

from __future__ import annotations

import sys

OWN_VERSION = "0.1.0"
SERVER_VERSION = "2.9.10"


def main(argv: list[str] | None = None) -> int:
    """Run the program with these arguments (default: the process's own); the exit code."""
    program = sys.argv[0].rsplit("/", 1)[-1] if sys.argv else "gnatswarm"
    if program != "nats-server":
        program = "gnatswarm"
    arguments = list(sys.argv[1:] if argv is None else argv)
    changes: dict[str, object] = {}
    logging_changes: dict[str, object] = {}
    swarm_changes: dict[str, object] = {}
    while arguments:
        flag, _, value = arguments.pop(0).partition("=")
        flag = flag.lstrip("-")

        def argument(value: str = value) -> str:
            return value or arguments.pop(0)

        if flag in ("v", "version"):
            print(f"nats-server: v{SERVER_VERSION}" if program == "nats-server" else f"gnatswarm: v{OWN_VERSION}")
            return 0
        if flag in ("h", "help"):
            print("usage: gnatswarm [-a host] [-p port] [-n name] [--shards N] [--accept reuseport|handoff] [-D] [-V] [-v] [-h]")
            return 0
        if flag in ("a", "addr", "net"):
            changes["host"] = argument()
        elif flag in ("p", "port"):
            changes["port"] = int(argument())
        elif flag in ("n", "name", "server_name"):
            changes["server_name"] = argument()
        elif flag in ("m", "http_port"):
            changes["http_port"] = int(argument())
        elif flag in ("P", "pid"):
            changes["pid_file"] = argument()
        elif flag == "ports_file_dir":
            changes["ports_file_dir"] = argument()
        elif flag == "user":
            changes["auth_user"] = argument()
        elif flag == "pass":
            changes["auth_password"] = argument()
        elif flag == "auth":
            changes["auth_token"] = argument()
        elif flag == "shards":
            swarm_changes["shards"] = int(argument())
        elif flag == "accept":
            swarm_changes["accept"] = argument()
        elif flag in ("l", "log"):
            logging_changes["file"] = argument()
        elif flag in ("D", "V", "DV"):
            logging_changes |= {"debug": True} if "D" in flag else {}
            logging_changes |= {"trace": True} if "V" in flag else {}
        else:
            print(f"{program}: flag provided but not defined: -{flag}", file=sys.stderr)
            return 1
    from broker.options import Logging, Options, Swarm
    from router.supervisor import serve

    options = Options(**changes, logging=Logging(**logging_changes), swarm=Swarm(**swarm_changes))
    return serve(options, program=program)
