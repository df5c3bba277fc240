"""The statistics of a shard: its counters, summed up in windows, written to files by a thread, and kept for a while.

May import the engine, the boundary, the sockets and the links.
"""
