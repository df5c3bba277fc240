"""The nats-server version that we are compatible with, and our own. Imports nothing of ours, so that `-v` is quick."""

import sys

# INFO's `version`: clients enable features by it (protocol.md, section 1).
SERVER_VERSION = "2.9.10"

# Our own version, INFO's key `gnatswarm`; a test compares it with pyproject.toml.
OWN_VERSION = "0.1.0"

# The value of `go` in INFO and /varz, where nats-server has the version of Go. The key must be there, because clients
# may expect it. No client parses the text, so we say what is true: a "go1.19.8" would mislead people who look for bugs
# of that version.
LANGUAGE = f"python{sys.version_info[0]}.{sys.version_info[1]}.{sys.version_info[2]}"
