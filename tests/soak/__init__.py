"""A broker under a steady, checked load for hours, and what its processes hold meanwhile: `make soak H=2`."""
