"""The query string of a monitoring page, parsed with Go's rules and checked against limits.

The first value of a key counts, an empty one means the default, and an invalid one raises BadQuery with nats-server's
text.
"""

from __future__ import annotations

import re
from urllib.parse import parse_qs

from gnatswarm.shards.boundary.rows import LONGEST_IDLE, SORTS

DEFAULT_LIMIT = 1024
# The most rows of one page. By default a broker has at most 65,536 connections; longer lists of subscriptions, subjects
# and members are read page by page.
MOST_ROWS = 65_536
MOST_OFFSET = 2**31
MOST_FIELDS = 32
MOST_SUBJECT_CHARACTERS = 4096
MOST_SEARCH_CHARACTERS = 200

_TRUE = frozenset({"1", "t", "T", "TRUE", "true", "True"})
_FALSE = frozenset({"0", "f", "F", "FALSE", "false", "False"})
_STATES = {"": "open", "open": "open", "closed": "closed", "any": "all", "all": "all"}
# A function's name, or a path to one; anything else would let a link inject code into the response.
_CALLBACK = re.compile(r"[A-Za-z_$][\w$]*(?:\.[A-Za-z_$][\w$]*|\[\d{1,9}\])*\Z")
MOST_CALLBACK_CHARACTERS = 128
_BAD_ESCAPE = re.compile(r"%(?![0-9A-Fa-f]{2})")


class BadQuery(Exception):
    """The query is invalid; the text is for the client."""


