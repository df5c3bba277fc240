"""The arguments of `gnatswarm scale`, `status`, `health` and `reload`: the command, and which broker it is for."""

from __future__ import annotations

from typing import NamedTuple

from gnatswarm.router.config.flags import BadCommandLine, CommandLine, parse


class OperatorArguments(NamedTuple):
    """One command to a running broker."""

    command: str  # "scale", "status", "health" or "reload"
    shards: int = 0  # scale: the wanted number, 1..64
    pid: str = ""  # -P: process id or pid file of the router; "": the only one that runs
    port: int | None = None  # -p: its client port; None: any
    as_json: bool = False  # --json: for programs instead of people


def operator_arguments(line: CommandLine, program: str) -> OperatorArguments:
    """Parse the words of a command line, with flags before or after the command; BadCommandLine for an error."""
    command, *rest = line.words
    count = rest.pop(0) if command == "scale" and rest and not rest[0].startswith("-") else ""
    after = parse(rest)
    if after.words:
        raise BadCommandLine(f'unexpected "{after.words[0]}" after {command}')
    shards = 0
    if command == "scale":
        if not count.isascii() or not count.isdigit() or not 1 <= int(count[:9]) <= 64:
            raise BadCommandLine(f'scale: "{count}" is no number of shards (write 1 to 64, as in: {program} scale 4)')
        shards = int(count)
    values = line.values | after.values
    port = values.get("p")
    return OperatorArguments(
        command,
        shards,
        str(values.get("P", "")),
        port if isinstance(port, int) else None,
        bool(values.get("json", False)),
    )
