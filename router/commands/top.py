"""`gnatswarm top`: shows a broker in a terminal, read from its monitoring pages every second.

Works with the real nats-server's pages, too, without shards and subjects, which those do not have. `view()` is pure: it
makes of two snapshots something that rich can draw. Reads keys only if standard input is a terminal.
"""

from __future__ import annotations

import base64
import contextlib
import getpass
import http.client
import json
import os
import select
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from datetime import datetime
from typing import Any, NamedTuple, TextIO
from urllib.parse import quote, unquote, urlsplit

try:
    from rich import box
    from rich.console import Console, Group
    from rich.live import Live
    from rich.panel import Panel
    from rich.table import Table
    from rich.text import Text
except ModuleNotFoundError as missing:
    raise SystemExit("gnatswarm top draws with rich, which is not installed: pip install 'gnatswarm[top]'") from missing

from gnatswarm.broker.quoted import visible

ADVICE = "a broker has these pages with -m 8222"
ANSWER_DEADLINE_S = 5.0
ATTEMPTS = 3  # to type a password
MOST_ANSWER_BYTES = 64 * 1024 * 1024
# Columns if the width is not known, such as in a file.
WIDE = 150
# On a screen with fewer columns the general figures have shorter labels.
NARROW = 110

# Key → how connections are sorted, in the order shown.
SORTS = {
    "c": "cid",
    "s": "subs",
    "p": "pending",
    "f": "msgs_from",
    "t": "msgs_to",
    "F": "bytes_from",
    "T": "bytes_to",
    "i": "idle",
    "u": "uptime",
}
KEYS_TEXT = (
    "sort: [b]c[/]id [b]s[/]ubs [b]p[/]ending msgs [b]f[/]rom msgs [b]t[/]o bytes [b]F[/]rom bytes [b]T[/]o "
    "[b]i[/]dle [b]u[/]ptime   [b]n[/] connections or subjects   [b]q[/]uit"
)


class CannotLook(Exception):
    """The monitoring pages cannot be read; the text says why."""


class PasswordWanted(CannotLook):
    """The pages require a user and a password."""


class Look(NamedTuple):
    """A snapshot of the pages; None: that broker has no such page."""

    at_s: float
    general: dict[str, Any]
    connections: dict[str, Any]
    shards: dict[str, Any] | None
    subjects: dict[str, Any] | None


