"""Log lines in nats-server's format; router and shards write to the same file.

Scripts that grep a nats-server's log expect `[pid] 2026/11/20 09:38:49.123456 [INF] text`. Each record is one line and
one write() to a file opened with O_APPEND, so that lines of several processes never mix; in a pipe, only those of more
than 4 KiB do. `log_outlet` writes. It is a handler of the standard `logging`: other modules use
`logging.getLogger("gnatswarm.…")` and know nothing of files.

Invariants: logging never raises and never stops the broker (a full disk gives one line on standard error, then nothing
until writing works again; nobody is waited for who does not read a pipe); passwords, tokens and signatures do not
appear. Configured once per process at its start, and called again to reopen, to rotate and to change the level.
"""

from __future__ import annotations

import contextlib
import errno
import logging
import os
import re
import select
import stat
import time

import msgspec

from gnatswarm.broker.options import Logging
from gnatswarm.shards.boundary.log_outlet import Outlet
from gnatswarm.shards.boundary.utf8_text import utf8_text

# Type checkers know this name; importing `typing` would take time.
TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import NoReturn

    from gnatswarm.shards.boundary.syslog import Seeker

ROOT = "gnatswarm"
TRACE = 5  # every operation of every client; below DEBUG because it logs more

TAG = "gnatswarm"  # of lines in syslog

# A log that could not be opened is tried again with a line, so often at most.
OPEN_AGAIN_S = 1.0

# Only the router renames a log that has grown too big; shards then open the new file.
ROUTER_LABEL = "router"

_LEVEL_TAGS = {TRACE: "TRC", logging.DEBUG: "DBG", logging.INFO: "INF", logging.WARNING: "WRN", logging.ERROR: "ERR"}

# Credentials that a client sends in CONNECT; and the password in a URL.
_NAMES = "(?:auth_token|password|passwd|pass|token|jwt|proxy_sig|sig|nkey_seed|seed)"
# Texts, which `re` compiles when they are first of use: at a start that took three percent of the time.
_SECRET = rf"""(["']?\b{_NAMES}["']?\s*[:=]\s*)(?:"(?:[^"\\]|\\.)*"?|'(?:[^'\\]|\\.)*'?)"""
# A list or an object; one with others in it, or without an end, is the rest of the line.
_NESTED = r"""[\[{](?:[^][{}"]|"(?:[^"\\]|\\.)*+")*+[\]}]|[\[{](?s:.*+)"""
# A client that forgets the quotes, or sends a list, is refused, and its token is a secret all the same.
_SECRET_BARE = rf"""("{_NAMES}"\s*:\s*)(?:{_NESTED}|[^\s"',}}\]]+)"""
# A key with an escape may be any of these names: "pa\u0073s". Every string is matched whole, so that the time is
# proportional to the text, whatever a client has sent.
_STRING_OR_PAIR = (
    r"""("(?:[^"\\]|\\.)*+"?+\s*+)"""
    rf"""(:\s*+(?:"(?:[^"\\]|\\.)*+"?+|{_NESTED}|[^\s"',}}\]]++))?+"""
)
# A CONNECT as -V shows it. Of one that is not JSON nobody can tell where a value ends.
_CONNECT = r"- \[CONNECT\b\s*(.*)"
_SECRET_AND_REST = rf"""(\b{_NAMES}\b["'}}\s:=]*).+"""
_URL_PASSWORD = r"(://[^/\s:@]*:)[^\s/]+@"
_SECRET_HINTS = ("pass", "token", "jwt", "sig", "seed", "://", "\\u")
_CONTROL = {byte: f"\\x{byte:02x}" for byte in range(0x20) if byte != 0x09}
_CONTROL |= {0x0A: "\\n", 0x0D: "\\r"}
# What a terminal obeys, too: DEL, controls of 8 bits, and marks that turn the direction of text. As JSON escapes them.
_DIRECTIONS = (0x061C, 0x200E, 0x200F, *range(0x202A, 0x202F), *range(0x2066, 0x206A))
_OBEYED = {code: f"\\u{code:04x}" for code in (*range(0x7F, 0xA0), 0x2028, 0x2029, *_DIRECTIONS)}
_CONTROL |= _OBEYED | {0x7F: "\\x7f"}


