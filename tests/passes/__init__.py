"""The whole suite again and again, on a machine that is kept busy."""