class PageQuery:
    """One query string; BadQuery from the constructor when it has too many fields."""

    def __init__(self, text: str) -> None:
        if ";" in text or _BAD_ESCAPE.search(text):  # Go leaves out such fields, and takes the others
            text = "&".join(one for one in text.split("&") if ";" not in one and not _BAD_ESCAPE.search(one))
        try:
            self._fields = parse_qs(text, keep_blank_values=True, max_num_fields=MOST_FIELDS)
        except ValueError:
            raise BadQuery(f"more than {MOST_FIELDS} fields in the query") from None

    def text(self, key: str) -> str:
        """The value as it is; "" when the key is absent."""
        return self._fields.get(key, [""])[0]

    def flag(self, key: str) -> bool:
        """A boolean, as Go parses it."""
        text = self.text(key)
        if text in _TRUE:
            return True
        if not text or text in _FALSE:
            return False
        raise BadQuery(
            f"Error decoding boolean for '{key}': strconv.ParseBool: parsing {_quoted(text)}: invalid syntax"
        )

    def number(self, key: str, default: int, most: int) -> int:
        """An integer; 0 or less means the default, more than `most` means `most`."""
        value = self._integer(key, "int", "Atoi", r"[+-]?\d+\Z", -(2**63), 2**63 - 1)
        return min(value, most) if value > 0 else default

    def unsigned(self, key: str) -> int:
        """An unsigned integer of at most 64 bits; 0 when the key is absent."""
        return self._integer(key, "uint64", "ParseUint", r"\d+\Z", 0, 2**64 - 1)

    def _integer(self, key: str, kind: str, function: str, pattern: str, least: int, most: int) -> int:
        text = self.text(key)
        if not text:
            return 0
        why = "invalid syntax"
        if text.isascii() and re.match(pattern, text):
            if len(text) <= 40 and least <= int(text) <= most:
                return int(text)
            why = "value out of range"
        raise BadQuery(f"Error decoding {kind} for '{key}': strconv.{function}: parsing {_quoted(text)}: {why}")

    @property
    def offset(self) -> int:
        """How many rows to skip."""
        return self.number("offset", 0, MOST_OFFSET)

    @property
    def limit(self) -> int:
        """The most rows to return."""
        return self.number("limit", DEFAULT_LIMIT, MOST_ROWS)

    def check_jsz(self, *, is_like_newer: bool) -> None:
        """BadQuery for a field of JetStream's page that nats-server refuses; nothing is shown of the others."""
        for key in ("accounts", "streams", "consumers", "config"):
            self.flag(key)
        _ = self.offset, self.limit
        for key in ("raft", "stream-leader-only") if is_like_newer else ():
            self.flag(key)
        if self.flag("leader-only"):
            raise BadQuery("filtered response: not leader")

    def check_gatewayz(self, *, is_like_newer: bool) -> None:
        """BadQuery for a field of the page of gateways that nats-server refuses; nothing is shown of the others."""
        self.flag("accs")
        if is_like_newer:
            _ = self.subs

    def healthz(self, *, is_like_newer: bool) -> str:
        """What is wrong with what the health probe asks for; "": nothing. BadQuery for a flag that is none."""
        newer = ("js-meta-only", "details") if is_like_newer else ()
        for key in ("js-enabled", "js-enabled-only", "js-server-only", *newer):
            self.flag(key)
        if is_like_newer and self.text("stream") and not self.text("account"):
            return '"account" must not be empty when checking stream health'
        if is_like_newer and self.text("consumer") and not self.text("stream"):
            return '"stream" must not be empty when checking consumer health'
        return ""

    @property
    def state(self) -> str:
        """The state of connections: open, closed or all."""
        text = self.text("state")
        try:
            return _STATES[text.lower()]
        except KeyError:
            raise BadQuery(f"Error decoding state for {text[:80]}") from None

    @property
    def subs(self) -> str:
        """How to show subscriptions: "" (not), "list" or "detail"."""
        if self.text("subs").lower() == "detail":
            return "detail"
        return "list" if self.flag("subs") else ""

    def sort(self, state: str, *, is_like_newer: bool = False) -> str:
        """The sort key for connections in that state."""
        text = self.text("sort") or "cid"
        if text not in SORTS or text == LONGEST_IDLE:
            raise BadQuery(f"invalid sorting option: {text[:80]}")
        if text in ("stop", "reason") and state != "closed":
            raise BadQuery(f"sort by {text} only valid on closed connections")
        return LONGEST_IDLE if text == "idle" and is_like_newer else text

    def shard(self, known: list[int]) -> int | None:
        """The requested shard; None: the whole broker."""
        text = self.text("shard")
        if not text:
            return None
        if text.isascii() and text.isdigit() and len(text) <= 3 and int(text) in known:
            return int(text)
        raise BadQuery(f"no such shard: {text[:20]}")

    @property
    def search(self) -> str:
        """Text to search connections for; our own key, not in nats-server."""
        return self.text("search")[:MOST_SEARCH_CHARACTERS]

    @property
    def test_subject(self) -> str:
        """A publish subject whose receivers are requested; "": none. As there, blanks and NUL are allowed."""
        text = self.text("test")
        if text and (len(text) > MOST_SUBJECT_CHARACTERS or not _has_literal_tokens(text)):
            raise BadQuery(f"invalid test subject, must be valid publish subject: {text[:200]}")
        return text

    def literal_subject(self, key: str) -> str:
        """A subject that can be published to; "": none."""
        text = self.text(key)
        if text and (
            len(text) > MOST_SUBJECT_CHARACTERS
            or not _has_literal_tokens(text)
            or any(character.isspace() or character == "\0" for character in text)
        ):
            raise BadQuery(f"invalid subject, must be valid publish subject: {text[:200]}")
        return text

    def windows(self, default: int, most: int) -> int:
        """How many of the recorder's windows to sum up."""
        return self.number("windows", default, most)

    @property
    def callback(self) -> str:
        """The function that a JSONP response calls; "": plain JSON."""
        text = self.text("callback")
        if text and (len(text) > MOST_CALLBACK_CHARACTERS or not _CALLBACK.match(text)):
            raise BadQuery("callback must be the name of a function")
        return text


def _has_literal_tokens(text: str) -> bool:
    return all(token not in ("", "*", ">") for token in text.split("."))


def _quoted(text: str) -> str:
    return '"' + text[:80].replace("\\", "\\\\").replace('"', '\\"') + '"'
