"""The options of requests in the system account, read as Go reads them into each request's own struct.

Only the keys that a kind of request has count: any other key is ignored, whatever its value, and 2.9 has fewer. Case
does not matter, null is as if it were missing, and the texts of errors are Go's. The names of the structs are in those
texts.
"""

from __future__ import annotations

import json
from typing import Any

import msgspec


class RequestOptions(msgspec.Struct):
    """The options of all requests."""

    # Which servers shall answer.
    server_name: str = ""
    cluster: str = ""
    host: str = ""
    exact_match: bool = False  # of these three; else a part is enough
    tags: tuple[str, ...] = ()
    domain: str = ""
    # What the answer shall contain.
    sort: str = ""
    auth: bool = False
    subscriptions: bool = False
    subscriptions_detail: bool = False
    offset: int = 0
    limit: int = 0
    cid: int = 0
    state: int = 0
    user: str = ""
    acc: str = ""
    names_acc: bool = False  # there is an `acc`, be it ""
    filter_subject: str = ""
    mqtt_client: str = ""
    account: str = ""
    stream: str = ""
    consumer: str = ""
    details: bool = False
    test: str = ""
    accounts: tuple[str, ...] = ()
    include_unused: bool = False


class BadOptions(Exception):
    """They make no sense: why, as Go says it."""


class _Number(str):
    """A number as it was written, which is no integer of 64 bits."""

    __slots__ = ()


TEXT, FLAG, NUMBER, UNSIGNED, TEXTS = "string", "bool", "int", "uint64", "[]string"
_PAGE = {"offset": NUMBER, "limit": NUMBER}
_SUBS = {"subscriptions": FLAG, "subscriptions_detail": FLAG}
_FILTER = {
    **dict.fromkeys(("server_name", "cluster", "host", "domain"), TEXT),
    "exact_match": FLAG,
    "tags": TEXTS,
}
# By kind of request: the struct's name, and its keys with their types beside those that say who is meant.
_STRUCTS: dict[str, tuple[str, dict[str, str]]] = {
    "VARZ": ("VarzEventOptions", {}),
    "CONNZ": (
        "ConnzEventOptions",
        {
            **_PAGE,
            **_SUBS,
            **dict.fromkeys(("mqtt_client", "user", "acc", "filter_subject"), TEXT),
            "sort": "server.SortOpt",
            "auth": FLAG,
            "cid": UNSIGNED,
            "state": "server.ConnState",
        },
    ),
    "SUBSZ": ("SubszEventOptions", {**_PAGE, "subscriptions": FLAG, "account": TEXT, "test": TEXT}),
    "ROUTEZ": ("RoutezEventOptions", _SUBS),
    "GATEWAYZ": ("GatewayzEventOptions", {**_SUBS, "name": TEXT, "accounts": FLAG, "account_name": TEXT}),
    "LEAFZ": ("LeafzEventOptions", {"subscriptions": FLAG, "account": TEXT}),
    "ACCOUNTZ": ("AccountzEventOptions", {"account": TEXT}),
    "JSZ": (
        "JszEventOptions",
        {
            **_PAGE,
            **dict.fromkeys(("accounts", "streams", "consumer", "config", "leader_only", "raft"), FLAG),
            "stream_leader_only": FLAG,
            "account": TEXT,
        },
    ),
    "HEALTHZ": (
        "HealthzEventOptions",
        {
            **dict.fromkeys(("js-enabled", "js-enabled-only", "js-server-only", "js-meta-only", "details"), FLAG),
            **dict.fromkeys(("account", "stream", "consumer"), TEXT),
        },
    ),
    "STATSZ": ("StatszEventOptions", {}),
    "STATZ": ("AccountStatzEventOptions", {"accounts": TEXTS, "include_unused": FLAG}),
    "INFO": ("AccInfoEventOptions", {}),
    # (whom these two are about it reads by itself, and does not answer what cannot be read)
    "KICK": ("EventFilterOptions", {"cid": UNSIGNED}),
    "LDM": ("EventFilterOptions", {"cid": UNSIGNED}),
    "RELOAD": ("EventFilterOptions", {}),
    "CONNS": ("accNumConnsReq", {"acc": TEXT}),
}
# Those that 2.9 does not have: in every kind of request, and by kind.
_NEWER = frozenset({"exact_match"})
_NEWER_BY_KIND = {
    "GATEWAYZ": frozenset(_SUBS),
    "JSZ": frozenset({"raft", "stream_leader_only"}),
    "HEALTHZ": frozenset({"account", "stream", "consumer", "details", "js-enabled", "js-meta-only"}),
}
_OURS = frozenset(RequestOptions.__struct_fields__)


