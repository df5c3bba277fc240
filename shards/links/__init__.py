"""The links of one shard to its siblings, and the descriptors reserved for them.

May import the engine, the boundary and the sockets.
"""
