"""The listening sockets of one broker, and which shard gets a connection.

Sockets are made here or passed in by a service manager; connections are steered to shards, or accepted here and handed
over. May import the configuration, the engine's options and the boundary.
"""