def request_options(what: str, body: bytes, *, says_who: bool = True, is_like_newer: bool = True) -> RequestOptions:
    """The options of a request of this kind (SHARDZ and others that nats-server does not have: as VARZ). BadOptions.

    Without `says_who` the keys that say which servers shall answer are ignored.
    """
    if not body:
        return RequestOptions()
    try:
        text = body.decode("utf-8", "replace")
        found = json.loads(text, parse_float=_Number, parse_int=_whole, parse_constant=_constant)
    except json.JSONDecodeError as error:
        raise BadOptions(f"invalid JSON at character {error.pos + 1}") from None
    except RecursionError:
        raise BadOptions("invalid JSON: nested too deeply") from None
    except ValueError as error:
        raise BadOptions(f"invalid JSON: {error}") from None
    name, own = _STRUCTS.get(what, _STRUCTS["VARZ"])
    if found is None:
        return RequestOptions()
    if not isinstance(found, dict):
        raise BadOptions(f"json: cannot unmarshal {_kind(found)} into Go value of type server.{name}")
    types = _FILTER | own if says_who else own
    if not is_like_newer:
        unknown = _NEWER | _NEWER_BY_KIND.get(what, frozenset())
        types = {key: kind for key, kind in types.items() if key not in unknown}
    values: dict[str, Any] = {}
    for key, value in found.items():
        field = key if key in types else key.lower()
        if field not in types or value is None:
            continue
        values[field] = _checked(name, key, value, types[field])
    values["names_acc"] = "acc" in values
    return RequestOptions(**{key: value for key, value in values.items() if key in _OURS})


def _checked(name: str, key: str, value: object, wanted: str) -> object:
    """The value, if it is of the type that is wanted. BadOptions."""
    if wanted == TEXTS and isinstance(value, list):
        for at, one in enumerate(value):
            if one is not None and not isinstance(one, str):
                raise BadOptions(f"json: cannot unmarshal {_kind(one)} into {name}.{key}.{at} of type string")
        return tuple(_encodable(one or "") for one in value)
    is_number = isinstance(value, int | _Number) and not isinstance(value, bool)
    if wanted == FLAG:
        is_right = isinstance(value, bool)
    elif wanted in (NUMBER, UNSIGNED, "server.ConnState"):
        is_right = is_number and isinstance(value, int) and (wanted != UNSIGNED or value >= 0)
    else:
        is_right = wanted != TEXTS and isinstance(value, str) and not isinstance(value, _Number)
        is_number = False
    if is_right:
        return _encodable(value) if isinstance(value, str) else value
    kind = f"number {value}" if is_number and wanted not in (FLAG, TEXTS) else _kind(value)
    raise BadOptions(f"json: cannot unmarshal {kind} into Go struct field {name}.{key} of type {wanted}")


def _encodable(text: str) -> str:
    """The text as Go reads it: with U+FFFD for each lone surrogate, which UTF-8 cannot encode."""
    return text if text.isascii() else text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")


def _whole(text: str) -> int | _Number:
    if len(text) > 20 or not -(1 << 63) <= int(text) < 1 << 64:
        return _Number(text)
    return int(text)


def _constant(text: str) -> object:
    raise ValueError(f"{text} is no value")


def _kind(value: object) -> str:
    """The kind of a JSON value, as Go calls it."""
    match value:
        case bool():
            return "bool"
        case int() | _Number():
            return "number"
        case str():
            return "string"
        case list():
            return "array"
    return "object"
