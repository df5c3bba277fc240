"""Support for tests: brokers as processes, a raw client, transcripts, and a slow, obvious model."""
