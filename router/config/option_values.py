"""Checks of configured values: type, unit and range, one function for each kind of value.

Each function takes the value from the file or the flag (already a number, text, boolean …) and returns it as
`broker.options` needs it, or raises `Mistake`. Messages do not repeat values that could be secrets.
"""

from __future__ import annotations

import re

from gnatswarm.broker.bounds import (
    LARGEST_MAX_CONTROL_LINE_BYTES,
    LARGEST_MAX_PAYLOAD_BYTES,
    NO_MAX_CONNECTIONS,
    SHORTEST_LAME_DUCK_DURATION_S,
)
from gnatswarm.broker.version import SERVER_VERSIONS

# For messages alone: compiling it takes a fiftieth of what an empty Python does, and the port is open before.
_DURATION_PART = r"(\d+(?:\.\d*)?|\.\d+)([a-zµμ]*)"
_UNIT_S = {"ns": 1e-9, "us": 1e-6, "µs": 1e-6, "μs": 1e-6, "ms": 1e-3, "s": 1.0, "m": 60.0, "h": 3600.0}

MOST_SHARDS = 62  # as of cores.MAX_SHARDS
FENCE_TIMEOUT_S = 0.25  # as in Options
LONGEST_FENCE_S = 5.0  # client libraries give up on a PONG after 10 s and more
LONGEST_DURATION_S = 10 * 365 * 86_400.0  # ten years: a longer one has the wrong unit


class Mistake(Exception):
    """An invalid value: what is wrong, and what to do."""

    def __init__(self, what: str, advice: str = "") -> None:
        super().__init__(what)
        self.what = what
        self.advice = advice


class BareSeconds(Exception):
    """A number in the place of a duration: accepted as seconds, with a warning. Carries the seconds."""

    def __init__(self, seconds: float) -> None:
        super().__init__(seconds)
        self.seconds = seconds


def _default(field: str) -> float:
    """The default of this limit, for values that ask for it."""
    from gnatswarm.broker.limits import Limits  # the port is open before this is imported

    return float(getattr(Limits(), field))


def kind_of(value: object) -> str:
    """The type of a value, for messages."""
    if isinstance(value, bool):
        return "a boolean"
    names = {int: "a number", float: "a decimal number", str: "text", list: "a list", dict: "a block"}
    return names.get(type(value), "a date")


def compatibility(value: object) -> str:
    """The version of nats-server to behave like, as text or, without quotes, as a number."""
    known = str(value) if isinstance(value, str | float) else ""
    if known not in SERVER_VERSIONS:
        raise Mistake(f"{value!r} is no known version", f"write {' or '.join(SERVER_VERSIONS)}")
    return known


def text(value: object) -> str:
    """Text, unchanged."""
    if not isinstance(value, str):
        raise Mistake(f"expected text, not {kind_of(value)}", "put it in quotes")
    return value


def path(value: object) -> str:
    """The path of a file or directory. An escape could put a NUL into it; no file can have such a name."""
    name = text(value)
    if "\0" in name:
        raise Mistake("a path has no NUL character", "remove the escape \\\\x00")
    return name


# What the scanner takes for a number of bytes where it has no quotes.
_SIZE = r"(?i)-?\d+(?:[kmgtpe](?:i?b?)?)?"


def boolean(value: object) -> bool:
    """true, yes, on; false, no, off; without quotes."""
    if not isinstance(value, bool):
        raise Mistake(f"expected a boolean, not {kind_of(value)}", "write true or false, without quotes")
    return value


def number(value: object, least: int, most: int, unit: str = "") -> int:
    """A whole number within bounds, both included."""
    if isinstance(value, bool) or not isinstance(value, int):
        example = "a size such as 64MB" if unit == "bytes" else "a whole number"
        # A size with a unit that there is not is text to nats-server, too, and needs no hint about quotes.
        if unit == "bytes" and isinstance(value, str) and not re.fullmatch(_SIZE, value):
            raise Mistake("expected a size, not text", f"write {example}; units are k, kb, kib, m, mb, mib, g …")
        raise Mistake(f"expected a number, not {kind_of(value)}", f"write {example}, without quotes")
    if value < least or value > most:
        raise Mistake(f"{value} is out of range", f"write {least} to {most}" + (f" {unit}" if unit else ""))
    return value


def tcp_port(value: object) -> int:
    """A client port: 0 is the default port, -1 any free one, as on the real server."""
    return number(value, -1, 65_535) or 4222


def http_port(value: object) -> int:
    """A monitoring port: 0 is off, -1 any free one."""
    return number(value, -1, 65_535)


