"""The programs: `ingest` (files to Parquet), `compact` (that in few files), `report` (any of these to a page)."""
