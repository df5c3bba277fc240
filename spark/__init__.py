"""Spark jobs over what the shards write down about themselves: see README.md. Imports nothing of the broker."""
