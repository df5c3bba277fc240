"""The test suite. The tree mirrors the source; `support/` holds what the tests share."""
