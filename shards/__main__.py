"""`python -P -m gnatswarm.shards --control-fd N`: one shard process, started only by the router."""

from __future__ import annotations

import sys


def main(arguments: list[str]) -> int:
    """Run the shard; return its exit code."""
    if len(arguments) != 2 or arguments[0] != "--control-fd" or not arguments[1].isdigit():
        print("gnatswarm: a shard is started by the router; run `gnatswarm`", file=sys.stderr)
        return 2
    from gnatswarm.shards.worker import run

    return run(int(arguments[1]))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
