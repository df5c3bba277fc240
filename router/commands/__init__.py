"""The commands of `gnatswarm` other than the broker itself: doctor, top, scale, status, health, signals, first screen.

Each talks to a running broker from another process, or examines the machine. May import every other sub-package of the
router except monitoring.
"""
