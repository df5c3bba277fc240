"""The nats-server versions that we can be like, and our own. Imports nothing of ours, so that `-v` is quick."""

import sys

# The option `compatibility` → INFO's `version`: clients enable features by it. The tests run both
# servers, and the option decides where they differ. The newer one is what users come from today.
OLD, NEW = "2.9", "2.15"
SERVER_VERSIONS = {OLD: "2.9.10", NEW: "2.15.1"}
DEFAULT_COMPATIBILITY = NEW

# Our own version, INFO's key `gnatswarm`; a test compares it with pyproject.toml.
OWN_VERSION = "0.1.0"

# The value of `go` in INFO and /varz, where nats-server has the version of Go. The key must be there, because clients
# may expect it. No client parses the text, so we say what is true: a "go1.19.8" would mislead people who look for bugs
# of that version.
LANGUAGE = f"python{sys.version_info[0]}.{sys.version_info[1]}.{sys.version_info[2]}"
