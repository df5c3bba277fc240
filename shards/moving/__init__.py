"""Clients that go on in another shard: the way for their descriptors, and who goes where, and when.

The engine's half is broker.moves. May import the engine, the boundary, sockets and clients.
"""