def host(value: object) -> str:
    """An address or name to listen on, without a port."""
    name = text(value).strip()
    if name.startswith("[") and name.endswith("]"):
        name = name[1:-1]
    if re.search(r"[\s/\0]", name):
        raise Mistake("a host has neither blanks nor slashes", "write an address or a name, as in 127.0.0.1")
    if re.fullmatch(r"[^:]*:\d+", name):
        raise Mistake("a host and a port in one", "write the host alone, or use listen")
    return name


def listen(value: object) -> tuple[str, int]:
    """`host:port`, `:port` or a port alone."""
    if not isinstance(value, str):
        return "", tcp_port(value)
    where, separator, port = value.rpartition(":")
    if not separator or (":" in where and not where.startswith("[")):
        raise Mistake(f'could not parse address string "{value}"', "write host:port, or [address]:port for IPv6")
    if not re.fullmatch(r"-?\d{1,9}", port):
        raise _no_port(port, "write a number after the last colon")
    return host("" if where == "*" else where), number(int(port), -1, 65_535)


def duration_s(value: object) -> float:
    """Go's durations: "2s", "1h30m", "1.5s", "250ms"; 0 or more. BareSeconds for a whole number."""
    if isinstance(value, int) and not isinstance(value, bool):
        if not 0 <= value <= LONGEST_DURATION_S:
            raise Mistake(f"{value} seconds is out of range", 'write a duration such as "2s"')
        raise BareSeconds(float(value))
    if not isinstance(value, str):
        raise Mistake(f"expected a duration, not {kind_of(value)}", 'write a number and a unit, as in "2s"')
    if value.lstrip("+") == "0":
        return 0.0
    if value.startswith("-"):
        raise Mistake("a duration cannot be negative", 'write one such as "2s"')
    parts = _amounts_and_units(value.removeprefix("+"))
    if not parts or not all(amount.strip(".") and unit in _UNIT_S for amount, unit in parts):
        units = [part[1] for part in re.findall(_DURATION_PART, value)]
        unknown = next((unit for unit in units if unit and unit not in _UNIT_S), None)
        reason = f'unknown unit "{unknown}"' if unknown else "missing unit" if "" in units else "not a duration"
        raise Mistake(f'{reason} in duration "{value}"', 'write one such as "2s", "500ms" or "1h30m"')
    seconds = sum(float(amount) * _UNIT_S[unit] for amount, unit in parts)
    if seconds > LONGEST_DURATION_S:
        raise Mistake(f'"{value}" is longer than ten years', "check the unit")
    return seconds


def _amounts_and_units(text: str) -> list[tuple[str, str]]:
    """`1h.5s` as [("1", "h"), (".5", "s")]; of another text anything that has no such amounts or units."""
    parts, at, end = [], 0, len(text)
    while at < end:
        start = at
        while at < end and text[at].isdecimal():
            at += 1
        at += text[at : at + 1] == "."
        while at < end and text[at].isdecimal():
            at += 1
        unit = at
        while at < end and not text[at].isdecimal() and text[at] != ".":
            at += 1
        parts.append((text[start:unit], text[unit:at]))
    return parts


def interval_s(value: object, limit: str = "") -> float:
    """A duration; 0 means the default of this limit, or 0 without one.

    Less than a millisecond is an error, because the unit must be wrong.
    """
    seconds = duration_s(value)
    if 0 < seconds < 0.001:
        raise Mistake("shorter than a millisecond", 'write one such as "2s"')
    return seconds or (_default(limit) if limit else 0.0)


def write_deadline_s(value: object) -> float:
    """How long a client may take no bytes; 0: the default."""
    return interval_s(value, "write_deadline_s")


def write_timeout(value: object) -> str:
    """What becomes of a client that takes nothing for write_deadline."""
    if not isinstance(value, str) or value not in ("default", "close", "retry"):
        raise Mistake("must be 'default', 'close' or 'retry'", "write close, or retry to wait for it")
    return value


def ping_interval_s(value: object) -> float:
    """Between PINGs; 0: the default."""
    return interval_s(value, "ping_interval_s")


def auth_timeout_s(value: object) -> float:
    """Seconds, whole or not, or a duration in quotes (for which the real server silently uses one second)."""
    if isinstance(value, float):
        if not 0 <= value <= LONGEST_DURATION_S:
            raise Mistake(f"{value} seconds is out of range", "write seconds, as in 2 or 0.5")
        return value or _default("auth_timeout_s")
    try:
        return interval_s(value, "auth_timeout_s")
    except BareSeconds as bare:  # the usual form for this key
        return bare.seconds or _default("auth_timeout_s")


