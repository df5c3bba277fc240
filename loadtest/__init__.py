"""Load-testing tools for any NATS server: a client, locust users, a peak-throughput bench and side-by-side comparison.

Shares nothing with the broker: a load generator that used the server's own parser would not see its bugs.
"""
