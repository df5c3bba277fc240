"""What the router and a shard have in common: messages between them, rows, the shared page, files, logs.

The only part of `shards` that the router imports. It knows nothing of what runs inside a shard, and imports only
`broker`.
"""
