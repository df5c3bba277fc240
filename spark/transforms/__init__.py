"""Pure functions from DataFrame to DataFrame, a file per question; the last `select` of each is its contract."""