class PagesClient:
    """The monitoring pages at a URL, which may carry a user and a password."""

    def __init__(self, url: str) -> None:
        try:
            parts = urlsplit(url if "//" in url else f"http://{url}")
            port = parts.port or 8222
        except ValueError:  # such as http://[::1, and a port that is no number, or too large
            parts, port = urlsplit(""), 0
        is_printable = url.isprintable() and " " not in url
        if parts.scheme not in ("http", "https") or not parts.hostname or not is_printable:
            raise CannotLook(f"{visible(url)} is no address of monitoring pages (as in http://127.0.0.1:8222)")
        host = f"[{parts.hostname}]" if ":" in parts.hostname else parts.hostname
        self.url = f"{parts.scheme}://{host}:{port}{parts.path.rstrip('/')}"
        self._headers: dict[str, str] = {}
        self.user = unquote(parts.username or "")
        if parts.username:
            self.log_in(self.user, unquote(parts.password or ""))
        # Connect directly, without a proxy from the environment.
        self._opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))

    def log_in(self, user: str, password: str) -> None:
        """Send this user and password with every request from now on."""
        self.user = user
        self._headers["Authorization"] = "Basic " + base64.b64encode(f"{user}:{password}".encode()).decode()

    def get(self, page: str) -> dict[str, Any] | None:
        """One page; None where it does not exist."""
        request = urllib.request.Request(f"{self.url}/{page}", headers=self._headers)
        try:
            with self._opener.open(request, timeout=ANSWER_DEADLINE_S) as answer:
                found = json.loads(answer.read(MOST_ANSWER_BYTES))
        except urllib.error.HTTPError as error:
            if error.code == 404:
                return None
            if error.code == 401:
                raise PasswordWanted(
                    f"{self.url} wants a user and a password: http://USER:PASSWORD@HOST:PORT"
                    + (", or others than these" if self._headers else "")
                ) from None
            said = visible(error.read(200).decode("utf-8", "replace").strip())
            raise CannotLook(f"{self.url}/{page}: {error.code} {said}") from None
        except OSError as error:
            raise CannotLook(f"{self.url} does not answer: {_why(error)} ({ADVICE})") from None
        except http.client.HTTPException:  # such as the INFO of a port for clients
            raise CannotLook(f"{self.url} does not answer as a monitoring port does ({ADVICE})") from None
        except (ValueError, RecursionError):
            raise CannotLook(f"{self.url}: its answer is no document in JSON ({ADVICE})") from None
        if not isinstance(found, dict):
            raise self.is_no_broker()
        return found

    def is_no_broker(self) -> CannotLook:
        """The error for pages that are there, but something else's."""
        return CannotLook(f"{self.url}: these are not a broker's monitoring pages")

    def look(self, sort: str, limit: int, *, wants_subjects: bool) -> Look:
        """All that one screen shows."""
        general = self.get("varz")
        connections = self.get(f"connz?sort={quote(sort)}&limit={limit}&auth=1")
        if general is None or connections is None:
            raise CannotLook(f"{self.url} has no /varz and /connz: these are not a broker's monitoring pages")
        subjects = self.get(f"subjectz?limit={limit}") if wants_subjects else None
        return Look(_seconds(general["now"]), general, connections, self.get("shardz?links=0"), subjects)


def _why(error: Exception) -> str:
    """The error's text, without the number that Python puts in front."""
    reason = getattr(error, "reason", error)
    return reason.strerror if isinstance(reason, OSError) and reason.strerror else str(reason)


def _seconds(text: str) -> float:
    """A page's time; Go writes nanoseconds, which Python does not read."""
    whole, _, fraction = text.removesuffix("Z").partition(".")
    return datetime.fromisoformat(whole + "+00:00").timestamp() + float(f"0.{fraction or 0}")


def rates(before: Look | None, now: Look) -> dict[str, float]:
    """Messages and bytes per second between two snapshots; 0 for the first one, or after a restart of the broker."""
    found = {}
    for name in ("in_msgs", "out_msgs", "in_bytes", "out_bytes"):
        grown = now.general[name] - before.general[name] if before else 0
        took_s = now.at_s - before.at_s if before else 0.0
        found[name] = grown / took_s if took_s > 0 and grown > 0 else 0.0
    return found


