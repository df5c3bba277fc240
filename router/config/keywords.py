"""Options as keywords of a Python call: names as in the configuration file, values of Python types.

    conf_text({"max_payload": 4096, "ping_interval": 0.5, "users": {"ann": "s3cret"}})

They become a text in the configuration file's syntax, so that file and keywords have the same rules and messages, and
so that a broker in a separate process reads them like any file. Defaults suit a program: any free port, loopback, no
statistics. Called by `gnatswarm`, the public API.
"""

from __future__ import annotations

import datetime
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, TypedDict

from gnatswarm.broker.options import Options
from gnatswarm.router.config.conf_tree import ConfigError, Position, Problem
from gnatswarm.router.config.option_keys import BY_NAME
from gnatswarm.router.config.spelling import nearest

# For `authorization { … }`, without having to write the block.
_CREDENTIALS = ("token", "user", "password", "users")
_BLOCKS = ("authorization", "accounts", "mappings", "tls", "websocket", "leafnodes", "cluster", "placement")
# A plain number for one of these is seconds.
_DURATIONS = frozenset(
    {"write_deadline", "ping_interval", "lame_duck_duration", "lame_duck_grace_period", "fence_timeout"}
    | {"window", "max_age", "handshake_timeout", "expires"}
)
# Text such as "8MB" for one of these is a number.
_SIZES = frozenset(
    {"max_payload", "max_control_line", "max_pending", "log_size_limit", "max_traced_msg_len", "max_size"}
)
_SIZE = re.compile(r"\d+([kmgt]i?b?)?\Z", re.IGNORECASE | re.ASCII)
_PROGRAM_DEFAULTS: dict[str, object] = {"host": "127.0.0.1", "port": 0, "stats": {"enabled": False}}


class Keywords(TypedDict, total=False):
    """All keywords; meaning, range and default of each are in deploy/config/gnatswarm.conf.

    Sizes are bytes, or text such as "8MB". Durations are seconds, a timedelta, or text such as "250ms".
    """

    config: str | os.PathLike[str]  # a configuration file; the other keywords override its options
    host: str  # default here: 127.0.0.1
    port: int  # default here: 0, any free one
    server_name: str
    compatibility: str  # "2.9" or "2.15"
    server_tags: Sequence[str]
    server_metadata: Mapping[str, str]
    client_advertise: str
    no_header_support: bool
    # Credentials: one token, or one user, or several users (name → password, or as in the file).
    token: str
    user: str
    password: str
    users: Mapping[str, str] | Sequence[Mapping[str, Any]]
    no_auth_user: str
    system_account: str
    authorization: Mapping[str, Any]
    accounts: Mapping[str, Any]
    mappings: Mapping[str, Any]
    tls: Mapping[str, Any]
    allow_non_tls: bool
    proxy_protocol: bool
    websocket: Mapping[str, Any]
    leafnodes: Mapping[str, Any]
    cluster: Mapping[str, Any]
    fence: str  # "broker" or "cluster"
    fence_timeout: float | str | datetime.timedelta
    max_payload: int | str
    max_control_line: int | str
    max_connections: int
    max_subscriptions: int
    max_sub_tokens: int
    max_subscription_tokens: int
    max_closed_clients: int
    max_pending: int | str
    write_deadline: float | str | datetime.timedelta
    write_timeout: str
    ping_interval: float | str | datetime.timedelta
    ping_max: int
    lame_duck_grace_period: float | str | datetime.timedelta
    lame_duck_duration: float | str | datetime.timedelta
    debug: bool
    trace: bool
    logtime: bool
    logtime_utc: bool
    log_file: str | os.PathLike[str]
    syslog: bool
    remote_syslog: str
    log_size_limit: int | str
    log_max_num: int
    log_format: str
    max_traced_msg_len: int | str
    trace_headers: bool
    trace_verbose: bool
    http_port: int  # monitoring pages; 0: none, -1: any free port
    https_port: int
    http_base_path: str
    http_user: str
    http_password: str
    pid_file: str | os.PathLike[str]
    ports_file_dir: str | os.PathLike[str]
    shards: int
    accept: str
    link_dir: str | os.PathLike[str]
    prefer_local: bool
    placement: Mapping[str, Any]
    stats: Mapping[str, Any] | bool  # default here: off


class UnknownOption(TypeError):
    """A keyword that is no option; the text suggests the most similar one."""


def known_names() -> list[str]:
    """Every keyword, including the real server's other names of options."""
    return ["config", *_CREDENTIALS, *_BLOCKS, *BY_NAME]


def check_names(given: Mapping[str, object], who: str) -> None:
    """UnknownOption for the first name that is no option."""
    known = known_names()
    for name in given:
        if name not in known:
            near = nearest(name, known)
            hint = f"; did you mean {near}?" if near else "; see deploy/config/gnatswarm.conf for all of them"
            raise UnknownOption(f"{who}: there is no option {name!r}{hint}")


