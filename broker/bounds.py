"""The bounds of limits, which readers of configurations and of the wire share; `broker.limits` has the rest.

Imports nothing: a configuration is judged with them before any port is open.
"""

from __future__ import annotations

# Bounds of the options. One payload must fit one allocation, one control line must fit the read buffer beside a
# payload, and with a pending limit below one payload a broker could not deliver it.
LARGEST_MAX_PAYLOAD_BYTES = 64 * 1024 * 1024
LARGEST_MAX_CONTROL_LINE_BYTES = 128 * 1024
# One payload between shards and between servers: with what is added to a message's header on its way to other accounts
# and under a trace. That is who asks, of some 400 KB at most (a CONNECT of one control line), and one destination.
LARGEST_FRAME_PAYLOAD_BYTES = LARGEST_MAX_PAYLOAD_BYTES + 1024 * 1024

# The options, as each shard is told them in one message when it starts. It is some 50,000 users with permissions, which
# a shard reads in 0.2 s; those of a reload in turns.
LARGEST_OPTIONS_BYTES = 15 * 1024 * 1024

# Whose connections, and what they publish, is counted on the shared page, which has so many places.
MOST_COUNTED_ACCOUNTS = 16_384
MOST_PUBLISH_LIMITS = 65_536

# Our "no limit", for which nats-server has -1: more connections than one host's ports and memory allow.
NO_MAX_CONNECTIONS = 2**31 - 1

# nats-server's own bounds: it warns of a larger max_payload, and refuses a shorter lame duck duration.
DISCOURAGED_MAX_PAYLOAD_BYTES = 8 * 1024 * 1024
SHORTEST_LAME_DUCK_DURATION_S = 30.0