def count_text(value: float) -> str:
    """12, 1,234, 12.3k, 4.5M."""
    if value < 10_000:
        return f"{value:,.0f}"
    for size, unit in ((1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k")):
        if value >= size:
            return f"{value / size:.1f}{unit}"
    return f"{value:.0f}"


def bytes_text(value: float) -> str:
    """12 B, 1.2 KB, 4.5 MB."""
    for size, unit in ((1e12, "TB"), (1e9, "GB"), (1e6, "MB"), (1e3, "KB")):
        if value >= size:
            return f"{value / size:.1f} {unit}"
    return f"{value:.0f} B"


def view(
    before: Look | None, now: Look, sort: str, *, shows_subjects: bool = False, rows: int = 50, width: int = WIDE
) -> Group:
    """The screen, with at most `rows` in its last table; a narrow one has fewer columns."""
    parts: list[Any] = [_general(before, now, width)]
    if now.shards is not None:
        parts.append(_shards(before, now, width))
    if shows_subjects:
        parts.append(_subjects(before, now, rows))
    else:
        parts.append(_connections(now, sort, rows, width))
    parts.append(Text.from_markup(KEYS_TEXT, style="dim"))
    return Group(*parts)


def _general(before: Look | None, now: Look, width: int) -> Panel:
    general, rate = now.general, rates(before, now)
    is_narrow = width < NARROW
    grid = Table.grid(padding=(0, 2 if is_narrow else 3))
    so_far = "" if is_narrow else f" of {general['total_connections']:d} so far"
    slow = f"{'slow' if is_narrow else 'slow consumers'} [b]{general['slow_consumers']:d}[/]"
    for name, cells in (
        (
            "in",
            (
                f"CPU [b]{general['cpu']:g}[/] %",
                f"{'conns' if is_narrow else 'connections'} [b]{general['connections']:d}[/]{so_far}",
            ),
        ),
        (
            "out",
            (
                f"{'mem' if is_narrow else 'memory'} [b]{bytes_text(general['mem'])}[/]",
                f"{'subs' if is_narrow else 'subscriptions'} [b]{general['subscriptions']:d}[/]   {slow}",
            ),
        ),
    ):
        in_all = () if is_narrow else (f"{count_text(general[f'{name}_msgs'])} in all",)
        speeds = (
            f"[b]{count_text(rate[f'{name}_msgs'])}[/] msg/s {name}",
            f"[b]{bytes_text(rate[f'{name}_bytes'])}[/]/s {name}",
        )
        grid.add_row(*speeds, *in_all, *cells)
    own = general.get("gnatswarm")
    program = f"gnatswarm {own}" if own else f"nats-server {general['version']}"
    name = "" if general["server_name"] == general["server_id"] else f"{general['server_name']} · "
    # A Text: of a string rich takes what is in brackets for markup.
    title = Text(visible(f"{name}{program} · up {general['uptime']}"))
    return Panel(grid, title=title, title_align="left", box=box.ROUNDED)


def _table(*columns: tuple[str, str]) -> Table:
    """Columns are (heading, side); numbers are right-aligned and never cut."""
    table = Table(box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0), expand=True, header_style="bold")
    for heading, side in columns:
        if side == "left":
            table.add_column(heading, no_wrap=True, overflow="ellipsis", ratio=1, min_width=8)
        else:
            table.add_column(heading, justify="right", no_wrap=True, min_width=len(heading))
    return table


def _chosen(cells: list[tuple[str, str, Any, int]], width: int) -> list[tuple[str, str, Any]]:
    """The columns that fit this screen, of (heading, side, cell of a row, minimum width of the screen)."""
    return [(heading, side, cell) for heading, side, cell, least in cells if width >= least]


def _shards(before: Look | None, now: Look, width: int) -> Table:
    earlier = {row["shard"]: row for row in before.shards["shards"]} if before and before.shards else {}
    took_s = now.at_s - before.at_s if before else 0.0

    def speed(row: dict[str, Any], name: str) -> str:
        grown = row[name] - earlier.get(row["shard"], row)[name]
        return count_text(max(0.0, grown / took_s) if took_s > 0 else 0.0)

    columns = _chosen(
        [
            ("SHARD", "right", lambda row: str(row["shard"]), 0),
            ("STATE", "left", _state, 0),
            ("CONNS", "right", lambda row: str(row["connections"]), 0),
            ("SUBS", "right", lambda row: count_text(row["subscriptions"]), 0),
            ("IN MSG/S", "right", lambda row: speed(row, "in_msgs"), 0),
            ("OUT MSG/S", "right", lambda row: speed(row, "out_msgs"), 0),
            ("CPU %", "right", lambda row: f"{row['cpu']:.0f}", 0),
            ("LAG ms", "right", lambda row: f"{row['loop_lag_us'] / 1000:.1f}", 0),
            ("MEMORY", "right", lambda row: bytes_text(row["mem"]), 100),
            ("SLOW", "right", lambda row: str(row["slow_consumers"]), 100),
            ("STARTS", "right", lambda row: str(row["starts"]), 100),
        ],
        width,
    )
    table = _table(*((heading, side) for heading, side, _cell in columns))
    assert now.shards is not None
    for row in now.shards["shards"]:
        table.add_row(*(_cell(cell(row)) for _heading, _side, cell in columns))
    return table


def _cell(value: str | Text) -> Text:
    """One cell: a string is no markup, and has nothing that a terminal obeys."""
    return value if isinstance(value, Text) else Text(visible(value))


def _state(row: dict[str, Any]) -> Text:
    state = "late" if row.get("suspect") else str(row["state"])
    return Text(visible(state), style={"ready": "green", "stopped": "dim"}.get(state, "bold red"))


def _connections(now: Look, sort: str, rows: int, width: int) -> Table:
    columns = _chosen(
        [
            ("CID", "right", lambda row: str(row["cid"]), 0),
            ("NAME", "left", lambda row: row.get("name", ""), 0),
            ("ADDRESS", "left", lambda row: f"{row['ip']}:{row['port']}", 120),
            ("SUBS", "right", lambda row: str(row["subscriptions"]), 0),
            ("PENDING", "right", lambda row: bytes_text(row["pending_bytes"]), 0),
            ("MSGS FROM", "right", lambda row: count_text(row["in_msgs"]), 0),
            ("MSGS TO", "right", lambda row: count_text(row["out_msgs"]), 0),
            ("BYTES FROM", "right", lambda row: bytes_text(row["in_bytes"]), 100),
            ("BYTES TO", "right", lambda row: bytes_text(row["out_bytes"]), 100),
            ("RTT", "right", lambda row: "" if row.get("rtt", "0s") == "0s" else row["rtt"], 140),
            ("IDLE", "right", lambda row: row["idle"], 0),
            ("UPTIME", "right", lambda row: row["uptime"], 100),
        ],
        width,
    )
    table = _table(*((heading, side) for heading, side, _cell in columns))
    for row in (now.connections["connections"] or [])[:rows]:
        table.add_row(*(_cell(cell(row)) for _heading, _side, cell in columns))
    table.title = f"{now.connections['total']:d} connections, by {sort}"
    table.title_justify = "left"
    return table


def _subjects(before: Look | None, now: Look, rows: int) -> Table:
    columns = ("MSG/S", "MSGS", "BYTES", "DELIVERIES", "FAN-OUT", "PUBLISHERS", "SUBSCRIBERS")
    table = _table(("SUBJECT", "left"), *((heading, "right") for heading in columns))
    table.title_justify = "left"
    if now.subjects is None:
        table.title = "this broker does not count by subject"
        return table
    is_recorded = now.subjects.get("recorder") == "on"
    table.title = "hot subjects" + (
        f" of the last {now.subjects['seconds']:.0f} s"
        if is_recorded
        else ", since each was cached: statistics are off"
    )
    earlier: dict[tuple[str, str], int] = {}
    if before is not None and before.subjects is not None:
        earlier = {(row.get("account", "$G"), row["subject"]): row["msgs"] for row in before.subjects["subjects"]}
    took_s = now.at_s - before.at_s if before else 0.0
    is_lost = False
    for row in now.subjects["subjects"][:rows]:
        account = row.get("account", "$G")
        grown = row["msgs"] - earlier.get((account, row["subject"]), row["msgs"])
        is_lost = is_lost or not row["wanted"]
        table.add_row(
            Text(visible(row["subject"] if account == "$G" else f"{account} · {row['subject']}")),
            count_text(row.get("msgs_per_s", max(0.0, grown / took_s) if took_s > 0 else 0.0)),
            count_text(row["msgs"]),
            bytes_text(row["bytes"]),
            count_text(row["deliveries"]),
            f"{row['fanout']:g}",
            str(row.get("publishers") or ""),
            _subscribers(row),
        )
    if is_lost:
        table.caption = "to nobody: [b]gnatswarm why SUBJECT --user USER[/] says what stops it"
        table.caption_justify = "left"
    return table


def _subscribers(row: dict[str, Any]) -> Text:
    if not row["wanted"]:
        return Text("nobody", style="yellow")
    return Text("" if row["subject"].endswith(".>") else str(row["subscribers"]))


# ---- the screen


def _is_terminal(stream: TextIO | None) -> bool:
    """None: it is closed (`>&-`)."""
    return stream is not None and stream.isatty()


@contextlib.contextmanager
def _single_keys() -> Iterator[bool]:
    """Read keys one by one without echo; yields False if standard input is no terminal."""
    if not _is_terminal(sys.stdin):
        yield False
        return
    import termios
    import tty

    before = termios.tcgetattr(sys.stdin)
    try:
        tty.setcbreak(sys.stdin)
        yield True
    finally:
        termios.tcsetattr(sys.stdin, termios.TCSADRAIN, before)


def _wait_key(interval_s: float, has_keys: bool) -> str:
    """The next key within that time, or ""."""
    if not has_keys:
        time.sleep(interval_s)
        return ""
    readable, _, _ = select.select([sys.stdin], [], [], interval_s)
    # Not through sys.stdin: it buffers, and select would not see the second of two keys.
    return os.read(sys.stdin.fileno(), 1).decode("ascii", "replace") if readable else ""


def _log_in(pages: PagesClient) -> None:
    """Ask for a user and a password, if the pages require them and there is a terminal. CannotLook, PasswordWanted."""
    for attempt in range(1 + ATTEMPTS):
        try:
            pages.get("varz")
            return
        except PasswordWanted as wanted:
            if attempt == ATTEMPTS or not _is_terminal(sys.stdin):
                raise
            why = wanted
        print(f"{pages.url} wants a user and a password.", file=sys.stderr)
        sys.stderr.write(f"User{f' [{pages.user}]' if pages.user else ''}: ")
        sys.stderr.flush()
        answer = sys.stdin.readline()
        if not answer:  # ^D
            raise why
        try:
            pages.log_in(answer.strip() or pages.user, getpass.getpass())
        except EOFError:
            raise why from None


def run(url: str, *, sort: str = "cid", interval_s: float = 1.0, looks: int = 0) -> int:
    """Show the screen until q or ^C, or `looks` times (0: no limit); returns the exit code."""
    console = Console() if _is_terminal(sys.stdout) else Console(width=WIDE)
    try:
        pages = PagesClient(url)
        _log_in(pages)
        before: Look | None = None
        shows_subjects = False
        is_screen = console.is_terminal and not console.is_dumb_terminal
        with _single_keys() as has_keys, _drawing(console, is_screen) as draw:
            shown = 0
            while True:
                rows = max(5, console.height - 15) if is_screen else 50
                try:
                    now = pages.look(sort, rows, wants_subjects=shows_subjects)
                    picture = view(before, now, sort, shows_subjects=shows_subjects, rows=rows, width=console.width)
                except (AttributeError, KeyError, TypeError, ValueError, OverflowError):
                    raise pages.is_no_broker() from None
                draw(picture)
                before = now
                shown += 1
                if looks and shown >= looks:
                    return 0
                key = _wait_key(interval_s, has_keys)
                if key in ("q", "\x03"):
                    return 0
                sort = SORTS.get(key, sort)
                if key == "n":
                    shows_subjects = not shows_subjects
    except KeyboardInterrupt:
        return 0
    except CannotLook as error:
        print(f"gnatswarm: {error}", file=sys.stderr)
        return 1


@contextlib.contextmanager
def _drawing(console: Console, is_screen: bool) -> Iterator[Any]:
    """Draw on the full screen of a terminal; elsewhere, also where TERM=dumb, print one screen below the other."""
    if not is_screen:
        yield console.print
        return
    with Live(console=console, screen=True, auto_refresh=False) as live:
        yield lambda picture: live.update(picture, refresh=True)
