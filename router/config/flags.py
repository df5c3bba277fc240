"""The command line with nats-server's rules: one dash or two, `-p 4222` or `-p=4222`, flags before words.

A table of flags and a parser for it. The parser has Go's rules, because scripts rely on them: a boolean flag takes no
separate word (`-T=false`), `--` and the first word that is no flag end the flags, numbers may be hexadecimal (0x10) or
octal (010), and of a repeated flag the last one counts. Reads no file. Imports only what is cheap at start.
"""

from __future__ import annotations

# Type checkers know this name. The module `typing` alone would cost a third of the time that `-v` may take.
TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    Check = Callable[[object], object]

_TRUE = frozenset({"1", "t", "T", "TRUE", "true", "True"})
_FALSE = frozenset({"0", "f", "F", "FALSE", "false", "False"})


class BadCommandLine(Exception):
    """The command line has an error; the text says what, where and what to do."""


class Flag:
    """One flag under all its names."""

    __slots__ = ("fields", "kind", "names")

    def __init__(self, names: tuple[str, ...], kind: type, fields: tuple[str, ...] = ()) -> None:
        self.names = names
        self.kind = kind  # bool, int or str
        self.fields = fields  # of Options, dotted; (): the program reads the flag by its first name


FLAGS = (
    Flag(("a", "addr", "net"), str, ("host",)),
    Flag(("p", "port"), int, ("port",)),
    Flag(("n", "name", "server_name"), str, ("server_name",)),
    Flag(("P", "pid"), str, ("pid_file",)),
    Flag(("m", "http_port"), int, ("http_port",)),
    Flag(("ms", "https_port"), int, ("https_port",)),
    Flag(("c", "config"), str),
    Flag(("t",), bool),
    Flag(("why",), str),
    Flag(("sl", "signal"), str),
    Flag(("client_advertise",), str, ("client_advertise",)),
    Flag(("ports_file_dir",), str, ("ports_file_dir",)),
    Flag(("l", "log"), str, ("logging.file",)),
    Flag(("T", "logtime"), bool, ("logging.logtime",)),
    Flag(("logtime_utc",), bool, ("logging.logtime_utc",)),
    Flag(("s", "syslog"), bool, ("logging.syslog",)),
    Flag(("r", "remote_syslog"), str, ("logging.remote_syslog",)),
    Flag(("D", "debug"), bool, ("logging.debug",)),
    Flag(("V", "trace"), bool, ("logging.trace",)),
    Flag(("VV",), bool, ("logging.trace",)),
    Flag(("DV",), bool, ("logging.debug", "logging.trace")),
    Flag(("DVV",), bool, ("logging.debug", "logging.trace")),
    Flag(("log_size_limit",), int, ("logging.size_limit_bytes",)),
    Flag(("max_traced_msg_len",), int, ("logging.trace_payload_bytes",)),
    Flag(("log_format",), str, ("logging.format",)),
    Flag(("js", "jetstream"), bool),
    Flag(("sd", "store_dir"), str),
    Flag(("user",), str, ("auth_user",)),
    Flag(("pass",), str, ("auth_password",)),
    Flag(("auth",), str, ("auth_token",)),
    Flag(("tls",), bool),
    Flag(("tlsverify",), bool, ("tls.verify",)),
    Flag(("tlscert",), str, ("tls.cert_file",)),
    Flag(("tlskey",), str, ("tls.key_file",)),
    Flag(("tlscacert",), str, ("tls.ca_file",)),
    Flag(("routes",), str, ("cluster.routes",)),
    Flag(("cluster", "cluster_listen"), str),
    Flag(("cluster_name",), str, ("cluster.name",)),
    Flag(("cluster_advertise",), str, ("cluster.advertise",)),
    Flag(("no_advertise",), bool, ("cluster.no_advertise",)),
    Flag(("connect_retries",), int, ("cluster.connect_retries",)),
    Flag(("profile",), int),
    Flag(("compatibility",), str, ("compatibility",)),
    Flag(("shards",), int, ("sharding.shards",)),
    Flag(("accept",), str, ("sharding.accept",)),
    Flag(("placement",), str, ("placement.after_scale",)),
    Flag(("stats_dir", "stats-dir"), str, ("stats.dir",)),
    Flag(("stats_window", "stats-window"), str, ("stats.window_s",)),
    Flag(("no_stats", "no-stats"), bool, ("stats.enabled",)),
    Flag(("json",), bool),
    Flag(("h", "help"), bool),
    Flag(("help_tls",), bool),
    Flag(("v", "version"), bool),
)
BY_NAME = {name: flag for flag in FLAGS for name in flag.names}

_READ_BY_NAME = frozenset({"c", "t", "why", "sl", "h", "help_tls", "v", "json", "tls", "cluster"})