def lame_duck_duration_s(value: object) -> float:
    """A duration in quotes; at least half a minute, as in the real server."""
    seconds = _strict_duration_s(value)
    if seconds < SHORTEST_LAME_DUCK_DURATION_S:
        raise Mistake(f"invalid lame_duck_duration of {value}, minimum is 30 seconds", 'write "30s" or more')
    return seconds


def lame_duck_grace_s(value: object) -> float:
    """A duration in quotes."""
    return _strict_duration_s(value)


def _strict_duration_s(value: object) -> float:
    try:
        return duration_s(value)
    except BareSeconds:
        raise Mistake("expected a duration, not a number", 'write it in quotes with a unit, as in "30s"') from None


def max_payload_bytes(value: object) -> int:
    """1 byte to 64 MiB; 0: the default, -1: 64 MiB."""
    size = number(value, -1, LARGEST_MAX_PAYLOAD_BYTES, "bytes")
    return LARGEST_MAX_PAYLOAD_BYTES if size < 0 else size or int(_default("max_payload_bytes"))


def max_control_line_bytes(value: object) -> int:
    """1 byte to 128 KiB; 0: the default."""
    return number(value, 0, LARGEST_MAX_CONTROL_LINE_BYTES, "bytes") or int(_default("max_control_line_bytes"))


def max_connections(value: object) -> int:
    """Negative: no limit. 0 stays 0, because `compatibility` says what it means (see `meant_by_0`)."""
    count = number(value, -1, NO_MAX_CONNECTIONS)
    return NO_MAX_CONNECTIONS if count < 0 else count


def meant_by_0(*, is_like_newer: bool) -> int:
    """What `max_connections: 0` is: no limit in nats-server 2.15, the default in 2.9."""
    return NO_MAX_CONNECTIONS if is_like_newer else int(_default("max_connections"))


def max_subscriptions(value: object) -> int:
    """0 or -1: no limit."""
    return max(number(value, -1, 2**31 - 1), 0)


def max_closed_clients(value: object) -> int:
    """0: the default; a million rows are some 500 MB."""
    return number(value, 0, 1_000_000) or int(_default("max_closed_clients"))


def max_subject_tokens(value: object) -> int:
    """1 to 255, as in nats-server."""
    return number(value, 1, 255)


def max_pending_bytes(value: object) -> int:
    """0: the default. `options_build` checks that it is not less than max_payload."""
    return number(value, 0, 2**50, "bytes") or int(_default("max_pending_bytes"))


def ping_max(value: object) -> int:
    """0: the default."""
    return number(value, 0, 1_000_000) or int(_default("ping_max"))


def size_limit_bytes(value: object) -> int:
    """A limit; 0 and -1 mean no limit."""
    return max(number(value, -1, 2**60, "bytes"), 0)


def _no_port(port: str, advice: str) -> Mistake:
    # (in a URL, a password may stand in the place of the port)
    return Mistake(f'could not parse port "{"…" if "@" in port else port}"', advice)


def log_files(value: object) -> int:
    """How many log files are kept; 0 and -1: all."""
    return max(number(value, -1, 2**31 - 1), 0)


def client_advertise(value: object) -> str:
    """`host` or `host:port`."""
    address = text(value).strip()
    where, separator, port = address.rpartition(":")
    if separator and not (":" in where and not where.startswith("[")) and not address.endswith("]"):
        if not re.fullmatch(r"\d{1,5}", port) or int(port) > 65_535:
            raise _no_port(port, "write host or host:port")
        if not where:
            raise Mistake("an address without a host", "write host or host:port")
    return address


def server_tags(value: object) -> tuple[str, ...]:
    """One word or a list of them; lower case, as the real server keeps them."""
    items = value if isinstance(value, list) else [value]
    return tuple(text(item).strip().lower() for item in items if text(item).strip())


def server_metadata(value: object) -> tuple[tuple[str, str], ...]:
    """A block of names and texts."""
    if not isinstance(value, dict):
        raise Mistake(f"expected a block, not {kind_of(value)}", 'write { name: "value" }')
    found = []
    for name, inner in value.items():
        if not isinstance(inner, str):
            raise Mistake(f"{name}: expected text, not {kind_of(inner)}", "put it in quotes")
        found.append((name, inner))
    return tuple(sorted(found))