def without_secrets(text: str) -> str:
    """`text` with the values of passwords, tokens and signatures replaced by [REDACTED], as in nats-server."""
    folded = text.casefold()
    if not any(hint in folded for hint in _SECRET_HINTS):
        return text
    connect = re.search(_CONNECT, text, re.IGNORECASE) if "[connect" in folded else None
    if connect is not None and not _is_json(connect[1].removesuffix("]")):
        text = re.sub(_SECRET_AND_REST, r"\1[REDACTED]", text, flags=re.IGNORECASE)
    text = re.sub(_SECRET, r'\1"[REDACTED]"', text, flags=re.IGNORECASE)
    text = re.sub(_SECRET_BARE, r"\1[REDACTED]", text, flags=re.IGNORECASE)
    if "\\u" in text:
        text = re.sub(_STRING_OR_PAIR, _without_value_of_escaped, text)
    return re.sub(_URL_PASSWORD, r"\1[REDACTED]@", text)


def _is_json(text: str) -> bool:
    try:
        msgspec.json.decode(text)
    except (ValueError, RecursionError):
        return False
    return True


def _without_value_of_escaped(found: re.Match[str]) -> str:
    key, value = found.groups()
    return f'{key}:"[REDACTED]"' if value and "\\" in key else found[0]


class LineFormatter(logging.Formatter):
    """Formats a record as nats-server does: `[pid] date time [INF] text`; each line of a traceback is a log line."""

    def __init__(
        self, *, logtime: bool, label: str = "", as_json: bool = False, utc: bool = False, pid: int = 0
    ) -> None:
        super().__init__()
        self._logtime = logtime
        self._broken_down = time.gmtime if utc else time.localtime
        self._json = as_json
        self._label = label
        self._prefix = f"{label} - " if label and label != ROUTER_LABEL else ""
        self._pid = pid or os.getpid()
        self._second = -1
        self._date = ""

    def format(self, record: logging.LogRecord) -> str:
        """One or more lines, without the last newline; control characters of the text are escaped."""
        try:
            text = record.getMessage()
        except (TypeError, ValueError, KeyError):  # the format does not fit its arguments: log both as they are
            text = f"{record.msg!s} {record.args!r}"
        lines = [without_secrets(text)]
        if record.exc_info:
            lines += map(without_secrets, self.formatException(record.exc_info).splitlines())
        if self._json:
            return self._json_line(record, lines)
        head = self._head(record) + self._prefix
        return "\n".join(head + line.translate(_CONTROL) for line in lines)

    def _head(self, record: logging.LogRecord) -> str:
        tag = _LEVEL_TAGS.get(record.levelno, "FTL")
        if not self._logtime:
            return f"[{self._pid}] [{tag}] "
        second = int(record.created)
        if second != self._second:  # once a second, not once a line
            self._second = second
            self._date = time.strftime("%Y/%m/%d %H:%M:%S", self._broken_down(second))
        return f"[{self._pid}] {self._date}.{int((record.created - second) * 1e6):06d} [{tag}] "

    def _json_line(self, record: logging.LogRecord, lines: list[str]) -> str:
        moment_us = int(record.created * 1e6)
        second = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(moment_us // 1_000_000))
        row: dict[str, object] = {
            "time": f"{second}.{moment_us % 1_000_000:06d}Z",
            "time_us": moment_us,
            "level": _LEVEL_TAGS.get(record.levelno, "FTL"),
            "pid": self._pid,
            "process": self._label,
            "logger": record.name,
            "text": utf8_text(lines[0]),
        } | _fields(record)
        if len(lines) > 1:
            row["traceback"] = [utf8_text(line) for line in lines[1:]]
        return msgspec.json.encode(row).decode().translate(_OBEYED)


class BareFormatter(LineFormatter):
    """The same without process id, time and level, which syslog has beside the text."""

    def _head(self, record: logging.LogRecord) -> str:
        return ""


def _fields(record: logging.LogRecord) -> dict[str, object]:
    """The client's fields in a JSON line: from `extra`, or from the argument that has `log_fields`."""
    found = getattr(record, "log_fields", None)
    for argument in record.args if isinstance(record.args, tuple) else ():
        found = found or getattr(argument, "log_fields", None)
    return {key: _shown(value) if isinstance(value, str) else value for key, value in (found or {}).items()}


def _shown(text: str) -> str:
    return utf8_text(without_secrets(text))


class LineHandler(logging.Handler):
    """Writes each record as one line to standard error or to a file shared with other processes."""

    def __init__(self, options: Logging, *, process_label: str, outlet: Outlet | None = None) -> None:
        """`outlet`: of standard error, if there is one already."""
        super().__init__()
        self._path = options.file
        self._limit_bytes = options.size_limit_bytes
        self._most_files = options.most_files
        self._rotates = process_label == ROUTER_LABEL
        self._label = process_label
        self._lost_lines = 0
        self._cannot_rotate = False
        self._backup = ""  # the name that the file has now, while the next one cannot be opened
        self._is_elsewhere = False  # the file cannot be opened yet, or no syslog answers
        self._opens_at_s = 0.0  # by the monotonic clock: it is tried not before
        self._seeker: Seeker | None = None  # looks for the syslog
        self._stand_in: logging.Handler | None = None  # another syslog, which has the lines meanwhile
        self.mutes_debug = options.trace and not options.debug  # see _level
        self.outlet = outlet if outlet is not None else _outlet_for(self._path)

    def emit(self, record: logging.LogRecord) -> None:
        """Write the record, or count it as lost; never raises."""
        if self.mutes_debug and record.levelno == logging.DEBUG:
            return
        if self._is_elsewhere and self._go_over(record):
            return
        stand_in = self._stand_in
        if stand_in is not None:
            stand_in.handle(record)
            return
        if self._limit_bytes:
            self._follow_or_rotate()
        try:
            self._write(self.format(record) + "\n")
        except Exception:  # what cannot be formatted, or written, costs a line, and not this process
            self._lost_lines += 1

    def reopen(self) -> str:
        """Open the file again by its name, as after logrotate; "" or why that failed (the old file stays in use)."""
        if not self._path:
            return ""
        try:
            outlet = _outlet_for(self._path)
        except OSError as error:
            return f"cannot open log file {self._path!r}: {error.strerror}"
        old, self.outlet = self.outlet, outlet
        old.retire()
        self._is_elsewhere = False
        self._dismiss_stand_in()
        return ""

    def seek(self, seeker: Seeker | None, stand_in: logging.Handler | None) -> None:
        """Lines go elsewhere for now: to the file when it can be opened, or to the syslog that the seeker finds.

        Until then to `stand_in`, if there is one.
        """
        self._is_elsewhere = True
        self._seeker = seeker
        self._stand_in = stand_in
        self._opens_at_s = time.monotonic() + OPEN_AGAIN_S

    def take_stand_in(self) -> logging.Handler | None:
        """The handler that has the lines meanwhile, which the caller closes."""
        found, self._stand_in = self._stand_in, None
        return found

    def _dismiss_stand_in(self) -> None:
        stand_in = self.take_stand_in()
        if stand_in is not None:
            stand_in.close()

    def _go_over(self, record: logging.LogRecord) -> bool:
        """Log where the configuration says, if that is possible now. True: another handler has the line."""
        root = logging.getLogger(ROOT)
        if self._seeker is None:
            if time.monotonic() >= self._opens_at_s:
                self._opens_at_s = time.monotonic() + OPEN_AGAIN_S
                if not self.reopen():
                    root.info("The log file can be opened now: earlier lines are elsewhere")
            return False
        found = self._seeker.take()
        if found is None:
            return False
        self._seeker = None
        root.addHandler(found)
        root.removeHandler(self)
        self.close()
        root.info("The syslog answers now: earlier lines are elsewhere")
        found.handle(record)
        return True

    def rotate_when_full(self) -> None:
        """Rotate now if the file is over its size limit; for the router's tick, because shards fill the file too."""
        if self._limit_bytes:
            self._follow_or_rotate()

    def flush(self) -> None:
        """Wait a moment for who reads what is left: at the end of the process."""
        self.outlet.flush()

    def close(self) -> None:
        """Write no more. What waits is still written, if need be by the handler that has the outlet now."""
        if self._seeker is not None:
            self._seeker.stop()
        self._dismiss_stand_in()
        if not any(one.outlet is self.outlet for one in _handlers()):
            self.outlet.retire()
        super().close()

    def outlet_for(self, options: Logging) -> Outlet | None:
        """The outlet, if a handler with these options writes to the same place: to standard error."""
        return self.outlet if not self._path and not options.file and not self._is_elsewhere else None

    def _follow_or_rotate(self) -> None:
        if not self._path or self._is_elsewhere:
            return
        try:
            mine = os.fstat(self.outlet.fd)
            if not self._rotates:
                named = os.stat(self._path)
                # The router renamed our file and made a new one. (While the name does not exist we go on writing
                # to the old file, which still works.)
                if (named.st_dev, named.st_ino) != (mine.st_dev, mine.st_ino):
                    self.reopen()
                return
            if mine.st_size < self._limit_bytes or not stat.S_ISREG(mine.st_mode):
                return
        except OSError:
            return
        backup = _backup_name(self._path)
        try:
            os.rename(self._path, backup)
            self._backup = backup
        except FileNotFoundError:
            pass  # it was renamed before, but the next one could not be opened; or by somebody else
        except OSError as error:  # a bind mount, a directory that may not be written
            self._say_cannot_rotate(error.strerror or str(error))
            return
        problem = self.reopen()
        if problem:  # no room, no descriptor: with the next line, or at the next tick, it is tried again
            self._say_cannot_rotate(problem)
            return
        self._cannot_rotate = False
        backup, self._backup = self._backup, ""
        if backup:
            logging.getLogger(ROOT).info('Rotated log, backup saved as "%s"', backup)
            self._purge(os.path.basename(backup))

    def _say_cannot_rotate(self, why: str) -> None:
        if not self._cannot_rotate:
            self._cannot_rotate = True  # first: the line comes here again
            logging.getLogger(ROOT).error('Unable to rotate the log "%s": %s', self._path, why)

    def _purge(self, rotated: str) -> None:
        """Remove the oldest of the rotated files where there are too many; only files that have a name as of ours.

        Names have local time, which is set back when summer time ends. Was a file changed later than `rotated`, which
        is the newest, then somebody has set the clock back since.
        """
        if not self._most_files:
            return
        directory, name = os.path.split(self._path)
        pattern = re.compile(re.escape(name) + _BACKUP_SUFFIX)
        try:
            with os.scandir(directory or ".") as found:
                changed_ns = {
                    one.name: one.stat().st_mtime_ns for one in found if pattern.fullmatch(one.name) and one.is_file()
                }
            latest_ns = changed_ns.get(rotated, 0)
            backups = sorted(changed_ns, key=lambda one: (changed_ns[one] <= latest_ns, changed_ns[one], one))
            for old in backups[: max(0, len(backups) - (self._most_files - 1))]:
                path = os.path.join(directory, old)
                os.remove(path)
                logging.getLogger(ROOT).info('Purged log file "%s"', path)
        except OSError as error:
            logging.getLogger(ROOT).error('Unable to remove old log files of "%s": %s', self._path, error.strerror)

    def _write(self, text: str) -> None:
        outlet = self.outlet
        self._lost_lines += outlet.take_lost_lines()
        try:
            if self._lost_lines:
                about = "%d log lines were lost: the log could not be written"
                note = logging.LogRecord(ROOT, logging.WARNING, "", 0, about, (self._lost_lines,), None)
                if outlet.write((self.format(note) + "\n").encode("utf-8", "backslashreplace")):
                    self._lost_lines = 0
            if not outlet.write(text.encode("utf-8", "backslashreplace")):
                self._lost_lines += 1
        except OSError as error:
            self._lost_lines += 1
            if self._lost_lines == 1 and self._path:
                line = f"{self._label}: cannot write log file {self._path!r}: {error.strerror}"
                _to_standard_error(f"{line}; silent until that works again\n")


def configure(options: Logging, *, process_label: str, pid: int = 0, must_open: bool = True) -> None:
    """Send everything below the logger "gnatswarm" where `options` says; may be called again to change that.

    `process_label` is "router" or, for example, "shard 3"; a shard's label is put before the text. `pid` is shown in
    each line, 0: our own; the router shows the keeper's, which is the broker's. Raises OSError when the file cannot be
    opened, or no syslog answers: fatal at the start; at a reload the caller keeps the old configuration. Not so if it
    needs not open (`must_open`): lines go where they went before, or to standard error, until it is possible.
    """
    as_json = options.format == "json"
    root = logging.getLogger(ROOT)
    old = list(root.handlers)
    problem = ""

    def formatter(kind: type[LineFormatter]) -> LineFormatter:
        return kind(logtime=options.logtime, label=process_label, as_json=as_json, utc=options.logtime_utc, pid=pid)

    def to_syslog() -> logging.Handler:
        from gnatswarm.shards.boundary.syslog import SyslogHandler

        handler = SyslogHandler(options, tag=TAG)
        handler.setFormatter(formatter(BareFormatter))
        return handler

    def to_lines() -> LineHandler:
        present = [one.outlet_for(options) for one in _handlers()]
        return LineHandler(options, process_label=process_label, outlet=present[0] if present else None)

    handler: logging.Handler
    stand_in: logging.Handler | None = None
    try:
        handler = to_syslog() if options.is_to_syslog else to_lines()
    except OSError as error:
        if must_open:
            raise
        problem = failure(options, error)
        stand_in = next(filter(None, map(_syslog_of, old)), None)
        present = [one.outlet.fd for one in _handlers()]
        handler = interim = LineHandler(
            options, process_label=process_label, outlet=Outlet(present[0] if present else 2)
        )
        if options.is_to_syslog:
            from gnatswarm.shards.boundary.syslog import Seeker

            interim.seek(Seeker(to_syslog), stand_in)
        else:
            interim.seek(None, stand_in)
    if isinstance(handler, LineHandler):
        handler.setFormatter(formatter(LineFormatter))
    logging.addLevelName(TRACE, "TRACE")
    logging.raiseExceptions = False  # a broken log line is never a reason to write a traceback into the log
    root.addHandler(handler)
    root.propagate = False
    root.setLevel(_level(options.debug, options.trace))
    for previous in old:
        root.removeHandler(previous)
        if previous is not stand_in:
            previous.close()
    if problem:
        root.error("%s; until that is possible, lines go here", problem[0].upper() + problem[1:])


def failure(options: Logging, error: OSError) -> str:
    """What to say when configure() has failed."""
    why = error.strerror or str(error)
    if options.is_to_syslog:
        return f'error connecting to syslog: "{options.remote_syslog or "the local one"}: {why}"'
    return f"cannot open the log file {options.file}: {why}"


def reopen() -> str:
    """Open the log file again (SIGUSR1); "" or one line saying why the old one stays in use."""
    return "; ".join(filter(None, (handler.reopen() for handler in _handlers())))


def exit_now(code: int) -> NoReturn:
    """End this process without any clean-up, but for the last lines."""
    for handler in _handlers():
        handler.flush()
    os._exit(code)


def rotate_when_full() -> None:
    """For the router's tick: rename a log that is over its size limit. A shard only follows to the new file."""
    for handler in _handlers():
        handler.rotate_when_full()


def _syslog_of(handler: logging.Handler) -> logging.Handler | None:
    """The syslog to which this one's lines go, for another handler to close."""
    return handler.take_stand_in() if isinstance(handler, LineHandler) else handler


def _handlers() -> list[LineHandler]:
    return [handler for handler in logging.getLogger(ROOT).handlers if isinstance(handler, LineHandler)]


def _level(debug: bool, trace: bool) -> int:
    # Levels of `logging` nest, -D and -V of nats-server do not: -V without -D logs TRACE but not DEBUG, for which
    # there is LineHandler.mutes_debug.
    return TRACE if trace else logging.DEBUG if debug else logging.INFO


def _open_log(path: str) -> int:
    # nats-server's mode. A log has no secrets, but it shows who talks to whom. A named pipe that nobody reads would be
    # waited for, by all processes of the broker.
    try:
        fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC | os.O_NONBLOCK, 0o640)
    except OSError as error:
        if error.errno == errno.ENXIO:
            raise OSError(errno.ENXIO, "nobody reads this named pipe", path) from None
        raise
    os.set_blocking(fd, True)
    return fd


