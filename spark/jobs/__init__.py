"""The two programs: `ingest` (files to Parquet) and `report` (either to a page)."""
