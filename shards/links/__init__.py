"""The links of one shard to its siblings.

May import the engine, the boundary and the sockets.
"""