def shard_count(value: object) -> int:
    """0: as many as there are usable cores."""
    return number(value, 0, MOST_SHARDS)


def accept_mode(value: object) -> str:
    """How a new connection is assigned to a shard."""
    return _one_of(value, ("reuseport", "handoff"))


def fence(value: object) -> str:
    """Whose knowledge a PONG promises."""
    return _one_of(value, ("broker", "cluster"))


def fence_timeout_s(value: object) -> float:
    """How long a PONG waits for other members, at most LONGEST_FENCE_S; 0: the default."""
    seconds = interval_s(value) or FENCE_TIMEOUT_S
    if seconds > LONGEST_FENCE_S:
        raise Mistake(f"clients would wait for {seconds:g} s", f'write "{LONGEST_FENCE_S:g}s" or less')
    return seconds


def after_scale(value: object) -> str:
    """What is done about connections when shards were added."""
    return _one_of(value, ("even", "stay"))


def placement_bound(value: object) -> float:
    """A shard's load ÷ the mean load, 1 to 62."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise Mistake(f"expected a number, not {kind_of(value)}", "write one such as 1.25")
    if not 1 <= value <= MOST_SHARDS:
        raise Mistake(f"{value:g} is out of range", f"write 1 to {MOST_SHARDS}, such as 1.25")
    return float(value)


def stats_window_s(value: object) -> float:
    """A duration, or seconds; a tenth of a second to an hour."""
    seconds = float(value) if isinstance(value, int | float) and not isinstance(value, bool) else duration_s(value)
    if not 0.1 <= seconds <= 3600:
        advice = 'write "100ms" to "1h", with the quotes: without them, m is a million'
        raise Mistake(f"a window of {seconds:,.10g} s is out of range", advice)
    return seconds


def stats_max_age_s(value: object) -> float:
    """A duration; 0: files stay."""
    return duration_s(value)


def stats_subjects(value: object) -> int:
    """Rows per window."""
    return number(value, 1, 1_000_000)


def stats_clients(value: object) -> int:
    """Rows of clients per window."""
    return number(value, 0, 100_000)


def stats_client_subjects(value: object) -> int:
    """Subjects of each kind in a client's row."""
    return number(value, 1, 1000)


def negated(value: object) -> bool:
    """The opposite, for a flag that turns something off."""
    return not value


def remote_syslog(value: object) -> str:
    """The address of a syslog; "": none. A syslog asks for no log-in: one in the URL is left out."""
    url = re.sub("//[^/?#]*@", "//", text(value), count=1)
    if url:
        from gnatswarm.shards.boundary.syslog import SyslogAddress

        try:
            SyslogAddress(url)
        except ValueError as error:
            raise Mistake(str(error), "write udp://host:514, tcp://host:514 or unix:///path") from None
    return url


def log_format(value: object) -> str:
    """The format of log lines."""
    return _one_of(value, ("text", "json"))


def _one_of(value: object, choices: tuple[str, ...]) -> str:
    word = text(value).lower()
    if word not in choices:
        raise Mistake(f'unknown value "{word}"', f"write {' or '.join(choices)}")
    return word


def http_base_path(value: object) -> str:
    """The prefix of every monitoring page's path; "" or with one leading slash and none at the end."""
    path = text(value).strip("/ ")
    return f"/{path}" if path else ""


def cluster_name(value: object) -> str:
    """The name of a cluster; "": none."""
    return text(value)


def connect_retries(value: object) -> int:
    """How often more a member of the cluster is dialled."""
    return number(value, 0, 2**31 - 1)


def route_url(value: object) -> str:
    """The URL of another member of the cluster. Its text may have a password, and is not in the error."""
    from urllib.parse import urlsplit  # not needed for most configurations

    given = text(value).strip()
    url = given if "://" in given else f"nats-route://{given}"
    try:
        parts = urlsplit(url)
        has_place = parts.port is not None
    except ValueError:
        has_place = False
    if not has_place:
        raise Mistake("error parsing route url", "write nats://host:6222")
    if parts.scheme not in ("nats", "nats-route", "route"):
        raise Mistake(f'"{parts.scheme}" is no scheme of a route url', "write nats://host:6222")
    if not parts.hostname:  # Go dials this host
        credentials = parts.netloc.rpartition("@")
        url = f"{parts.scheme}://{credentials[0]}{credentials[1]}localhost:{parts.port}"
    return url


def routes_text(value: object) -> tuple[str, ...]:
    """The URLs of other members, with commas between them; "": none."""
    return tuple(route_url(one) for one in text(value).split(",") if one.strip())
