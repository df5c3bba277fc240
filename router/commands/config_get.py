"""`gnatswarm config get`: the options that a file and flags make, by their names in the file; for people and scripts.

Values are as the broker uses them: sizes in bytes, durations in seconds, files as paths. Secrets are shown as "…".
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence

import msgspec

from gnatswarm.broker.options import SECRET_FIELDS, Options
from gnatswarm.router.config import option_values
from gnatswarm.router.config.option_keys import KEYS
from gnatswarm.router.config.spelling import nearest
from gnatswarm.router.listening.listeners import address_text
from gnatswarm.router.listening.monitor_socket import monitoring_host

# Each reader of a key accepts one of these; which fields it sets does not depend on the value.
_SAMPLES: tuple[object, ...] = (
    *(
        "30s",
        "1s",
        "broker",
        "retry",
        True,
        5,
        "text",
        "127.0.0.1:1",
        "reuseport",
        "2.15",
        "udp://h:1",
        ["x"],
        {"x": "y"},
        {"dir": "x"},
    ),
)
# Options that only blocks set, by their names in the file, and whole blocks.
_BLOCKS = {
    "authorization.timeout": "limits.auth_timeout_s",
    "authorization.token": "auth_token",
    "authorization.user": "auth_user",
    "authorization.password": "auth_password",
    "authorization.users": "users",
}
_WHOLE = {
    **{
        name: name
        for name in ("tls", "websocket", "cluster", "leafnodes", "accounts", "mappings", "placement", "stats")
    },
    **{"ws": "websocket", "leaf": "leafnodes", "maps": "mappings"},
}


def _pages(options: Options, port: int) -> str:
    return address_text(monitoring_host(options), port) if port else ""


# Options that are no field, by their names in the file.
_MADE: dict[str, Callable[[Options], object]] = {
    "listen": lambda options: address_text(options.host or "0.0.0.0", options.port),
    "http": lambda options: _pages(options, options.http_port),
    "https": lambda options: _pages(options, options.https_port),
    "no_header_support": lambda options: not options.headers,
}


class NoSuchOption(ValueError):
    """There is no option of this name; the text suggests the most similar one."""


def values(options: Options, names: Sequence[str] = ()) -> dict[str, object]:
    """Name → value, of these options, or of all. NoSuchOption."""
    fields = dict(fields_by_name())
    known = {*fields, *_MADE}
    for name in names:
        if name.lower() not in known:
            near = nearest(name.lower(), known)
            raise NoSuchOption(f'there is no option "{name}"' + (f" — did you mean {near}?" if near else ""))
    found: dict[str, object] = {}
    for name in names or [*fields, *_MADE]:
        made = _MADE.get(name.lower())
        found[name] = made(options) if made is not None else _value(options, fields[name.lower()])
    return found


def shown(found: dict[str, object], *, as_json: bool) -> str:
    """One JSON document; or the value alone if there is one, else a line for each."""
    if as_json:
        return json.dumps(found, ensure_ascii=False)
    if len(found) == 1:
        return _text(next(iter(found.values())))
    return "\n".join(f"{name}: {_text(value)}" for name, value in found.items())


def fields_by_name() -> Iterator[tuple[str, str]]:
    """Each name in the file of what is a field of Options or a section, and the dotted field."""
    for key in KEYS:
        if key.names[0] in _MADE:
            continue
        fields: set[str] = set()
        for sample in _SAMPLES:
            try:
                fields |= set(key.read(sample))
            except (option_values.Mistake, option_values.BareSeconds):
                continue
        if len(fields) == 1:  # `stats` sets many: it is a section
            for name in key.names:
                yield name, next(iter(fields))
    yield from _BLOCKS.items()
    yield from _WHOLE.items()


def _value(options: Options, field: str) -> object:
    at: object = options
    for part in field.split("."):
        at = getattr(at, part)
    if field.rpartition(".")[2] in SECRET_FIELDS:
        return "…" if at else ""
    return _without_secrets(msgspec.to_builtins(at))


def _without_secrets(value: object) -> object:
    if isinstance(value, dict):
        return {
            key: ("…" if inner else inner) if key in SECRET_FIELDS else _without_secrets(inner)
            for key, inner in value.items()
        }
    if isinstance(value, list | tuple):
        return [_without_secrets(inner) for inner in value]
    return value


def _text(value: object) -> str:
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
