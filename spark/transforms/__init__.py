"""Pure functions from DataFrame to DataFrame, one file per topic; the last `select` of each is its contract."""
