"""Histories of real brokers, and a checker that decides from a history alone whether the promises held.

    events      the records of a history, and its file         wire        one connection, which records what it does
    doors       as whom, over which layers and in which account a client comes in
    workload    what clients do, drawn from a seed             generator   the clients, for a number of operations
    timeline    the same events as intervals                   checker     the promises, as rules about intervals
    brokers     which brokers are recorded, and their faults   runs        histories one after the other, and a table

    python -m tests.histories --seconds 60              record and check
    python -m tests.histories --check FILE              check a history again

The checker knows nothing of the broker: no shards, no links. The README beside this file says what it reports.
"""
