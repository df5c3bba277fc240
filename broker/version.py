"""Which server we stand in for, and which version of it this is. `-v` is answered from here: imports nothing."""

# What INFO's `version` says: clients gate features on it (protocol.md, section 1).
SERVER_VERSION = "2.9.10"

# Our own, INFO's extra key `gnatswarm`; pyproject.toml says the same, a test compares them.
OWN_VERSION = "0.1.0"
