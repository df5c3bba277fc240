"""`--signal`: finds the process of a running broker, and sends it a signal.

The router's supervisor handles the signals. This module never signals a process group or all processes: it refuses a
pid of 0 or below, also from a pid file. (The real server passes such a pid to kill(2), where -1 means every process.)
"""

from __future__ import annotations

import os
import signal
from collections.abc import Iterable

from gnatswarm.router.config.flags import BadCommandLine, parse

# The real server's names. Its `stop` is SIGKILL, and so is ours: a router's shards die with it.
SIGNALS = {
    "stop": signal.SIGKILL,
    "quit": signal.SIGINT,
    "term": signal.SIGTERM,
    "reopen": signal.SIGUSR1,
    "reload": signal.SIGHUP,
    "ldm": signal.SIGUSR2,
}
LARGEST_PID = 2**22  # the kernel's largest; a larger number in a pid file is invalid


class SignalError(Exception):
    """The signal was not sent; the text says why, in the real server's words where it has any."""


def send(command: str, program: str) -> int:
    """Carry out `reload`, `reload=1234` or `reload=/run/x.pid`; returns the pid of the process."""
    name, _, target = command.partition("=")
    number = SIGNALS.get(name)
    if number is None:
        raise SignalError(f'unknown signal "{name}" (there are {", ".join(SIGNALS)})')
    pid = find_pid(target, program)
    try:
        os.kill(pid, number)
    except ProcessLookupError:
        raise SignalError(f"no such process: {pid}") from None
    except PermissionError:
        raise SignalError(f"operation not permitted: {pid} is another user's process") from None
    return pid


def find_pid(target: str, program: str) -> int:
    """The pid for `target`: a pid, a pid file, or "" for the only running process of this program."""
    if target:
        return _valid_pid(target) if _looks_like_pid(target) else read_pid_file(target)
    running = sorted(running_pids(program))
    if not running:
        raise SignalError(f"no {program} processes running (name a pid, or a pid file, after =)")
    if len(running) > 1:
        pids = "\n".join(map(str, running))
        raise SignalError(f"multiple {program} processes running:\n{pids}\nname one of them after =")
    return running[0]


def read_pid_file(path: str) -> int:
    """The pid in a pid file. It is not checked whether the process runs."""
    try:
        with open(path, encoding="ascii", errors="replace") as stream:
            text = stream.read(64).strip()
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else error
        raise SignalError(f"invalid pid: {path} (neither a number nor a readable pid file: {reason})") from None
    if not _looks_like_pid(text):
        raise SignalError(f"invalid pid: {path} does not hold a number")
    return _valid_pid(text)


def running_pids(program: str, *, proc: str = "/proc") -> Iterable[int]:
    """Running routers of this program, without this process; found by their command lines."""
    own = os.getpid()
    for name in os.listdir(proc):
        if not name.isdigit() or int(name) == own:
            continue
        try:
            with open(f"{proc}/{name}/cmdline", "rb") as stream:
                words = stream.read(4096).split(b"\0")
        except OSError:  # it ended meanwhile
            continue
        if _is_router(words, program):
            yield int(name)


def _is_router(words: list[bytes], program: str) -> bool:
    """Whether this is `/x/PROGRAM …`, `python /x/PROGRAM …`, or `python -P -m gnatswarm …`, and no command of ours.

    `gnatswarm top` is none: `--signal stop` would kill it, or find several brokers.
    """
    if os.path.basename(words[0]) == program.encode():
        return _has_no_command(words[1:])
    if not os.path.basename(words[0]).startswith(b"python"):
        return False
    for index, word in enumerate(words[1:], 1):
        if word == b"-m":
            is_it = program == "gnatswarm" and words[index + 1 : index + 2] == [b"gnatswarm"]
            return is_it and _has_no_command(words[index + 2 :])
        if not word.startswith(b"-"):
            return os.path.basename(word) == program.encode() and _has_no_command(words[index + 1 :])
    return False


def _has_no_command(words: list[bytes]) -> bool:
    """A broker is started with flags alone; a command may have some in front (`gnatswarm -m 8222 top`)."""
    given = [os.fsdecode(word) for word in words]
    try:
        return not any(parse(given[:-1] if given[-1:] == [""] else given).words)
    except BadCommandLine:  # longer than what was read, or of another version
        return given[0].startswith("-")


def _looks_like_pid(text: str) -> bool:
    return text.isascii() and text.lstrip("+-").isdigit()


def _valid_pid(text: str) -> int:
    pid = int(text[:20])
    if not 1 <= pid <= LARGEST_PID:  # 0 and below are process groups; in a container the broker can be 1
        raise SignalError(f"invalid pid: {text}")
    return pid
