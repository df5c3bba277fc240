"""`python -P -m gnatswarm.shards --control-fd N --lifeline-fd M`: one shard process, started only by the keeper."""

from __future__ import annotations

import sys


def main(arguments: list[str]) -> int:
    """Run the shard; return its exit code."""
    is_told = len(arguments) == 4 and arguments[::2] == ["--control-fd", "--lifeline-fd"]
    if not is_told or not all(number.isdigit() for number in arguments[1::2]):
        print("gnatswarm: a shard is started by its broker; run `gnatswarm`", file=sys.stderr)
        return 2
    from gnatswarm.shards.worker import run

    return run(int(arguments[1]), int(arguments[3]))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
