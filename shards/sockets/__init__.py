"""The sockets of one shard: the reactor, listeners, TLS and WebSocket, and when sockets are read and checked.

It deals with bytes and readiness, and knows nothing of users or of the purpose of links. May import the engine and
the boundary.
"""
