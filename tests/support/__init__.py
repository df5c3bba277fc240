"""What the tests stand on: brokers as processes, a raw client, transcripts, and a slow obvious model."""
