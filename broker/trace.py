"""The trace of -V: one direction of one client's bytes as lines in nats-server's wording. Bytes in, lines out.

Only for display: the engine does not depend on its parsing. Slow; runs only while tracing is on. The log itself hides
secrets in CONNECT.
"""

from __future__ import annotations

# A longer line or payload is cut in the trace.
MOST_LINE_BYTES = 4096

_IN_PAYLOAD = ("PUB", "HPUB")
_OUT_PAYLOAD = ("MSG", "HMSG")
_HEADERS_END = b"\r\n\r\n"


def _quoted(data: bytes) -> str:
    text = data.decode("utf-8", "backslashreplace")
    return '"' + text.replace("\\", "\\\\").replace('"', '\\"').replace("\r", "\\r").replace("\n", "\\n") + '"'


class Tracer:
    """Splits one direction of a connection into operations."""

    def __init__(
        self, *, is_incoming: bool, payload_bytes: int, is_like_newer: bool = False, only_headers: bool = False
    ) -> None:
        """`payload_bytes`: longest piece of a payload that is shown; 0: all of it. `only_headers`: none of the rest.

        `is_like_newer`: as in nats-server 2.15, which also shows payloads of messages to the client.
        """
        self._verbs = _IN_PAYLOAD if is_incoming else _OUT_PAYLOAD
        self._arrow = "<<-" if is_incoming else "->>"
        self._shows_payload = is_incoming or is_like_newer
        self._only_headers = only_headers
        self._header_bytes = 0
        self._payload_bytes = payload_bytes
        self._data = bytearray()
        self._payload_left = -1  # bytes of payload and CRLF still to come; -1: a control line is next

    def show(self, *, payload_bytes: int, only_headers: bool) -> None:
        """From now on show this of payloads; as when it was made."""
        self._payload_bytes = payload_bytes
        self._only_headers = only_headers

    def feed(self, data: bytes) -> list[str]:
        """The operations that are complete now, one line each."""
        self._data += data
        lines: list[str] = []
        while True:
            if self._payload_left >= 0:
                if len(self._data) < self._payload_left:
                    return lines
                size = max(0, self._payload_left - 2)
                if self._only_headers:
                    size = min(size, max(0, self._header_bytes - len(_HEADERS_END)))
                if self._shows_payload and (size or not self._only_headers):
                    lines.append(self._payload_line(bytes(self._data[:size])))
                del self._data[: self._payload_left]
                self._payload_left = -1
            end = self._data.find(b"\n")
            if end < 0:
                if len(self._data) > 64 * MOST_LINE_BYTES:
                    self._data.clear()
                return lines
            line = bytes(self._data[:end]).rstrip(b"\r")
            del self._data[: end + 1]
            lines.append(self._line(line))

    def _line(self, line: bytes) -> str:
        text = line[:MOST_LINE_BYTES].decode("utf-8", "backslashreplace").rstrip()
        words = text.split()
        if words and words[0].upper() in self._verbs and words[-1].isdigit():
            self._payload_left = int(words[-1]) + 2
            has_headers = words[0].upper() in ("HPUB", "HMSG") and words[-2].isdigit()
            self._header_bytes = int(words[-2]) if has_headers else 0
        if text == "+OK":
            text = "OK"
        elif text.startswith("-ERR "):
            text = "-ERR " + text[5:].strip("'")
        return f"{self._arrow} [{text}]"

    def _payload_line(self, payload: bytes) -> str:
        if self._payload_bytes and len(payload) > self._payload_bytes:
            payload = payload[: self._payload_bytes] + b"..."
        return f"{self._arrow} MSG_PAYLOAD: [{_quoted(payload)}]"
