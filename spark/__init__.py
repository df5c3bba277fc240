"""Spark jobs over the statistics that shards write: see README.md. Imports nothing of the broker."""
