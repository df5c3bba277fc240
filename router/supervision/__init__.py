"""Supervision of shards, and what operators see: decisions, processes, files, notices.

`supervision` decides, `supervisor` applies that to a `broker`; readers and commanders of a broker use `broker_view` and
`broker_commands`; `router.serving` and `router.companions`, outside of this package, compose it. May import the
engine's options, the boundary, the configuration and the listening sockets.
"""
