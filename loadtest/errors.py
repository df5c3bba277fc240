"""What can go wrong between a client and its server; the text of each is for people."""

from __future__ import annotations


class NatsError(Exception):
    """Whatever goes wrong between this client and its server."""


class Refused(NatsError):
    """No connection could be made."""


class AuthenticationError(NatsError):
    """The server does not let this client in."""


class ServerError(NatsError):
    """The server's -ERR."""


class Disconnected(NatsError):
    """The connection is gone; while the client reconnects, publishing raises this too."""


class RequestTimeout(NatsError):
    """No answer, or no PONG, came in time."""


class NoResponders(NatsError):
    """Nobody subscribes to the subject of the request; the server said so at once."""


class LoadFailed(NatsError):
    """A run that cannot be made or was cut short; its one line of text is all the user sees."""
