"""The clients of one shard: accepting, logging in, permissions, accounts, the system account, departure.

May import the engine, the boundary and the sockets. Must not import links and statistics, which use clients.
"""
