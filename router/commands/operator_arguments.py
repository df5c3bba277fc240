"""The arguments of commands to a running broker, such as `gnatswarm scale`: the command, and which broker it is for."""

from __future__ import annotations

import os
from typing import NamedTuple

from gnatswarm.router.config.cores import MAX_SHARDS
from gnatswarm.router.config.flags import BadCommandLine, CommandLine, parse
from gnatswarm.router.config.option_values import Mistake, duration_s
from gnatswarm.router.supervision.operator_socket import RELAY_S

# The commands that have --json.
WITH_JSON = ("status", "why")
# The flags that say which broker is asked, by their first names, and those of `why`.
WHICH = ("p", "P")
OF_WHY = ("c", "user")


class OperatorArguments(NamedTuple):
    """One command to a running broker."""

    command: str  # "scale", "rebalance", "restart", "status", "health", "reload" or "why"
    shards: int = 0  # scale: the wanted number, 1..62
    pid: str = ""  # -P: process id or pid file of the router; "": the only one that runs
    port: int | None = None  # -p: its client port; None: any
    as_json: bool = False  # --json: for programs instead of people
    subject: str = ""  # why: the subject
    user: str = ""  # why: --user
    executable: str = ""  # upgrade: the program that is to take over, absolute; "": the broker's own
    config: CommandLine | None = None  # why: with -c FILE, instead of a running broker
    tls_within_s: float = RELAY_S  # restart, upgrade: --tls-within: so long old processes encrypt for clients with TLS
    finishes: bool = False  # restart, upgrade: --finish: end those that do, instead of a restart


def operator_arguments(line: CommandLine, program: str) -> OperatorArguments:
    """Parse the words of a command line, with flags before or after the command; BadCommandLine for an error."""
    command, *rest = line.words
    if command == "upgrade" and "" in rest:
        raise BadCommandLine(f"upgrade: which program? it is empty (without one: {program} upgrade)")
    count = rest.pop(0) if command == "scale" and rest and not rest[0].startswith("-") else ""
    subject = rest.pop(0) if command == "why" and rest and not rest[0].startswith("-") else ""
    tls_within_s, finishes = _about_tls(command, rest)
    executable = rest.pop(0) if command == "upgrade" and rest and not rest[0].startswith("-") else ""
    after = parse(rest)
    if command == "upgrade" and not executable and after.words:
        executable = after.words.pop(0)
    if command == "scale" and not count and after.words:
        count = after.words.pop(0)
    if finishes and executable:
        raise BadCommandLine("upgrade: --finish ends what an upgrade has left; it takes no program")
    if command == "why" and not subject:
        subject = after.words.pop(0) if after.words else ""
        if not subject:
            raise BadCommandLine(f"why: which subject? (as in: {program} why orders.new --user ann)")
    if after.words:
        raise BadCommandLine(f'unexpected "{after.words[0]}" after {command}')
    shards = 0
    if command == "scale":
        if not count.isascii() or not count.isdigit() or not 1 <= int(count[:9]) <= MAX_SHARDS:
            raise BadCommandLine(
                f'scale: "{count}" is no number of shards (write 1 to {MAX_SHARDS}, as in: {program} scale 4)'
            )
        shards = int(count)
    values = line.values | after.values
    if values.get("json") and command not in WITH_JSON:
        raise BadCommandLine(f"{command}: --json is for {' and '.join(WITH_JSON)}")
    _check_flags(command, line.spelled | after.spelled, program)
    port = values.get("p")
    if values.get("c") == "":
        raise BadCommandLine(f"{command}: --config is empty: which file?")
    if values.get("P") == "":  # a script's empty variable must not choose whichever broker there is
        raise BadCommandLine(f"{command}: --pid is empty: which broker?")
    return OperatorArguments(
        command,
        shards,
        str(values.get("P", "")),
        port if isinstance(port, int) else None,
        bool(values.get("json", False)),
        subject,
        str(values.get("user", "")),
        _absolute(executable),
        CommandLine({"c": values["c"]}, {"c": "c"}, []) if values.get("c") else None,
        tls_within_s,
        finishes,
    )


def _check_flags(command: str, spelled: dict[str, str], program: str) -> None:
    """BadCommandLine for a flag that would have no effect. `spelled`: first name → as it was given."""
    known = (*WHICH, "json", *(OF_WHY if command == "why" else ()))
    given = next((spelled[name] for name in spelled if name not in known), "")
    if given:
        words = f"{command} 4" if command == "scale" else command
        raise BadCommandLine(
            f"{command}: -{given} is for a start; -p PORT or -P PID says which running broker is asked"
            f" (as in: {program} {words} -p 4222)"
        )
    which = next((spelled[name] for name in WHICH if name in spelled), "")
    if which and "c" in spelled:
        raise BadCommandLine(f"{command}: -{spelled['c']} asks a file, -{which} a running broker: give one of them")


def _about_tls(command: str, words: list[str]) -> tuple[float, bool]:
    """Take --tls-within and --finish of restart and upgrade out of these words: (seconds, whether to finish)."""
    within_s, finishes = RELAY_S, False
    if command not in ("restart", "upgrade"):
        return within_s, finishes
    rest = words[:]
    words.clear()
    while rest:
        word = rest.pop(0)
        name, equals, text = word.lstrip("-").partition("=")
        name = name.replace("_", "-")
        if word[0:1] == "-" and name == "finish" and not equals:
            finishes = True
        elif word[0:1] == "-" and name == "tls-within":
            if not equals and not rest:
                raise BadCommandLine("flag needs an argument: --tls-within")
            try:
                within_s = float(duration_s(text if equals else rest.pop(0)))
            except Mistake as error:
                raise BadCommandLine(f"--tls-within: {error}") from None
        else:
            words.append(word)
    return within_s, finishes


def _absolute(executable: str) -> str:
    """The program as the broker finds it, whose directory and PATH may be others."""
    if not executable:
        return ""
    import shutil  # which imports compression, and other commands need it not

    return os.path.abspath(shutil.which(executable) or executable)