# Checks for these fields, as for the file's; the other fields are text or booleans that need no check.
_CHECKS = {
    "host": "host",
    "port": "tcp_port",
    "http_port": "http_port",
    "https_port": "http_port",
    "client_advertise": "client_advertise",
    "compatibility": "compatibility",
    "logging.size_limit_bytes": "size_limit_bytes",
    "logging.trace_payload_bytes": "size_limit_bytes",
    "logging.format": "log_format",
    "logging.remote_syslog": "remote_syslog",
    "cluster.routes": "routes_text",
    "cluster.name": "cluster_name",
    "cluster.advertise": "client_advertise",
    "cluster.connect_retries": "connect_retries",
    "stats.enabled": "negated",
    "stats.window_s": "stats_window_s",
    "sharding.shards": "shard_count",
    "sharding.accept": "accept_mode",
    "placement.after_scale": "after_scale",
}


class CommandLine:
    """A command line with valid syntax; values are not yet checked."""

    def __init__(self, values: dict[str, bool | int | str], spelled: dict[str, str], words: list[str]) -> None:
        self.values = values  # by each flag's first name
        self.spelled = spelled  # first name → the name on the command line, for messages
        self.words = words  # the words after the flags

    @property
    def config_file(self) -> str:
        """Path of the configuration file; "": none."""
        return str(self.values.get("c", ""))

    @property
    def settings(self) -> dict[str, tuple[str, object, Check]]:
        """Dotted field of Options → flag, value and check, in the order given."""
        from gnatswarm.router.config import option_values

        found: dict[str, tuple[str, object, Check]] = {}
        for name, value in self.values.items():
            for field in BY_NAME[name].fields:
                check = getattr(option_values, _CHECKS.get(field, ""), None)
                found[field] = (self.spelled[name], value, check or (lambda same: same))
        return found

    @property
    def unoffered(self) -> list[str]:
        """First names of given flags that are not supported: neither settings nor read by name, nor off or empty."""
        names = [name for name in self.values if not BY_NAME[name].fields and name not in _READ_BY_NAME]
        return [name for name in names if self.values[name] not in (False, "")]

    def asks(self, name: str) -> bool:
        """Whether a boolean flag was given and is true."""
        return bool(self.values.get(name, False))


def parse(arguments: list[str]) -> CommandLine:
    """Flags and words of these arguments; BadCommandLine for the first error."""
    values: dict[str, bool | int | str] = {}
    spelled: dict[str, str] = {}
    rest = list(arguments)
    while rest:
        word = rest[0]
        if len(word) < 2 or word[0] != "-":
            break
        rest.pop(0)
        if word == "--":
            break
        name, equals, text = word[2 if word.startswith("--") else 1 :].partition("=")
        if not name or name[0] == "-":
            raise BadCommandLine(f"bad flag syntax: {word}")
        flag = BY_NAME.get(name)
        if flag is None:
            raise BadCommandLine(f"flag provided but not defined: -{name}{nearest(name, BY_NAME, '-')}")
        if not equals and flag.kind is not bool:
            if not rest:
                raise BadCommandLine(f"flag needs an argument: -{name}")
            text = rest.pop(0)
        first = flag.names[0]
        values.pop(first, None)  # the last one counts, also for the order
        values[first] = _value(flag, name, text, has_text=bool(equals))
        spelled[first] = name
    return CommandLine(values, spelled, rest)


def _value(flag: Flag, name: str, text: str, *, has_text: bool) -> bool | int | str:
    if flag.kind is str:
        if not text.isascii() and any("\udc80" <= one <= "\udcff" for one in text):  # a byte that was no UTF-8
            raise BadCommandLine(f"the value of -{name} is not UTF-8")
        return text
    if flag.kind is bool:
        if not has_text or text in _TRUE:
            return True
        if text in _FALSE:
            return False
        raise BadCommandLine(f'invalid boolean value "{text}" for -{name}: parse error (write -{name}=true or false)')
    try:
        # Go: 0x10, 0b1, 0o7, and 010 is octal. Python allows blanks around a number, Go does not.
        octal = text.lstrip("+-").startswith("0") and text.lstrip("+-")[1:2].isdigit()
        number = int(text, 8 if octal else 0) if text.isascii() and text == text.strip() else None
    except ValueError:
        number = None
    if number is None or not -(2**63) <= number < 2**63:
        why = "parse error" if number is None else "value out of range"
        raise BadCommandLine(f'invalid value "{text}" for flag -{name}: {why} (a whole number is wanted)')
    return number


def nearest(name: str, known: Iterable[str], dash: str = "") -> str:
    """The most similar known name, as the end of a message; "" if there is none."""
    from gnatswarm.router.config.spelling import nearest as meant  # imported only for an error

    near = meant(name, known)
    return f" — did you mean {dash}{near}?" if near else ""
