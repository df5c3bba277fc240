"""CONNECT: a client's options, parsed as nats-server does.

Keys are case-insensitive, the last of equal ones counts, unknown ones are ignored, null changes nothing; a value of the
wrong type, or anything but one JSON object, closes the connection without an error text (BadArguments). A later CONNECT
overlays the earlier one. Source: nats-server's behaviour, in the transcripts connect_*.
"""

import sys
from typing import Any

import msgspec
import orjson

from gnatswarm.broker.errors import (
    AuthorizationViolation,
    BadArguments,
    InvalidClientProtocol,
    NoRespondersRequiresHeaders,
)
from gnatswarm.broker.quoted import quoted

# A control line of a few KiB can nest this deep; Python's recursion limit of 1,000 would refuse what nats-server
# accepts.
DEEPEST_JSON = 10_000


class ClientOptions(msgspec.Struct):
    """The options in a client's CONNECT; the defaults hold before the first one."""

    verbose: bool = True
    pedantic: bool = True
    echo: bool = True
    tls_required: bool = False
    headers: bool = False
    no_responders: bool = False
    protocol: int = 0
    auth_token: str = ""
    user: str = ""
    password: str = msgspec.field(default="", name="pass")
    nkey: str = ""
    jwt: str = ""
    sig: str = ""
    name: str = ""
    lang: str = ""
    version: str = ""
    account: str = ""


_FIELDS = {field.encode_name: (field.name, field.type) for field in msgspec.structs.fields(ClientOptions)}


# What only other servers say; a client's is looked at all the same.
_RULES = ("import", "export")
_NEW_ACCOUNT = "new_account"


def _no_constant(name: str) -> Any:
    raise ValueError(f"{name} is not JSON")


def _members_of(raw: bytes) -> dict[str, Any]:
    """The members of the JSON object in `raw`. ValueError: it is not one."""
    document: Any
    try:
        document = orjson.loads(raw)
    except orjson.JSONDecodeError:
        # Go accepts invalid UTF-8, lone surrogates and any depth; orjson does not. Rare, so this may be slow.
        import json

        before = sys.getrecursionlimit()
        sys.setrecursionlimit(DEEPEST_JSON)
        try:
            document = json.loads(raw.decode("utf-8", "replace"), parse_constant=_no_constant)
        except RecursionError as error:
            raise ValueError("nested too deeply") from error
        finally:
            sys.setrecursionlimit(before)
        if isinstance(document, dict):
            document = {key: _whole_text(one) if isinstance(one, str) else one for key, one in document.items()}
    if document is None:
        return {}
    if not isinstance(document, dict):
        raise ValueError("not an object")
    return document


def require_object(raw: bytes) -> None:
    """BadArguments unless `raw` is one JSON object, or null."""
    try:
        _members_of(raw)
    except ValueError:
        raise BadArguments from None


def _whole_text(text: str) -> str:
    """The text with U+FFFD for each half of a surrogate pair, as Go reads it: others may encode it as they like."""
    return text if text.isascii() else text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")


def _wants_account(name: str, value: Any) -> bool:
    """Whether this member asks for an account of its own. BadArguments if nats-server's type for it is another one."""
    if name == _NEW_ACCOUNT:
        if not isinstance(value, bool):
            raise BadArguments
        return value
    if name in _RULES:
        if not isinstance(value, dict):
            raise BadArguments
        lists = [subjects for key, subjects in value.items() if key.lower() in ("allow", "deny")]
        if not all(subjects is None or isinstance(subjects, list) for subjects in lists):
            raise BadArguments
        if not all(one is None or isinstance(one, str) for subjects in lists for one in subjects or ()):
            raise BadArguments
    return False


def overlay(current: ClientOptions, raw: bytes) -> ClientOptions:
    """`current` overlaid with the CONNECT argument `raw`; `current` itself is not changed.

    BadArguments for an invalid argument, AuthorizationViolation for a client that names an account.
    """
    changes: dict[str, Any] = {}
    wants_account = False
    try:
        for key, value in _members_of(raw).items():
            if value is None:
                continue
            known = _FIELDS.get(key) or _FIELDS.get(key.lower())
            if known is None:
                wants_account = _wants_account(key.lower(), value) or wants_account
                continue
            name, kind = known
            if type(value) is not kind:
                raise BadArguments
            changes[name] = value
    except ValueError:
        raise BadArguments from None
    options = msgspec.structs.replace(current, **changes)
    if not -(2**63) <= options.protocol < 2**63:
        raise BadArguments
    if options.account or wants_account:  # a client may choose its account only in nats-server's operator mode
        raise AuthorizationViolation
    return options


def keeps_credentials(current: ClientOptions, new: ClientOptions) -> bool:
    """Whether a later CONNECT leaves out the secrets, and names nobody else than the one before it."""
    has_secret = bool(new.auth_token or new.password or new.jwt or new.sig)
    return not has_secret and (new.user, new.nkey) == (current.user, current.nkey)


def who_claims(nkey: str, user: str, *, has_token: bool) -> str:
    """Whom the log says that was refused, as nats-server 2.15 does; "": nobody."""
    if nkey:
        return f"Nkey {quoted(nkey)}"
    if user:
        return f"User {quoted(user)}"
    return 'Token "[REDACTED]"' if has_token else ""


def require_sense(options: ClientOptions, *, offers_headers: bool = True) -> None:
    """Raise InvalidClientProtocol or NoRespondersRequiresHeaders; called once the credentials are accepted."""
    if options.protocol not in (0, 1):
        raise InvalidClientProtocol
    if options.no_responders and not (options.headers and offers_headers):
        raise NoRespondersRequiresHeaders