def conf_text(given: Mapping[str, object], who: str = "gnatswarm") -> str:
    """The configuration text for these keywords. UnknownOption; TypeError for a value of a type that no option has."""
    check_names(given, who)
    lines = []
    settings = {name: value for name, value in given.items() if value is not None}
    config = settings.pop("config", None)
    if config is not None:
        lines.append(f"include {_bare(os.path.abspath(os.fsdecode(_path(config))), 'config', who)}")
    else:
        settings = _PROGRAM_DEFAULTS | settings
    if settings.get("port") == 0:
        settings["port"] = -1  # in the file 0 is the default port
    credentials = {name: settings.pop(name) for name in _CREDENTIALS if name in settings}
    if credentials:
        if isinstance(users := credentials.get("users"), Mapping):
            credentials["users"] = [{"user": name, "password": password} for name, password in users.items()]
        block = settings.get("authorization", {})
        if not isinstance(block, Mapping):
            raise TypeError(f"{who}: authorization: expected a mapping, not {type(block).__name__}")
        settings["authorization"] = {**block, **credentials}
    try:
        lines += [f"{name}: {_written(value, name, who)}" for name, value in settings.items()]
    except RecursionError:
        raise TypeError(f"{who}: lists and mappings are nested too deep, or contain themselves") from None
    return "\n".join(lines) + "\n"


def options_from(text: str, who: str = "gnatswarm") -> Options:
    """The options of a text that conf_text made. ConfigError with all problems, which name the options."""
    from gnatswarm.router.config import conf
    from gnatswarm.router.config.flags import parse
    from gnatswarm.router.config.options_build import build_parsed

    parsed = conf.parse_text(text, file=who)
    # Lines and columns of a generated text do not help its caller; those of an included file do.
    here = Position(who)

    def placed(problems: Sequence[Problem]) -> Iterator[Problem]:
        return (Problem(here, one.what, one.advice) if one.at.file == who else one for one in problems)

    try:
        return build_parsed(parsed, parse([])).options
    except ConfigError as error:
        raise ConfigError(placed(error.problems)) from None


def _path(value: object) -> str | os.PathLike[str]:
    if not isinstance(value, str | os.PathLike):
        raise TypeError(f"config: expected a path, not {type(value).__name__}")
    return value


def _written(value: object, name: str, who: str) -> str:
    """A value in the file's syntax; `name` is its key."""
    match value:
        case bool():
            return "true" if value else "false"
        case datetime.timedelta():
            return _seconds(value.total_seconds())
        case int() | float():
            return _seconds(value) if name in _DURATIONS else repr(value)
        case str():
            return value if name in _SIZES and _SIZE.match(value) else _quoted(_utf8(value, name, who))
        case os.PathLike():
            return _quoted(_utf8(os.path.abspath(os.fsdecode(value)), name, who))
        case Mapping():
            inner = (f"{_bare(str(key), name, who)}: {_written(one, str(key), who)}" for key, one in value.items())
            return "{" + ", ".join(inner) + "}"
        case list() | tuple() | set() | frozenset():
            return "[" + ", ".join(_written(one, name, who) for one in value) + "]"
    raise TypeError(f"{who}: {name}: a value of type {type(value).__name__} fits no option")


def _utf8(text: str, name: str, who: str) -> str:
    """ConfigError for a text with surrogates, as Python has them for bytes of file names that are no UTF-8."""
    try:
        text.encode()
    except UnicodeEncodeError:
        # Without the text, which may be a password.
        problem = Problem(Position(who), f"the value of {name} is not UTF-8", "leave the lone surrogates out")
        raise ConfigError([problem]) from None
    return text


def _seconds(value: float) -> str:
    return _quoted(f"{value:.9f}".rstrip("0").rstrip(".") + "s")


def _quoted(text: str) -> str:
    """In double quotes, as in the file; other than printable characters are escaped as their UTF-8 bytes."""
    if text.isascii() and text.isprintable() and '"' not in text and "\\" not in text:
        return f'"{text}"'
    return '"' + "".join(_escaped(character) for character in text) + '"'


def _bare(text: str, name: str, who: str) -> str:
    """A key, or the name of a file: in quotes, too, between which the file has no escapes for these."""
    quote = next((one for one in "\"'" if one not in text), "")
    if not quote:
        problem = Problem(Position(who), f"{name}: a name has quotes of both kinds", "name it otherwise")
        raise ConfigError([problem])
    return f"{quote}{_utf8(text, name, who)}{quote}"


def _escaped(character: str) -> str:
    if character in '"\\':
        return "\\" + character
    if character.isprintable():
        return character
    return "".join(f"\\x{byte:02x}" for byte in character.encode())
