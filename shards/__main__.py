"""`python -P -m shards --control-fd N`: one shard process, started by the router and by nobody else."""

from __future__ import annotations

import sys


def main(arguments: list[str]) -> int:
    """Runs the shard; its exit code."""
    if len(arguments) != 2 or arguments[0] != "--control-fd" or not arguments[1].isdigit():
        print("gnatswarm: a shard is started by the router; run `gnatswarm`", file=sys.stderr)
        return 2
    from shards.worker import run

    return run(int(arguments[1]))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
