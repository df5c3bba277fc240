"""Connections to other NATS servers: leaf nodes and the hubs of leaf nodes.

One process of the broker alone holds them, as one more shard without clients, so that outside there is one server. The
engine's part is `broker.exchange` and `broker.serverlink`. It may import `broker`, `shards.boundary`,
`shards.sockets` and `shards.clients`; `shards.worker` makes it.
"""
