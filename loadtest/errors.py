"""Errors between a client and its server; their texts are for people."""

from __future__ import annotations


class NatsError(Exception):
    """Any error between this client and its server."""


class Refused(NatsError):
    """No connection could be made."""


class AuthenticationError(NatsError):
    """The server refuses this client's log-in."""


class ServerError(NatsError):
    """The server sent -ERR."""


class Disconnected(NatsError):
    """The connection is lost; publishing raises this too while the client reconnects."""


class RequestTimeout(NatsError):
    """No response, or no PONG, arrived in time."""


class NoResponders(NatsError):
    """The subject of the request has no subscriber; the server responded with 503 at once."""


class LoadFailed(NatsError):
    """A run that cannot be made or was cut short; its one line of text is all the user sees."""