def _outlet_for(path: str) -> Outlet:
    """Of this file; "": of standard error. OSError."""
    if not path:
        return Outlet(2)
    fd = _open_log(path)
    try:
        return Outlet(fd)
    finally:
        os.close(fd)


def _to_standard_error(line: str) -> None:
    """Of a process that has no log, or cannot write it. Who does not read within a second is not told."""
    poller = select.poll()
    poller.register(2, select.POLLOUT)
    with contextlib.suppress(OSError):  # nobody can be told
        if poller.poll(1000):
            os.write(2, line.encode("utf-8", "backslashreplace"))


_BACKUP_SUFFIX = r"\.\d{4}(\.\d\d){5}\.\d{9}"


def _backup_name(path: str) -> str:
    now_ns = time.time_ns()
    date = time.strftime("%Y.%m.%d.%H.%M.%S", time.localtime(now_ns // 1_000_000_000))
    return f"{path}.{date}.{now_ns % 1_000_000_000:09d}"


def fatal_line(text: str) -> None:
    """Write one [FTL] line to standard error, for errors before the log is configured."""
    _bare_line(logging.CRITICAL, text)


def error_line(text: str) -> None:
    """Likewise one [ERR] line, of a process that has no log."""
    _bare_line(logging.ERROR, text)


def _bare_line(level: int, text: str) -> None:
    record = logging.LogRecord(ROOT, level, "", 0, text, None, None)
    line = LineFormatter(logtime=True).format(record) + "\n"
    _to_standard_error(line)
