"""The engine as tests, fuzzers and benches drive it: clients, siblings and sublists without sockets.

Compiled by `make build`, imported as `gnatswarm.probes.…`, and in no wheel.
"""
