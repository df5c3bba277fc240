"""Makes `Options` of a configuration file, a command line or keywords, and reports every problem at once.

Also decides what a reload may change, and the defaults that depend on the machine. May import the engine's options and
rules and the boundary; nothing here listens, starts a process or keeps state.
"""
