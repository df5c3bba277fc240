"""One shard's part of the monitoring pages: rows, built in slices.

It reads everything, so it may import every other part of the shard; none of them may import it.
"""
