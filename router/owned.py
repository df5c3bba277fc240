"""`python -P -m gnatswarm.router.owned FD …`: the command for a broker that must end with the program that started it.

FD is a pipe whose other end that program holds: when the program ends, however it ends, the broker stops.
(PR_SET_PDEATHSIG would depend on the thread that started the broker.) The arguments after FD are those of `gnatswarm`.
"""

from __future__ import annotations

import os
import sys


def main(arguments: list[str]) -> int:
    """Run the command; returns its exit code."""
    if not arguments or not arguments[0].isdigit():
        print("gnatswarm: router.owned is started by programs; run `gnatswarm`", file=sys.stderr)
        return 2
    fd = int(arguments[0])
    os.set_inheritable(fd, False)
    from gnatswarm.router.cli import main as command

    return command(arguments[1:], program="gnatswarm", owner=fd)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
