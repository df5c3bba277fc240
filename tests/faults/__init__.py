"""Faults on processes, files and sockets of real brokers under load, and what was observed: `make faults`."""
